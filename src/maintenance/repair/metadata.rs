//! Finds the newest generation that can be read.

use std::io;
use std::path::Path;

use stridemap_format::{self as format, Manifest, Rule, Uuid, limits};

use super::{PUT_BACK_ADVICE, Repair, detail_of, has_dir};
use crate::disk::{Access, Disk, StorePaths, is_not_regular, read_again, read_capped};
use crate::error::{Error, ErrorKind, Result};
use crate::generation::{self, Table, numbers_among};

/// Ids and generations count from 1, so no real store reaches this.
pub(super) const NUMBER_LIMIT: u64 = 1 << 62;

/// The generation whose content is kept.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) uuid: Uuid,
    /// Whether FORMAT must be written again.
    pub(super) must_rewrite_format: bool,
    pub(super) manifest: Manifest,
    /// The table of the manifest. `None` if it has none, or if no generation with a readable table is left.
    pub(super) table: Option<Table>,
    /// Whether this is the newest generation, with its table. If it is, files of storages that it does not have are
    /// garbage.
    pub(super) is_newest: bool,
    /// The highest number of a manifest or table, readable or not.
    pub(super) highest: u64,
}

/// The number of a manifest, and its content or why it cannot be read.
type Numbered = (u64, Result<Manifest>);

/// The manifests of a store, the newest first.
pub(super) struct Manifests {
    pub(super) uuid: Uuid,
    must_rewrite_format: bool,
    list: Vec<Numbered>,
    highest: u64,
}

/// Reads FORMAT and the manifests, and records what is wrong with FORMAT.
pub(super) fn manifests(disk: &dyn Disk, paths: &StorePaths, repair: &mut Repair) -> Result<Manifests> {
    let format_uuid = read_format_uuid(disk, paths)?;
    has_dir(disk, &paths.meta_dir(), PUT_BACK_ADVICE)?;
    // A missing `meta/` is reported by `format_uuid`, unless FORMAT is missing too.
    let names = match (disk.list(&paths.meta_dir()), &format_uuid) {
        (Err(_), Err(e)) if e.kind() == ErrorKind::NotAStore => return Err(e.clone()),
        (names, _) => names.map_err(|e| Error::io("list", &paths.meta_dir(), e))?,
    };
    let (numbers, tables) = (numbers_among(&names, "man"), numbers_among(&names, "tab"));
    if numbers.is_empty()
        && let Err(e) = &format_uuid
        && e.kind() == ErrorKind::NotAStore
    {
        return Err(e.clone());
    }
    let highest = numbers.iter().chain(&tables).copied().max().unwrap_or_default();
    if highest >= NUMBER_LIMIT {
        // The number is refused well before the last one, so that commits can be made after the repair.
        let name =
            if numbers.last() == Some(&highest) { paths.manifest(highest) } else { paths.table(highest) };
        let message = format!(
            "repair {}: {}: no store reaches that generation; move the file away, and repair again",
            paths.root().display(),
            name.display()
        );
        return Err(Error::new(ErrorKind::LimitExceeded, message));
    }
    let mut list: Vec<Numbered> = Vec::new();
    for &number in numbers.iter().rev() {
        list.extend(read_manifest(disk, paths, number)?.map(|manifest| (number, manifest)));
    }
    let uuid = uuid_of(&format_uuid, &list).ok_or_else(|| nothing_left(paths, &list))?;
    let written_again = "written again from the uuid of the manifests";
    let detail = match format_uuid {
        Ok(stated) if stated == uuid => None,
        Ok(_) => Some(format!("it belongs to a different store; {written_again}")),
        Err(e) => Some(format!("{written_again}: {}", detail_of(&e))),
    };
    let must_rewrite_format = detail.is_some();
    if let Some(detail) = detail {
        repair.remedy(paths.format_file(), detail);
    }
    Ok(Manifests { uuid, must_rewrite_format, list, highest })
}

