//! Remote manifests, `generations/<generation>-<digest>`.

use serde::{Deserialize, Deserializer, Serialize};

use super::page::{check_count, check_length};
use super::{Entries, FileKey, ObjectName, Page, Place, decode_page};
use crate::limits::{MAX_INDEX_PAGES, MAX_MANIFEST_BYTES, MAX_REMOTE_MANIFEST_BYTES, MAX_REPLACED};
use crate::preamble::{check_version, preamble, strip_preamble, take};
use crate::{Error, Result, Rule, Uuid, codec};

const MAGIC: [u8; 8] = *b"SMAPREM\n";
/// The number of bytes before the body: the magic and version, and the length of the body.
const PREAMBLE_BYTES: u64 = 16 + 8;

/// One generation of a remote: the manifest of the store, and the objects that have its other files.
///
/// The object is named after its BLAKE3 digest, so it has no digest of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteManifest {
    /// The identity of the store.
    pub uuid: Uuid,
    /// The generation of the store.
    pub generation: u64,
    /// Random bytes. Because of them, two pushes never write the same `HEAD`.
    pub nonce: [u8; 16],
    /// The remote manifest that this one replaced, unless it is the first.
    pub previous: Option<Previous>,
    /// The bytes of the store's own manifest, `meta/<generation>.man`. They are not decoded here.
    #[serde(with = "codec::bytes")]
    pub manifest: Vec<u8>,
    /// The pages of the index, in ascending order of their files.
    #[serde(deserialize_with = "pages")]
    pub pages: Vec<Page>,
    /// The objects to which the previous remote manifest referred and this one does not, in ascending order. There may
    /// be others among them: a collection checks whether an object is still needed.
    #[serde(deserialize_with = "replaced")]
    pub replaced: Vec<ObjectName>,
}

/// A remote manifest that another one replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Previous {
    /// Its generation.
    pub generation: u64,
    /// The BLAKE3 digest of its bytes.
    pub digest: ObjectName,
}

fn pages<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Vec<Page>, D::Error> {
    codec::list(deserializer, MAX_INDEX_PAGES, (Rule::RemoteLimits, "more than 65536 pages"))
}

fn replaced<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Vec<ObjectName>, D::Error> {
    codec::list(deserializer, MAX_REPLACED, (Rule::RemoteLimits, "more than 1048576 replaced objects"))
}

impl RemoteManifest {
    /// Returns the bytes of the object.
    ///
    /// # Errors
    /// The rule that a value breaks. Bytes that are returned can be decoded.
    pub fn encode(&self) -> Result<Vec<u8>> {
        self.check()?;
        let limit_bytes = MAX_REMOTE_MANIFEST_BYTES.saturating_sub(PREAMBLE_BYTES);
        let body = codec::encode(self, limit_bytes, Rule::RemoteFrame)?;
        Ok([preamble(MAGIC), (body.len() as u64).to_le_bytes().to_vec(), body].concat())
    }

    /// Decodes the bytes of the object, whose BLAKE3 digest was checked. `uuid` is that of `FORMAT`. Inline pages are
    /// checked too.
    ///
    /// # Errors
    /// In this order: [`Rule::RemoteFrame`], [`Rule::Version`], [`Rule::Canonical`], [`Rule::RemoteChoice`] and
    /// [`Rule::RemoteLimits`] in the order of the bytes, [`Rule::RemoteUuid`], and the rules of the values.
    pub fn decode(bytes: &[u8], uuid: Uuid) -> Result<Self> {
        let frame_error = |detail: String| Error::new(Rule::RemoteFrame, detail).at(16);
        if bytes.len() as u64 > MAX_REMOTE_MANIFEST_BYTES {
            return Err(frame_error(format!("a remote manifest of {} bytes", bytes.len())));
        }
        let mut body = strip_preamble(bytes, &MAGIC, Rule::RemoteFrame)?;
        check_version(bytes)?;
        let stated = take(&mut body).map(u64::from_le_bytes);
        if stated != Some(body.len() as u64) {
            return Err(frame_error(format!(
                "{} bytes, but the stated length of the body is {}",
                bytes.len(),
                stated.unwrap_or_default()
            )));
        }
        Self::decode_body(body, uuid).map_err(|e| e.at(PREAMBLE_BYTES))
    }

