//! Finds the newest generation of a damaged store that can be read.

use std::path::PathBuf;

use stridemap_format::{self as format, Manifest, Rule, Uuid};

use super::{Loss, reason_of};
use crate::disk::{Disk, StorePaths};
use crate::error::{Error, ErrorKind, Result};
use crate::generation::{
    Pin, Table, is_own_dir, kept_numbers, manifest_numbers, pinned_bytes, read_format, uuid_stated_in,
};
use crate::storage::Unreadable;

/// How many times the manifests are listed again because another process committed meanwhile.
const MAX_TRIES: u32 = 5;

/// The generation that is read, and kept on disk.
#[derive(Debug)]
pub(super) struct Newest {
    pub(super) manifest: Manifest,
    /// The table of the manifest. `None` if it has none, or if no generation with a usable table is left.
    pub(super) table: Option<Table>,
    pub(super) pin: Pin,
    /// Whether the manifest is one that a tag keeps. It names no tags.
    pub(super) is_kept: bool,
}

/// The number and the path of a manifest.
type Listed = (u64, PathBuf);

/// The generations that cannot be used, newest first: their files, and what is wrong with them.
type Unusable = Vec<(PathBuf, String)>;

/// Finds the newest generation that can be read, and adds what is lost with newer ones.
///
/// This is the newest generation whose manifest can be read, and whose table has at least one readable leaf in each
/// tree. If there is none, it is the newest whose table can be opened. If there is none of these either, it is the
/// newest readable manifest without its table, because the records in a manifest do not depend on the table.
pub(super) fn newest(disk: &dyn Disk, paths: &StorePaths, losses: &mut Vec<Loss>) -> Result<Newest> {
    let has_meta = is_own_dir(disk, &paths.meta_dir(), Rule::MetadataFile)?;
    is_own_dir(disk, &paths.storages_dir(), Rule::StorageFile)?;
    let stated = readable(read_format(disk, paths))?.ok();
    let has_kept = is_own_dir(disk, &paths.generations_dir(), Rule::MetadataFile)?;
    // The newest manifests, then those that tags keep. The last is tried first.
    let list = || -> Result<Vec<Listed>> {
        let kept = if has_kept { kept_numbers(disk, paths)? } else { Vec::new() };
        let newest = if has_meta { manifest_numbers(disk, paths)? } else { Vec::new() };
        let kept = kept.into_iter().map(|number| (number, paths.kept_manifest(number)));
        Ok(kept.chain(newest.into_iter().map(|number| (number, paths.manifest(number)))).collect())
    };
    let mut tries = 0;
    loop {
        let manifests = list()?;
        let mut found = find(disk, paths, &manifests, stated)?;
        if let (Err(_), Some(_)) = (&found, stated) {
            // FORMAT is of another store than all manifests.
            found = find(disk, paths, &manifests, None)?;
        }
        tries += 1;
        // A commit deletes manifests that were listed before.
        if tries < MAX_TRIES && list()? != manifests {
            continue;
        }
        let (source, unusable, what_is_lost) = found.map_err(|nothing| nothing.into_error(paths))?;
        let loss = |(path, why)| Loss::of_metadata(path, format!("{why}; {what_is_lost}"));
        losses.extend(unusable.into_iter().map(loss));
        return Ok(source);
    }
}

/// Separates what is damaged or cannot be read, which is the inner error. A newer version is not damage.
pub(super) fn readable<T>(read: Result<T>) -> Result<Result<T, Error>> {
    match read {
        Err(e) if e.kind() == ErrorKind::UnsupportedVersion => Err(e),
        read => Unreadable::Skip.damage_in(read),
    }
}

/// The generation, those that it takes the place of, and what is lost with them.
type Found = (Newest, Unusable, String);

/// Why no generation was found. Nothing then says which tensors the store has: a table does not say which of its entries
/// were removed or replaced later.
struct Nothing {
    unusable: Unusable,
    /// The failure to read a manifest, which may be whole.
    unread: Option<Error>,
}

impl Nothing {
    fn into_error(self, paths: &StorePaths) -> Error {
        let error = match (self.unread, self.unusable.first()) {
            (Some(unread), _) => unread.context("no manifest can be read"),
            (None, first) => {
                let why = match first {
                    Some((path, why)) => format!("no manifest can be read; {}: {why}", path.display()),
                    None => "there is no manifest".to_owned(),
                };
                let detail = format!("{why}; nothing else says which tensors the store has");
                Error::corrupt(&paths.meta_dir(), format::Error::new(Rule::MetadataFile, detail))
            }
        };
        error.context("salvage").advised(
            "nothing was made, and the elements are in storages/; put back meta/ from a copy of the store, and salvage \
             again",
        )
    }
}

/// Finds the newest usable generation among these. If no `uuid` is given, the newest readable manifest states it.
fn find(
    disk: &dyn Disk,
    paths: &StorePaths,
    manifests: &[Listed],
    mut uuid: Option<Uuid>,
) -> Result<Result<Found, Nothing>> {
    // The best generation so far, and how many newer ones are unusable.
    let mut partial: Option<(Newest, usize)> = None;
    let (mut unusable, mut unread) = (Unusable::new(), None);
    for (number, path) in manifests.iter().rev().cloned() {
        let (pin, manifest) = match readable(pinned_bytes(disk, path.clone()))? {
            Ok(None) => continue,
            Ok(Some((pin, bytes))) => {
                let decoded = Manifest::decode(&bytes, uuid_stated_in(&bytes), number);
                (Some(pin), readable(decoded.map_err(|e| Error::corrupt(&path, e)))?)
            }
            Err(e) => (None, Err(e)),
        };
        let (pin, manifest) = match (pin, manifest) {
            (Some(pin), Ok(manifest)) if *uuid.get_or_insert(manifest.uuid) == manifest.uuid => {
                (pin, manifest)
            }
            (_, Ok(manifest)) => {
                let other = uuid::Uuid::from_bytes(manifest.uuid);
                unusable.push((path, format!("the manifest of a different store, {other}")));
                continue;
            }
            (_, Err(e)) => {
                unusable.push((path, reason_of(&e)));
                unread = unread.or_else(|| e.io_error().is_some().then_some(e));
                continue;
            }
        };
        let opened = readable(Table::open_unchecked(disk, paths, &manifest).and_then(|table| {
            let damage = table.as_ref().map(Table::lost_tree).transpose()?.flatten();
            Ok((table, damage))
        }))?;
        let table_path = manifest.table.map(|table| paths.table(table.generation));
        let is_kept = path == paths.kept_manifest(number);
        let (table, why) = match opened {
            Ok((table, None)) => {
                return Ok(Ok((Newest { manifest, table, pin, is_kept }, unusable, returns_to(number))));
            }
            Ok((table, Some(damage))) => (table, reason_of(&damage)),
            Err(e) => (None, reason_of(&e)),
        };
        if partial.as_ref().is_none_or(|(best, _)| best.table.is_none() && table.is_some()) {
            partial = Some((Newest { manifest, table, pin, is_kept }, unusable.len()));
        }
        unusable.push((table_path.unwrap_or(path), why));
    }
    let Some((source, newer_count)) = partial else { return Ok(Err(Nothing { unusable, unread })) };
    let what_is_lost = match &source.table {
        Some(_) => {
            unusable.truncate(newer_count);
            returns_to(source.manifest.generation)
        }
        None => "what only this file records is lost".to_owned(),
    };
    Ok(Ok((source, unusable, what_is_lost)))
}

fn returns_to(number: u64) -> String {
    format!("generation {number} is read instead, so later commits are lost")
}
