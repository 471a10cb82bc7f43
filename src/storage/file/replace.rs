//! Replaces the bytes of a storage that is changed in place by those of a copy of it in another store.

use std::sync::Arc;

use super::in_place::InPlaceFile;
use super::mutable::LockedStorage;
use crate::disk::{DiskFile, LockMode};
use crate::error::{IoContext, Result};
use crate::storage::{Storage, resize_discarding};

/// Passes the new bytes of a storage, in order.
pub(crate) type NewBytes<'a> = &'a dyn Fn(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>;

/// Where the bytes are replaced.
trait Target {
    fn read_at(&self, buf: &mut [u8], offset_bytes: u64) -> Result<()>;
    fn write_at(&mut self, bytes: &[u8], offset_bytes: u64) -> Result<()>;
    fn sync(&mut self) -> Result<()>;
}

impl Target for LockedStorage {
    fn read_at(&self, buf: &mut [u8], offset_bytes: u64) -> Result<()> {
        LockedStorage::read_at(self, buf, offset_bytes)
    }

    fn write_at(&mut self, bytes: &[u8], offset_bytes: u64) -> Result<()> {
        LockedStorage::write_at(self, bytes, offset_bytes)
    }

    fn sync(&mut self) -> Result<()> {
        LockedStorage::sync(self)
    }
}

/// The file of a live storage, open for writing.
struct LiveTarget<'a> {
    own: &'a InPlaceFile,
    file: Arc<dyn DiskFile>,
}

impl Target for LiveTarget<'_> {
    fn read_at(&self, buf: &mut [u8], offset_bytes: u64) -> Result<()> {
        self.own.read_at(buf, offset_bytes)
    }

    fn write_at(&mut self, bytes: &[u8], offset_bytes: u64) -> Result<()> {
        self.file.write_all_at(bytes, offset_bytes).doing("write storage", &self.own.path)
    }

    fn sync(&mut self) -> Result<()> {
        self.own.sync(&[&self.file])
    }
}

/// Replaces all bytes of a mutable or live storage, and makes them durable if `durable`. Bytes that are the same are not
/// written. If a change of a mutable storage was interrupted before, the storage is whole afterwards. Returns whether anything
/// was written.
///
/// # Errors
/// Those of an exclusive lock, for a mutable storage; `Conflict` if the file is not that of the storage any more; `Io`,
/// after which a mutable storage may count as interrupted.
pub(crate) fn replace_bytes(storage: &Storage, bytes: NewBytes<'_>, durable: bool) -> Result<bool> {
    if let Some(live) = storage.as_live() {
        let own = live.in_place();
        own.check_process()?;
        let file = own.open_to_write()?;
        own.check_changeable(&file)?;
        own.check_length(&file)?;
        return replace(&mut LiveTarget { own, file }, bytes, durable);
    }
    let allowing = storage.allowing_interrupted();
    match allowing.as_deref().unwrap_or(storage).lock(LockMode::Exclusive)? {
        Some(mut lock) => {
            // The mark is set from the first change on. It stays if they are not complete.
            replace(&mut lock, bytes, durable).inspect_err(|_| lock.note_half_changed())
        }
        None => Ok(false),
    }
}

fn replace(target: &mut dyn Target, bytes: NewBytes<'_>, durable: bool) -> Result<bool> {
    let (mut before, mut offset_bytes, mut has_changed) = (Vec::new(), 0, false);
    bytes(&mut |piece| {
        resize_discarding(&mut before, piece.len())?;
        target.read_at(&mut before, offset_bytes)?;
        if before != piece {
            target.write_at(piece, offset_bytes)?;
            has_changed = true;
        }
        offset_bytes += piece.len() as u64;
        Ok(())
    })?;
    if has_changed && durable {
        target.sync()?;
    }
    Ok(has_changed)
}