    fn decode_body(body: &[u8], uuid: Uuid) -> Result<Self> {
        let manifest: Self = codec::decode(body)?;
        if manifest.uuid != uuid {
            return Err(Error::new(Rule::RemoteUuid, "the remote manifest of a different store"));
        }
        manifest.check()?;
        Ok(manifest)
    }

    /// Returns the position of the page that has a file if any page has it. `None`: the index lacks the file.
    #[must_use]
    pub fn page_of(&self, key: FileKey) -> Option<usize> {
        self.pages.partition_point(|page| page.first <= key).checked_sub(1)
    }

    /// Decodes the page at a position, and checks what this manifest states of it. `stored` are the bytes of a page that
    /// is in an object, whose digest was checked; for an inline page they are not used. There are no entries at a position
    /// after the last page.
    ///
    /// # Errors
    /// Those of [`decode_page`]; [`Rule::IndexPage`] for another number of files; [`Rule::IndexOrder`] for another first
    /// file, or one that does not come before the next page.
    pub fn decode_page(&self, position: usize, stored: &[u8]) -> Result<Entries> {
        let mut pages = self.pages.iter().skip(position);
        let Some(page) = pages.next() else { return Ok(Entries::new()) };
        let bytes = match &page.place {
            Place::Inline(bytes) => bytes,
            Place::Stored(_) => stored,
        };
        let entries = decode_page(bytes)?;
        if entries.len() as u64 != page.entry_count {
            let detail = format!("a page of {} files, stated as {}", entries.len(), page.entry_count);
            return Err(Error::new(Rule::IndexPage, detail));
        }
        let (first, last) = (entries.keys().next(), entries.keys().next_back());
        if first != Some(&page.first) {
            let found = first.map(|key| key.path()).unwrap_or_default();
            let detail = format!("a page that begins with {found}, stated as {}", page.first.path());
            return Err(Error::new(Rule::IndexOrder, detail));
        }
        if let (Some(last), Some(next)) = (last, pages.next())
            && *last >= next.first
        {
            return Err(out_of_order(*last, next.first));
        }
        Ok(entries)
    }

    fn check(&self) -> Result<()> {
        let generations = [Some(self.generation), self.previous.map(|previous| previous.generation)];
        if generations.contains(&Some(0)) {
            return Err(Error::new(Rule::RemoteGeneration, "a remote manifest of generation 0"));
        }
        let length_bytes = self.manifest.len() as u64;
        if length_bytes == 0 || length_bytes > MAX_MANIFEST_BYTES {
            let detail = format!("a remote manifest with a manifest of {length_bytes} bytes");
            return Err(Error::new(Rule::RemoteFrame, detail));
        }
        self.check_pages()?;
        if self.replaced.len() > MAX_REPLACED {
            let detail = format!("{} replaced objects", self.replaced.len());
            return Err(Error::new(Rule::RemoteLimits, detail));
        }
        if !self.replaced.is_sorted_by(|earlier, later| earlier < later) {
            return Err(Error::new(Rule::RemoteLimits, "names of replaced objects that do not ascend"));
        }
        Ok(())
    }

    fn check_pages(&self) -> Result<()> {
        if self.pages.len() > MAX_INDEX_PAGES {
            let detail = format!("an index of {} pages", self.pages.len());
            return Err(Error::new(Rule::RemoteLimits, detail));
        }
        for (position, page) in self.pages.iter().enumerate() {
            check_count(page.entry_count)?;
            if let Some(next) = self.pages.get(position.saturating_add(1))
                && page.first >= next.first
            {
                return Err(out_of_order(page.first, next.first));
            }
            match &page.place {
                Place::Inline(_) => drop(self.decode_page(position, &[])?),
                Place::Stored(segment) => {
                    segment.validate()?;
                    check_length(segment.length_bytes)?;
                }
            }
        }
        Ok(())
    }
}

fn out_of_order(earlier: FileKey, later: FileKey) -> Error {
    let detail = format!("a page with {} before a page that begins with {}", earlier.path(), later.path());
    Error::new(Rule::IndexOrder, detail)
}
