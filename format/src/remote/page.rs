//! Pages of the index of a remote: files by key, with their segments.

use std::collections::BTreeMap;

use serde::de::SeqAccess;
use serde::{Deserialize, Deserializer, Serialize};

use super::{FileKey, Segment};
use crate::limits::{MAX_PAGE_BYTES, MAX_PAGE_ENTRIES};
use crate::{Error, Result, Rule, codec};

/// The files of a page, or of a whole index, with their segments in order. A file without bytes has no segments.
pub type Entries = BTreeMap<FileKey, Vec<Segment>>;

/// The length in bytes that a writer's page does not exceed, unless it has only one file.
pub const PAGE_TARGET_BYTES: usize = 16 * 1024;

/// A page of an index, as its remote manifest states it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// The first file of the page.
    pub first: FileKey,
    /// The number of files of the page.
    pub entry_count: u64,
    /// Where the bytes of the page are.
    pub place: Place,
}

/// Where the bytes of a page are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Place {
    /// In the remote manifest itself.
    Inline(#[serde(with = "codec::bytes")] Vec<u8>),
    /// In an object.
    Stored(Segment),
}

/// The bytes of an inline page, as they are decoded.
#[derive(Deserialize)]
struct InlineBytes(#[serde(with = "codec::bytes")] Vec<u8>);

impl<'de> Deserialize<'de> for Place {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        codec::choice(deserializer)
    }
}

impl<'de> codec::Choice<'de> for Place {
    fn decode_fields<A: SeqAccess<'de>>(number: u64, fields: &mut A) -> std::result::Result<Self, A::Error> {
        match number {
            0 => codec::field(fields).map(|InlineBytes(bytes)| Place::Inline(bytes)),
            1 => codec::field(fields).map(Place::Stored),
            _ => Err(codec::refuse(Rule::RemoteChoice, "it has an unknown place of a page")),
        }
    }
}

/// The decoded bytes of a page.
#[derive(Serialize, Deserialize)]
struct Files(#[serde(deserialize_with = "codec::page_entries")] Entries);

/// Encodes a page.
///
/// # Errors
/// [`Rule::IndexPage`] for a page without files, of more than 8192 files or of more than 4 MiB; [`Rule::Segment`] for a
/// segment that no object can have. Bytes that are returned can be decoded.
pub fn encode_page(entries: &Entries) -> Result<Vec<u8>> {
    check_entries(entries)?;
    codec::encode(entries, MAX_PAGE_BYTES, Rule::IndexPage)
}

/// Decodes the bytes of a page. [`RemoteManifest::decode_page`](super::RemoteManifest::decode_page) also checks what the
/// remote manifest states of the page.
///
/// # Errors
/// [`Rule::IndexPage`], [`Rule::Canonical`], [`Rule::RemoteChoice`], [`Rule::Segment`].
pub fn decode_page(bytes: &[u8]) -> Result<Entries> {
    check_length(bytes.len() as u64)?;
    let Files(entries) = codec::decode(bytes)?;
    check_entries(&entries)?;
    Ok(entries)
}

/// Encodes the files of an index as pages of at most [`PAGE_TARGET_BYTES`], or of one file. Each page is returned with
/// its first file and its number of files.
///
/// # Errors
/// Those of [`encode_page`], which an index without files does not cause: it has no pages.
///
/// ```
/// # use stridemap_format::remote::{Entries, FileKey, FileKind, Segment, decode_page, encode_pages};
/// let file = |number| FileKey { kind: FileKind::Storage, number };
/// let segment = Segment {
///     object: [7; 32],
///     offset_bytes: 0,
///     length_bytes: 100,
///     digests_offset_bytes: 0,
///     check: [0; 16],
/// };
/// let entries: Entries = (1..1000).map(|id| (file(id), vec![segment])).collect();
/// let pages = encode_pages(&entries)?;
/// assert_eq!(pages.len(), 4);
/// assert_eq!(pages[0].0, file(1));
/// assert_eq!(decode_page(&pages[0].2)?.len() as u64, pages[0].1);
/// # Ok::<(), stridemap_format::Error>(())
/// ```
pub fn encode_pages(entries: &Entries) -> Result<Vec<(FileKey, u64, Vec<u8>)>> {
    let mut pages = Vec::new();
    let (mut page, mut length) = (Entries::new(), 0usize);
    for (key, segments) in entries {
        let added = codec::encode(&(key, segments), MAX_PAGE_BYTES, Rule::IndexPage)?.len();
        // The number of files before them takes at most 3 bytes.
        if !page.is_empty() && length.saturating_add(added).saturating_add(3) > PAGE_TARGET_BYTES {
            push_page(&mut pages, &std::mem::take(&mut page))?;
            length = 0;
        }
        page.insert(*key, segments.clone());
        length = length.saturating_add(added);
    }
    push_page(&mut pages, &page)?;
    Ok(pages)
}

fn push_page(pages: &mut Vec<(FileKey, u64, Vec<u8>)>, page: &Entries) -> Result<()> {
    if let Some(first) = page.keys().next() {
        pages.push((*first, page.len() as u64, encode_page(page)?));
    }
    Ok(())
}

/// Checks the number of files of a page, and their segments.
fn check_entries(entries: &Entries) -> Result<()> {
    check_count(entries.len() as u64)?;
    entries.values().flatten().try_for_each(Segment::validate)
}

/// Checks the length of a page (R-8).
pub(super) fn check_length(length_bytes: u64) -> Result<()> {
    if length_bytes > MAX_PAGE_BYTES {
        return Err(Error::new(Rule::IndexPage, format!("a page of {length_bytes} bytes")));
    }
    Ok(())
}

/// Checks the number of files of a page (R-8).
pub(super) fn check_count(entry_count: u64) -> Result<()> {
    if entry_count == 0 || entry_count > MAX_PAGE_ENTRIES as u64 {
        return Err(Error::new(Rule::IndexPage, format!("a page of {entry_count} files")));
    }
    Ok(())
}
