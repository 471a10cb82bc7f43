//! Finds and pins generations on disk.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use stridemap_format::{self as format, Manifest, Uuid, limits};

use super::Generation;
use super::newest_watch::NewestWatch;
use super::pinned::Pin;
use super::store_dir::StoreDir;
use super::table::Table;
use crate::disk::{
    Access, Disk, LockMode, StorePaths, if_test_omits_step, is_not_regular, number_in, read_again,
    read_capped, step,
};
use crate::error::{Error, ErrorKind, IoContext, Result};

/// How many times a reader lists again because a writer deleted the manifest that it was opening. Each time, a commit
/// was made.
const MAX_TRIES: u32 = 1000;

/// How many listings are made before the highest number seen is used.
const MAX_LISTINGS: u32 = 10;

/// Finds, validates and pins the newest generation. Returns `known` if none is newer.
///
/// A newest manifest that does not validate is an error: using an older one would undo acknowledged commits.
pub(crate) fn newest(store: &StoreDir, known: Option<Arc<Generation>>) -> Result<Arc<Generation>> {
    Ok(newest_listed(store, known, settled_list)?.0)
}

/// Like [`newest`], and also returns the names in `meta/` that were listed.
pub(crate) fn newest_listed(
    store: &StoreDir,
    known: Option<Arc<Generation>>,
    list: List,
) -> Result<(Arc<Generation>, Vec<String>)> {
    let (disk, paths) = (&*store.disk, &store.paths);
    for tries in 0..MAX_TRIES {
        known.as_ref().map_or(Ok(()), |known| known.check_named(disk))?;
        let names = list(disk, paths)?;
        let Some(number) = numbers_among(&names, "man").pop() else {
            let detail = "no manifest; a store has at least one";
            let broken = format::Error::new(format::Rule::MetadataFile, detail);
            return Err(Error::corrupt(&paths.meta_dir(), broken));
        };
        // A listing made during a commit may even show only older manifests.
        if let Some(known) = known.as_ref().filter(|known| known.number() >= number) {
            return Ok((Arc::clone(known), names));
        }
        if let Some(generation) = pin(store, number)? {
            return Ok((Arc::new(generation), names));
        }
        if disk.never_changes() {
            let broken = format::Error::new(format::Rule::MetadataFile, "the newest manifest is missing");
            return Err(Error::corrupt(&paths.manifest(number), broken));
        }
        if tries > 10 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Err(Error::new(
        ErrorKind::Busy,
        format!(
            "open {}: the newest manifest was replaced {MAX_TRIES} times in a row; try again",
            paths.root().display()
        ),
    ))
}

/// Reads the newest generation from disk again. If it is still `known`, its manifest is compared with the one in
/// memory, so that memory does not hold two copies.
pub(crate) fn reread(store: &StoreDir, known: &Generation) -> Result<()> {
    let (disk, paths) = (&*store.disk, &store.paths);
    let manifest = known.manifest();
    if manifest_numbers(disk, paths)?.last() == Some(&known.number()) {
        let bytes = disk
            .open(&paths.manifest(known.number()), Access::Read)
            .and_then(|file| read_capped(&*file, limits::MAX_MANIFEST_BYTES));
        if bytes.is_ok_and(|bytes| manifest.is_encoded_in(&bytes)) {
            Table::of(disk, paths, manifest)?;
            return Table::of_history(disk, paths, manifest).map(drop);
        }
    }
    // There was another commit, or there is damage: open the store as a new reader would.
    newest(store, None).map(drop)
}

/// Returns the generations whose manifests exist, in ascending order.
pub(crate) fn manifest_numbers(disk: &dyn Disk, paths: &StorePaths) -> Result<Vec<u64>> {
    Ok(numbers_among(&list(disk, paths)?, "man"))
}

/// Returns the generations whose manifests are in `generations/`, in ascending order.
pub(crate) fn kept_numbers(disk: &dyn Disk, paths: &StorePaths) -> Result<Vec<u64>> {
    let dir = paths.generations_dir();
    Ok(numbers_among(&disk.list(&dir).doing("list", &dir)?, "man"))
}

/// Lists the names in `meta/`: [`list`] under the writers' lock, otherwise [`settled_list`].
pub(crate) type List = fn(&dyn Disk, &StorePaths) -> Result<Vec<String>>;

/// Lists the names in `meta/`.
pub(crate) fn list(disk: &dyn Disk, paths: &StorePaths) -> Result<Vec<String>> {
    let dir = paths.meta_dir();
    disk.list(&dir).doing("list", &dir)
}

/// Lists the names in `meta/` while other processes may commit. A commit during a listing may hide both the manifest
/// that it deletes and the one that it adds, so that an older one looks newest, or none exists. So two listings must
/// agree on the newest.
pub(crate) fn settled_list(disk: &dyn Disk, paths: &StorePaths) -> Result<Vec<String>> {
    let mut names = list(disk, paths)?;
    if_test_omits_step!("list-again", return Ok(names));
    if disk.never_changes() {
        return Ok(names);
    }
    for _ in 0..MAX_LISTINGS {
        let again = list(disk, paths)?;
        let [newest, newest_again] = [&names, &again].map(|names| numbers_among(names, "man").pop());
        if newest_again == newest && newest.is_some() {
            break;
        }
        // Under constant commits, the later listing may be the one that missed a name.
        if newest_again > newest {
            names = again;
        }
    }
    Ok(names)
}

/// Returns the numbers in the names with an extension, in ascending order.
pub(super) fn numbers_among(names: &[String], extension: &str) -> Vec<u64> {
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| number_in(name, extension)).collect();
    numbers.sort_unstable();
    numbers
}