/// Finds the newest generation that can be read, and records what is wrong with FORMAT and with newer generations.
///
/// This is the newest generation whose manifest can be read, and whose table has at least one readable leaf in each
/// tree. If there is none, it is the newest whose table can be opened. If there is none of these either, it is the
/// newest readable manifest without its table, because the records in a manifest do not depend on the table.
pub(super) fn read(disk: &dyn Disk, paths: &StorePaths, repair: &mut Repair) -> Result<Source> {
    let Manifests { uuid, must_rewrite_format, list, highest } = manifests(disk, paths, repair)?;
    let newest = list.first().map(|(number, _)| *number);
    let source = |manifest: Manifest, table: Option<Table>| {
        let is_newest = newest == Some(manifest.generation);
        Source { uuid, must_rewrite_format, manifest, table, is_newest, highest }
    };
    // The best generation so far, and how many newer ones are unusable.
    let mut partial: Option<(Manifest, Option<Table>, usize)> = None;
    let mut unusable = Vec::new();
    for (number, manifest) in list {
        let manifest = match manifest {
            Ok(manifest) if manifest.uuid == uuid => manifest,
            Ok(manifest) => {
                let other = uuid::Uuid::from_bytes(manifest.uuid);
                unusable
                    .push((paths.manifest(number), format!("the manifest of a different store, {other}")));
                continue;
            }
            Err(e) => {
                unusable.push((paths.manifest(number), detail_of(&e)));
                continue;
            }
        };
        let opened = Table::open_unchecked(disk, paths, &manifest).and_then(|table| {
            let damage = table.as_ref().map(Table::lost_tree).transpose()?.flatten();
            Ok((table, damage))
        });
        let (table, why) = match opened {
            Ok((table, None)) => {
                repair.lose_files(unusable, &returns_to(number));
                return Ok(source(manifest, table));
            }
            Ok((table, Some(damage))) => (table, format!("{} ({})", damage.detail(), damage.rule())),
            Err(e) if e.format_error().is_none() || e.kind() == ErrorKind::UnsupportedVersion => {
                return Err(e);
            }
            Err(e) => (None, detail_of(&e)),
        };
        let table_path = paths.table(manifest.table.map_or(0, |table| table.generation));
        if partial.as_ref().is_none_or(|(_, best, _)| best.is_none() && table.is_some()) {
            partial = Some((manifest, table, unusable.len()));
        }
        unusable.push((table_path, why));
    }
    let (manifest, table, newer_count) = partial.ok_or_else(|| nothing_left(paths, &[]))?;
    if table.is_some() {
        unusable.truncate(newer_count);
        repair.lose_files(unusable, &returns_to(manifest.generation));
        return Ok(source(manifest, table));
    }
    repair.lose_files(unusable, "the changes that only this file records are lost");
    repair.remedy(paths.manifest(manifest.generation), "kept without its table");
    Ok(Source { is_newest: false, ..source(Manifest { table: None, ..manifest }, None) })
}

fn returns_to(number: u64) -> String {
    format!("returns to generation {number}, so later commits are lost")
}

/// Returns the error for a store without a readable manifest. In that case nothing says which tensors the store has:
/// a table does not say which of its entries were removed or replaced later.
fn nothing_left(paths: &StorePaths, manifests: &[Numbered]) -> Error {
    let why = match manifests.first() {
        Some((number, Err(e))) => {
            format!("no manifest can be read; that of generation {number}: {}", detail_of(e))
        }
        _ => "there is no manifest".to_owned(),
    };
    let detail = format!("{why}; nothing else says which tensors the store has");
    let error = Error::corrupt(&paths.meta_dir(), format::Error::new(Rule::MetadataFile, detail));
    error.context("repair").advised(
        "nothing was changed, and the elements are in storages/; put back meta/ from a copy of the store, and \
         repair again",
    )
}

fn read_format_uuid(disk: &dyn Disk, paths: &StorePaths) -> Result<Result<Uuid>> {
    match generation::check_store(disk, paths) {
        // FORMAT may be whole: a missing directory is repaired.
        Err(e) if e.broken_path() == Some(&paths.storages_dir()) => Ok(generation::read_format(disk, paths)),
        Err(e) if e.broken_path() == Some(&paths.meta_dir()) => Err(e),
        Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::NotAStore) => Ok(Err(e)),
        Err(e) => Err(e),
        Ok(uuid) => Ok(Ok(uuid)),
    }
}

/// Returns the uuid in FORMAT if a manifest has it too, and otherwise that of the newest manifest that can be read.
fn uuid_of(format_uuid: &Result<Uuid>, manifests: &[Numbered]) -> Option<Uuid> {
    let mut stated = manifests.iter().filter_map(|(_, manifest)| Some(manifest.as_ref().ok()?.uuid));
    let newest = stated.next()?;
    let confirmed =
        format_uuid.as_ref().ok().filter(|uuid| **uuid == newest || stated.any(|other| other == **uuid));
    Some(*confirmed.unwrap_or(&newest))
}

/// Reads a manifest. Returns `None` if it was deleted since it was listed.
fn read_manifest(disk: &dyn Disk, paths: &StorePaths, number: u64) -> Result<Option<Result<Manifest>>> {
    let path = paths.manifest(number);
    let file = match read_again(|| disk.open(&path, Access::Read)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) if is_not_regular(&e) => {
            let broken = format::Error::new(Rule::ManifestFrame, e.to_string());
            return Ok(Some(Err(Error::corrupt(&path, broken))));
        }
        opened => opened.map_err(|e| Error::io("open manifest", &path, e))?,
    };
    let bytes = read_again(|| read_capped(&*file, limits::MAX_MANIFEST_BYTES));
    let bytes = bytes.map_err(|e| Error::io("read", &path, e))?;
    // Accept the uuid that it states: the body begins with it, and the digest covers it. The caller compares it.
    let uuid = bytes.get(24..40).and_then(|uuid| uuid.try_into().ok()).unwrap_or_default();
    match Manifest::decode(&bytes, uuid, number) {
        // The manifest has a newer version, and is not damaged.
        Err(e) if e.rule() == Rule::Version => Err(Error::corrupt(&path, e)),
        decoded => Ok(Some(decoded.map_err(|e| Error::corrupt(&path, e)))),
    }
}

pub(super) fn exists(disk: &dyn Disk, path: &Path) -> Result<bool> {
    match read_again(|| disk.stat(path)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        found => found.map(|_| true).map_err(|e| Error::io("examine", path, e)),
    }
}
