//! The index of a remote: which segments of objects make up each file of the store.

use std::collections::BTreeSet;
use std::path::Path;

use bytes::Bytes;
use stridemap::{Error, Result};
use stridemap_format::remote::{
    Entries, FileKey, ObjectName, Page, Place, Segment, decode_page, encode_pages, object_path,
};
use stridemap_format::{Error as FormatError, Rule};

/// How many bytes of pages a remote manifest contains at most. More are put into an object.
const MAX_INLINE_BYTES: usize = 16 * 1024;

/// Reads pages that are in objects, and checks their bytes.
pub(crate) type FetchPages<'a> = &'a dyn Fn(&[Segment]) -> Result<Vec<Bytes>>;

/// The pages of an index, which are read when they are needed.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    pages: Vec<IndexPage>,
}

#[derive(Clone, Debug)]
struct IndexPage {
    first: FileKey,
    place: Place,
    entry_count: u64,
    entries: Option<Entries>,
    is_changed: bool,
}

impl Index {
    pub(crate) fn new(pages: &[Page]) -> Self {
        let open = |page: &Page| IndexPage {
            first: page.first,
            place: page.place.clone(),
            entry_count: page.entry_count,
            entries: None,
            is_changed: false,
        };
        Index { pages: pages.iter().map(open).collect() }
    }

    /// Returns the segments of a file, or `None` if the remote does not have it.
    pub(crate) fn get(&mut self, key: FileKey, fetch: FetchPages<'_>) -> Result<Option<&[Segment]>> {
        let Some(at) = self.page_of(key) else { return Ok(None) };
        self.load(at..at + 1, fetch)?;
        let entries = self.pages.get(at).and_then(|page| page.entries.as_ref());
        Ok(entries.and_then(|entries| entries.get(&key)).map(Vec::as_slice))
    }

    /// Replaces the segments of a file, or removes it. Returns the segments that it had.
    pub(crate) fn set(
        &mut self,
        key: FileKey,
        segments: Option<Vec<Segment>>,
        fetch: FetchPages<'_>,
    ) -> Result<Vec<Segment>> {
        let at = match (self.page_of(key), self.pages.is_empty(), &segments) {
            (Some(at), ..) => at,
            (None, _, None) => return Ok(Vec::new()),
            (None, true, Some(_)) => {
                let (place, entries) = (Place::Inline(Vec::new()), Some(Entries::new()));
                self.pages.push(IndexPage { first: key, place, entry_count: 0, entries, is_changed: true });
                0
            }
            (None, false, Some(_)) => 0,
        };
        self.load(at..at + 1, fetch)?;
        let Some(page) = self.pages.get_mut(at) else { return Ok(Vec::new()) };
        let entries = page.entries.get_or_insert_default();
        page.is_changed = true;
        let before = match segments {
            Some(segments) => entries.insert(key, segments),
            None => entries.remove(&key),
        };
        Ok(before.unwrap_or_default())
    }

    /// Returns all files with a key in a range, in ascending order.
    pub(crate) fn all(
        &mut self,
        fetch: FetchPages<'_>,
    ) -> Result<impl Iterator<Item = (FileKey, &[Segment])>> {
        self.load(0..self.pages.len(), fetch)?;
        let entries = self.pages.iter().filter_map(|page| page.entries.as_ref());
        Ok(entries.flatten().map(|(key, segments)| (*key, segments.as_slice())))
    }

    /// Returns the keys from `first` to `last`, in ascending order.
    pub(crate) fn keys(
        &mut self,
        first: FileKey,
        last: FileKey,
        fetch: FetchPages<'_>,
    ) -> Result<Vec<FileKey>> {
        let start = self.page_of(first).unwrap_or(0);
        let end = self.pages.partition_point(|page| page.first <= last);
        if start >= end {
            return Ok(Vec::new());
        }
        self.load(start..end, fetch)?;
        let pages = self.pages.get(start..end).unwrap_or_default();
        let entries = pages.iter().filter_map(|page| page.entries.as_ref());
        Ok(entries.flat_map(|entries| entries.range(first..=last).map(|(key, _)| *key)).collect())
    }

    /// Returns the objects that the index refers to, including those of its own pages.
    pub(crate) fn objects(&mut self, fetch: FetchPages<'_>) -> Result<BTreeSet<ObjectName>> {
        let mut objects: BTreeSet<ObjectName> = self.stored_pages().map(|segment| segment.object).collect();
        for (_, segments) in self.all(fetch)? {
            objects.extend(segments.iter().map(|segment| segment.object));
        }
        Ok(objects)
    }

    fn stored_pages(&self) -> impl Iterator<Item = &Segment> {
        self.pages.iter().filter_map(|page| match &page.place {
            Place::Stored(segment) => Some(segment),
            Place::Inline(_) => None,
        })
    }