/// Whether the newest generation has a record of a storage. `known` is the number of a generation that has one, and
/// is updated. While that generation is the newest, its manifest is not read again. While it is known to be, nothing is
/// listed.
pub(crate) fn newest_has_storage(
    store: &StoreDir,
    watch: &NewestWatch,
    id: u64,
    known: &AtomicU64,
) -> Result<bool> {
    let mut newest_known = watch.lock();
    let is_newest = newest_known.is_newest(known.load(Ordering::Relaxed)) || {
        let names = settled_list(&*store.disk, &store.paths)?;
        let newest = numbers_among(&names, "man").pop();
        if let Some(newest) = newest {
            newest_known.note_listing(store, newest, names.len());
        }
        newest == Some(known.load(Ordering::Relaxed))
    };
    drop(newest_known);
    if is_newest {
        return Ok(true);
    }
    let generation = newest(store, None)?;
    let is_as_new = step!("known-is-newer", generation.number() >= known.load(Ordering::Relaxed));
    if !is_as_new {
        // The listing was made during a commit.
        return Ok(true);
    }
    let has_storage = generation.storage(id)?.is_some();
    if has_storage {
        known.store(generation.number(), Ordering::Relaxed);
    }
    Ok(has_storage)
}

/// Opens one generation under a shared lock. Returns `None` if a collector holds or has deleted it.
pub(crate) fn pin(store: &StoreDir, number: u64) -> Result<Option<Generation>> {
    pin_at(store, number, store.paths.manifest(number), Manifest::decode)
}

/// Opens a generation that a tag names, like [`pin`].
pub(crate) fn pin_kept(store: &StoreDir, number: u64) -> Result<Option<Generation>> {
    pin_at(store, number, store.paths.kept_manifest(number), Manifest::decode_kept)
}

fn pin_at(
    store: &StoreDir,
    number: u64,
    path: PathBuf,
    decode: fn(&[u8], Uuid, u64) -> format::Result<Manifest>,
) -> Result<Option<Generation>> {
    let (disk, paths) = (&*store.disk, &store.paths);
    let Some((pin, bytes)) = pinned_bytes(disk, path.clone())? else { return Ok(None) };
    let decoded = decode(&bytes, store.uuid, number);
    let manifest = decoded.map_err(|e| Error::corrupt(&path, e))?;
    let table = Table::of(disk, paths, &manifest)?.map(Arc::new);
    let history = Table::of_history(disk, paths, &manifest)?.map(Arc::new);
    Ok(Some(Generation::new(manifest, table, history, pin, false)))
}

/// Reads the bytes of a manifest under a shared lock. Returns `None` if a collector holds or has deleted it.
pub(crate) fn pinned_bytes(disk: &dyn Disk, path: PathBuf) -> Result<Option<(Pin, Vec<u8>)>> {
    let file = match read_again(|| disk.open(&path, Access::Read)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) if is_not_regular(&e) => {
            return Err(Error::corrupt(
                &path,
                format::Error::new(format::Rule::ManifestFrame, e.to_string()),
            ));
        }
        opened => opened.doing("open manifest", &path)?,
    };
    let try_lock = || file.try_lock(LockMode::Shared);
    if !step!("pin-manifest", read_again(try_lock)).doing("open manifest", &path)? {
        return Ok(None);
    }
    let pin = read_again(|| Pin::new(&file, path.clone())).doing("open manifest", &path)?;
    // A collector may have been faster.
    let is_named = || pin.is_named(disk);
    if !step!("pin-is-named", is_named().or_else(|_| is_named())?) {
        return Ok(None);
    }
    let bytes =
        read_again(|| read_capped(&*file, limits::MAX_MANIFEST_BYTES)).doing("open manifest", &path)?;
    Ok(Some((pin, bytes)))
}

/// Returns the generation that a manifest states, which may be damaged. It follows the uuid.
pub(crate) fn generation_stated_in(bytes: &[u8]) -> Option<u64> {
    let (&first, rest) = bytes.get(40..)?.split_first()?;
    match first {
        251 => rest.first_chunk().map(|bytes| u16::from_le_bytes(*bytes).into()),
        252 => rest.first_chunk().map(|bytes| u32::from_le_bytes(*bytes).into()),
        253 => rest.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)),
        small => Some(small.into()),
    }
}

/// Returns the uuid that a manifest states, which may be damaged. Its body begins with it.
pub(crate) fn uuid_stated_in(bytes: &[u8]) -> Uuid {
    bytes.get(24..40).and_then(|uuid| uuid.try_into().ok()).unwrap_or_default()
}
