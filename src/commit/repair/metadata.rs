//! The metadata as far as it can be read: FORMAT, manifests and tables, each with a flipped bit put right.

use std::io;
use std::path::Path;

use stridemap_format::{self as format, Manifest, Marker, Rule, TableRef, Uuid, limits};

use super::Repair;
use super::plan::no_directory;
use crate::commit::flip::mended;
use crate::commit::recover::manifest_numbers;
use crate::commit::table::Table;
use crate::disk::{Access, Disk, StorePaths, number_in, read_capped};
use crate::error::{Error, ErrorKind, Result};

/// Of how many damaged manifests, from the newest on, each bit is tried: that takes seconds for a large one.
const MOST_TRIED: usize = 4;

/// A store gives ids and generations from 1 on: none comes near this.
pub(super) const MOST_NUMBERS: u64 = 1 << 62;

/// Where the content of a store is to be taken from.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) uuid: Uuid,
    /// Whether FORMAT is to be written again.
    pub(super) is_marker_lost: bool,
    /// A manifest, as it was; one that only refers to a table when no manifest can be read.
    pub(super) manifest: Manifest,
    pub(super) table: Option<Table>,
    /// Whether the newest manifest and its table are as they should be, but perhaps for entries.
    pub(super) is_newest_whole: bool,
    /// Whether the manifest is the newest, as it stands or mended: what no name leads to is garbage then.
    pub(super) is_newest: bool,
    /// The highest number of a manifest or table, whatever is in it.
    pub(super) highest: u64,
}

/// A manifest's file.
enum Read {
    Whole(Manifest),
    /// What it was, and what is wrong with it.
    Mended(Manifest, Error),
    Lost(Error),
}

/// Reads what can be read, and says what is wrong.
pub(super) fn read(disk: &dyn Disk, paths: &StorePaths, repair: &mut Repair) -> Result<Source> {
    let marker = read_marker(disk, paths)?;
    let dir = paths.meta_dir();
    if matches!(disk.is_dir(&dir), Ok(false)) {
        // A link could lead anywhere, and files would be written and moved there.
        return Err(no_directory(&dir, "not a directory of its own; put the directory back"));
    }
    let numbers = match (manifest_numbers(disk, paths), &marker) {
        (Err(_), Err(e)) if e.kind() == ErrorKind::NotAStore => return Err(e.clone()),
        (numbers, _) => numbers?,
    };
    let tables = numbers_of(&disk.list(&dir).map_err(|e| Error::io("list", &dir, e))?, "tab");
    if numbers.is_empty() && tables.is_empty() {
        return Err(match marker {
            Err(e) if e.kind() == ErrorKind::NotAStore => e,
            _ => nothing_left(paths),
        });
    }
    let highest = numbers.iter().chain(&tables).copied().max().unwrap_or_default();
    if highest >= MOST_NUMBERS {
        // The next one would be the last, or near it, and no commit could be made after the repair.
        let name =
            if numbers.last() == Some(&highest) { paths.manifest(highest) } else { paths.table(highest) };
        let message = format!(
            "repair {}: {}: no store comes to that generation; move the file away, and repair again",
            paths.root().display(),
            name.display()
        );
        return Err(Error::new(ErrorKind::LimitExceeded, message));
    }
    let (mut manifests, mut tried) = (Vec::new(), 0);
    for &number in numbers.iter().rev() {
        let read = read_manifest(disk, paths, number, tried < MOST_TRIED)?;
        tried += usize::from(!matches!(read, Some(Read::Whole(_))));
        manifests.extend(read.map(|read| (number, read)));
    }
    let uuid = uuid_of(disk, paths, &marker, &manifests, &tables).ok_or_else(|| nothing_left(paths))?;
    let is_marker_lost = match marker {
        Ok(stated) if stated == uuid => false,
        Ok(_) => {
            repair.remedy(paths.marker(), "another store's; written again from the uuid of the manifests");
            true
        }
        Err(e) => {
            repair
                .remedy(paths.marker(), format!("written again from the uuid of the metadata: {}", said(&e)));
            true
        }
    };
    let mut source = choose(disk, paths, uuid, manifests, &tables, repair)?;
    (source.is_marker_lost, source.highest) = (is_marker_lost, highest);
    Ok(source)
}