    /// Returns the objects of the pages that were changed, which the changed index no longer refers to.
    pub(crate) fn replaced_pages(&self) -> impl Iterator<Item = ObjectName> {
        self.pages.iter().filter(|page| page.is_changed).filter_map(|page| match &page.place {
            Place::Stored(segment) => Some(segment.object),
            Place::Inline(_) => None,
        })
    }

    /// Returns the pages after all changes. `put` puts bytes of pages into an object, and returns the segment of each.
    /// It is called if a remote manifest would contain too many bytes.
    pub(crate) fn finish(self, put: impl FnOnce(Vec<Vec<u8>>) -> Result<Vec<Segment>>) -> Result<Vec<Page>> {
        let mut pages = Vec::new();
        let mut changed = Entries::new();
        for page in self.pages {
            match (page.is_changed, page.entries) {
                (true, Some(entries)) => changed.extend(entries),
                (_, entries) => {
                    divide(std::mem::take(&mut changed), &mut pages)?;
                    let entry_count = entries.map_or(page.entry_count, |entries| entries.len() as u64);
                    pages.push(Page { first: page.first, entry_count, place: page.place });
                }
            }
        }
        divide(changed, &mut pages)?;
        let inline_bytes = |page: &Page| match &page.place {
            Place::Inline(bytes) => bytes.len(),
            Place::Stored(_) => 0,
        };
        if pages.iter().map(inline_bytes).sum::<usize>() > MAX_INLINE_BYTES {
            let mut inline: Vec<&mut Page> =
                pages.iter_mut().filter(|page| matches!(page.place, Place::Inline(_))).collect();
            let bytes = inline.iter().map(|page| match &page.place {
                Place::Inline(bytes) => bytes.clone(),
                Place::Stored(_) => Vec::new(),
            });
            let segments = put(bytes.collect())?;
            for (page, segment) in inline.iter_mut().zip(segments) {
                page.place = Place::Stored(segment);
            }
        }
        Ok(pages)
    }

    /// Returns the page that contains a key, if any page does.
    fn page_of(&self, key: FileKey) -> Option<usize> {
        self.pages.partition_point(|page| page.first <= key).checked_sub(1)
    }

    fn load(&mut self, range: std::ops::Range<usize>, fetch: FetchPages<'_>) -> Result<()> {
        let loaded = range.clone();
        let pages = self.pages.get_mut(range).unwrap_or_default();
        let mut missing = Vec::new();
        for page in pages.iter_mut().filter(|page| page.entries.is_none()) {
            match &page.place {
                Place::Inline(bytes) => page.entries = Some(decoded(page, bytes)?),
                Place::Stored(segment) => missing.push(*segment),
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let fetched = fetch(&missing)?;
        let unread = pages.iter_mut().filter(|page| page.entries.is_none());
        for (page, bytes) in unread.zip(fetched) {
            page.entries = Some(decoded(page, &bytes)?);
        }
        self.check_order(loaded)
    }

    /// Checks that the files of each of some pages come before those of the next one.
    fn check_order(&self, range: std::ops::Range<usize>) -> Result<()> {
        let pages = self.pages.iter().zip(self.pages.iter().skip(1));
        for (page, next) in pages.skip(range.start).take(range.len()) {
            let last = page.entries.as_ref().and_then(|entries| entries.keys().next_back());
            if last.is_some_and(|last| *last >= next.first) && !page.is_changed {
                let detail = format!("a page of the index has files of the page of {}", next.first.path());
                return Err(page.broken(FormatError::new(Rule::IndexOrder, detail)));
            }
        }
        Ok(())
    }
}

fn decoded(page: &IndexPage, bytes: &[u8]) -> Result<Entries> {
    let entries = decode_page(bytes).map_err(|e| page.broken(e))?;
    let wrong = |rule, detail| Err(page.broken(FormatError::new(rule, detail)));
    if entries.len() as u64 != page.entry_count {
        return wrong(
            Rule::IndexPage,
            "a page of the index has another number of files than its remote manifest states",
        );
    }
    if entries.first_key_value().is_none_or(|(first, _)| *first != page.first) {
        return wrong(
            Rule::IndexOrder,
            "a page of the index begins with another file than its remote manifest states",
        );
    }
    Ok(entries)
}

impl IndexPage {
    fn broken(&self, broken: FormatError) -> Error {
        let name = match &self.place {
            Place::Inline(_) => format!("page of {} in a remote manifest", self.first.path()),
            Place::Stored(segment) => object_path(&segment.object),
        };
        Error::corrupt(Path::new(&name), broken)
    }
}

/// Adds inline pages of about the target length.
fn divide(entries: Entries, pages: &mut Vec<Page>) -> Result<()> {
    let encoded = encode_pages(&entries).map_err(|e| Error::refused("write the index of a remote", e))?;
    let page = |(first, entry_count, bytes)| Page { first, entry_count, place: Place::Inline(bytes) };
    pages.extend(encoded.into_iter().map(page));
    Ok(())
}