/// The manifest to stand on: the newest that can be read and whose table can; else the newest that can be read, without its
/// table; else what a table alone says.
fn choose(
    disk: &dyn Disk,
    paths: &StorePaths,
    uuid: Uuid,
    manifests: Vec<(u64, Read)>,
    tables: &[u64],
    repair: &mut Repair,
) -> Result<Source> {
    let mut without_table = None;
    let newest = manifests.first().map(|(number, _)| *number);
    let mut steps = Vec::new();
    for (number, read) in manifests {
        let path = paths.manifest(number);
        let is_newest = newest == Some(number);
        let (manifest, flipped) = match read {
            Read::Lost(e) => {
                steps.push((path, format!("what it says is lost: {}", said(&e))));
                continue;
            }
            Read::Whole(manifest) | Read::Mended(manifest, _) if manifest.uuid != uuid => {
                let detail =
                    format!("the manifest of another store, {}", uuid::Uuid::from_bytes(manifest.uuid));
                steps.push((path, detail));
                continue;
            }
            Read::Whole(manifest) => (manifest, None),
            Read::Mended(manifest, e) => (manifest, Some(e)),
        };
        let is_mended = flipped.is_some();
        let opened = match manifest.table {
            None => Ok((None, None)),
            Some(reference) => open_table(disk, paths, uuid, reference, manifest.next_storage_id)
                .map(|(table, wrong)| (Some(table), wrong)),
        };
        match opened {
            Ok((table, wrong)) => {
                give_up_newer(steps, number, repair);
                if let Some(e) = flipped {
                    repair.remedy(&path, format!("mended, its digest confirms it: {}", said(&e)));
                }
                let is_table_whole = wrong.is_none();
                if let (Some(wrong), Some(table)) = (wrong, &table) {
                    repair.remedy(table.path(), format!("written again: {}", said(&wrong)));
                }
                let is_newest_whole = is_newest && is_table_whole && !is_mended;
                return Ok(source(uuid, manifest, table, (is_newest_whole, is_newest)));
            }
            Err(e) if e.broken().is_none() => return Err(e),
            Err(e) => {
                steps.push((paths.table(manifest.table.map_or(0, |table| table.generation)), said(&e)));
                without_table.get_or_insert((number, manifest));
            }
        }
    }
    if let Some((number, manifest)) = without_table {
        let manifest = Manifest { table: None, ..manifest };
        for (path, reason) in steps {
            let reason = format!("{reason}; all that only this file says is given up");
            repair.losses.push(super::Loss { path, reason, names: Vec::new() });
        }
        repair.remedy(paths.manifest(number), "what it says without its table is kept");
        return Ok(source(uuid, manifest, None, (false, false)));
    }
    for &number in tables.iter().rev() {
        let Ok(table) = Table::open_alone(disk, paths, uuid, number) else { continue };
        give_up_newer(steps, number, repair);
        let reason = format!(
            "no manifest can be read: the store's attributes are given up, and all that was committed after generation {number}"
        );
        repair.losses.push(super::Loss { path: paths.meta_dir(), reason, names: Vec::new() });
        repair.remedy(table.path(), "the newest table that can be read: its content is kept");
        let manifest = Manifest { generation: number, ..Manifest::first(uuid) };
        return Ok(source(uuid, manifest, Some(table), (false, false)));
    }
    Err(nothing_left(paths))
}

fn source(
    uuid: Uuid,
    manifest: Manifest,
    table: Option<Table>,
    (is_newest_whole, is_newest): (bool, bool),
) -> Source {
    Source { uuid, is_marker_lost: false, manifest, table, is_newest_whole, is_newest, highest: 0 }
}

/// What cannot be read is given up for an older generation.
fn give_up_newer(steps: Vec<(std::path::PathBuf, String)>, number: u64, repair: &mut Repair) {
    for (path, reason) in steps {
        let reason = format!("{reason}; steps back to generation {number}, and what came after is given up");
        repair.losses.push(super::Loss { path, reason, names: Vec::new() });
    }
}

fn nothing_left(paths: &StorePaths) -> Error {
    let detail = "neither a manifest nor a table can be read; nothing can be repaired";
    Error::corrupt(&paths.meta_dir(), format::Error::new(Rule::ManifestFrame, detail))
}

/// An error's words without its path, which is said before.
fn said(error: &Error) -> String {
    error
        .broken()
        .map_or_else(|| error.to_string(), |broken| format!("{} ({})", broken.detail(), broken.rule()))
}

fn read_marker(disk: &dyn Disk, paths: &StorePaths) -> Result<Result<Uuid>> {
    match crate::commit::read_marker(disk, paths) {
        // What was whole but for a directory is looked at elsewhere.
        Err(e) if e.broken_path() == Some(&paths.storages_dir()) => Ok(marker_alone(disk, paths)),
        Err(e) if e.broken_path() == Some(&paths.meta_dir()) => Err(e),
        Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::NotAStore) => Ok(Err(e)),
        Err(e) => Err(e),
        Ok(uuid) => Ok(Ok(uuid)),
    }
}

fn marker_alone(disk: &dyn Disk, paths: &StorePaths) -> Result<Uuid> {
    let path = paths.marker();
    let failed = |e| Error::io("read", &path, e);
    let file = disk.open(&path, Access::Read).map_err(failed)?;
    let bytes = read_capped(&*file, Marker::LENGTH as u64).map_err(failed)?;
    Marker::decode(&bytes).map(|marker| marker.uuid).map_err(|e| Error::corrupt(&path, e))
}

/// That of FORMAT, unless every manifest says another; else that of the newest manifest; else that of the newest table.
fn uuid_of(
    disk: &dyn Disk,
    paths: &StorePaths,
    marker: &Result<Uuid>,
    manifests: &[(u64, Read)],
    tables: &[u64],
) -> Option<Uuid> {
    let readable = manifests.iter().filter_map(|(_, read)| match read {
        Read::Whole(manifest) | Read::Mended(manifest, _) => Some(manifest.uuid),
        Read::Lost(_) => None,
    });
    let stated: Vec<Uuid> = readable.collect();
    if let Ok(uuid) = marker
        && (stated.is_empty() || stated.contains(uuid))
    {
        return Some(*uuid);
    }
    let newest = stated.first().copied();
    newest.or_else(|| tables.iter().rev().find_map(|&number| Table::uuid_in(disk, &paths.table(number))))
}

/// None for one that was collected since it was listed.
fn read_manifest(disk: &dyn Disk, paths: &StorePaths, number: u64, is_tried: bool) -> Result<Option<Read>> {
    let path = paths.manifest(number);
    let file = match disk.open(&path, Access::Read) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
            let broken = format::Error::new(Rule::ManifestFrame, e.to_string());
            return Ok(Some(Read::Lost(Error::corrupt(&path, broken))));
        }
        opened => opened.map_err(|e| Error::io("open manifest", &path, e))?,
    };
    let bytes = read_capped(&*file, limits::MAX_MANIFEST_BYTES).map_err(|e| Error::io("read", &path, e))?;
    let decode = |bytes: &[u8]| decode(bytes, number);
    Ok(Some(match decode(&bytes) {
        Ok(manifest) => Read::Whole(manifest),
        // Of a newer version, and whole: nothing of this is damaged.
        Err(e) if e.rule() == Rule::Version => return Err(Error::corrupt(&path, e)),
        Err(e) => {
            let error = Error::corrupt(&path, e);
            let whole = without_end(&bytes).and_then(|bytes| decode(bytes).ok());
            let mend = || mended(&bytes, |bytes| decode(bytes).ok());
            let whole = whole.or_else(|| is_tried.then(mend).flatten());
            whole.map_or_else(|| Read::Lost(error.clone()), |whole| Read::Mended(whole, error.clone()))
        }
    }))
}

/// A manifest of whatever store: its own digest vouches for the uuid in it, with which its body begins.
fn decode(bytes: &[u8], number: u64) -> format::Result<Manifest> {
    let uuid = bytes.get(24..40).and_then(|uuid| uuid.try_into().ok()).unwrap_or_default();
    Manifest::decode(bytes, uuid, number)
}

/// As many bytes as the length of the body asks for, when there are more.
fn without_end(bytes: &[u8]) -> Option<&[u8]> {
    let stated = u64::from_le_bytes(bytes.get(16..24)?.try_into().ok()?);
    bytes.get(..usize::try_from(stated.checked_add(40)?).ok()?)
}

/// The table of a reference, and what is wrong with it all the same.
fn open_table(
    disk: &dyn Disk,
    paths: &StorePaths,
    uuid: Uuid,
    reference: TableRef,
    next_storage_id: u64,
) -> Result<(Table, Option<Error>)> {
    match Table::open(disk, paths, uuid, reference, next_storage_id) {
        Ok(table) => Ok((table, None)),
        Err(e) if e.kind() == ErrorKind::UnsupportedVersion => Err(e),
        Err(e) => match Table::open_mended(disk, paths, uuid, reference, next_storage_id) {
            Some(table) => Ok((table, Some(e))),
            None => Err(e),
        },
    }
}

/// The numbers in the names with an extension, ascending.
pub(super) fn numbers_of(names: &[String], extension: &str) -> Vec<u64> {
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| number_in(name, extension)).collect();
    numbers.sort_unstable();
    numbers
}

/// Whether a file is there.
pub(super) fn exists(disk: &dyn Disk, path: &Path) -> bool {
    !matches!(disk.stat(path), Err(e) if e.kind() == io::ErrorKind::NotFound)
}
