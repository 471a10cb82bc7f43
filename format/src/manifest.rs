//! Manifests, `meta/<generation>.man`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::limits::{MAX_ATTRIBUTES_BYTES, MAX_CHANGES, MAX_GARBAGE, MAX_MANIFEST_BYTES};
use crate::preamble::{check_version, preamble, strip_preamble, take};
use crate::record::{Unchecked, check_storage_id};
use crate::{Error, Result, Rule, StorageRecord, TensorRecord, Uuid, check_text, codec, digest};

const MAGIC: [u8; 8] = *b"SMAPMAN\n";
/// The number of bytes around the body: the magic and version, the length of the body, and the digest.
const FRAME_BYTES: u64 = 16 + 8 + 16;

/// A manifest's reference to its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableRef {
    /// The generation that wrote the table. The table's file is named after it.
    pub generation: u64,
    /// The length of the file, in pages of [`PAGE_BYTES`](crate::PAGE_BYTES).
    pub page_count: u64,
    /// The tree of storages.
    pub storages: TreeRef,
    /// The tree of tensors.
    pub tensors: TreeRef,
}

impl TableRef {
    /// Returns the length of the table's file in bytes.
    #[must_use]
    pub fn length_bytes(&self) -> u64 {
        self.page_count.saturating_mul(crate::PAGE_BYTES as u64)
    }

    /// Returns the number of storages and tensors in the table.
    #[must_use]
    pub fn entry_count(&self) -> u64 {
        self.storages.entry_count.saturating_add(self.tensors.entry_count)
    }
}

/// A reference to one of the two trees in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeRef {
    /// The page at which the root begins.
    pub root_page: u64,
    /// The number of entries in the leaves.
    pub entry_count: u64,
}

/// Texts by scope and key. The scope `""` is the store itself; any other is the name of a tensor, or a prefix of names.
pub type Attributes = BTreeMap<(String, String), String>;

/// One generation of a store: a table, and the changes since that table was written.
///
/// In the maps of changes, `None` means removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The store's identity.
    pub uuid: Uuid,
    /// The number of this commit, from 1.
    pub generation: u64,
    /// The next storage id. Ids grow and are never reused.
    pub next_storage_id: u64,
    /// The table that the changes apply to, if one was ever written.
    pub table: Option<TableRef>,
    /// Storages added, changed or removed since the table, by id.
    pub storages: BTreeMap<u64, Option<StorageRecord>>,
    /// Tensors added, changed or removed since the table, by name.
    pub tensors: BTreeMap<String, Option<TensorRecord>>,
    /// The attributes that the user set on the store, on tensors and on prefixes of their names.
    pub attributes: Attributes,
    /// Storages that no tensor refers to any more, and the generation that dropped each. Their files are deleted once
    /// no reader can be on a generation that needs them.
    pub garbage: BTreeMap<u64, u64>,
}

/// The fields at the start of every manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestHead {
    /// The store's identity.
    pub uuid: Uuid,
    /// The number of this commit.
    pub generation: u64,
    /// The next storage id.
    pub next_storage_id: u64,
    /// The table that the changes apply to, if one was ever written.
    pub table: Option<TableRef>,
}

impl ManifestHead {
    /// Decodes the head of a manifest, without decoding the changes. `bytes` are the file of store `uuid` that is
    /// named after `generation`.
    ///
    /// # Errors
    /// Depending on the damage: [`Rule::ManifestFrame`], [`Rule::Version`], [`Rule::ManifestDigest`],
    /// [`Rule::Canonical`], [`Rule::StoreUuid`], [`Rule::Generation`].
    pub fn decode(bytes: &[u8], uuid: Uuid, generation: u64) -> Result<Self> {
        let head: Self = codec::decode_first(body_in(bytes)?).map_err(|e| e.at(24))?;
        head.check(uuid, generation).map_err(|e| e.at(24))?;
        Ok(head)
    }

    fn check(&self, uuid: Uuid, generation: u64) -> Result<()> {
        if self.uuid != uuid {
            return Err(Error::new(Rule::StoreUuid, "the manifest of a different store"));
        }
        if self.generation != generation {
            return Err(Error::new(
                Rule::Generation,
                format!("generation {} in the file of generation {generation}", self.generation),
            ));
        }
        Ok(())
    }
}

/// A borrowed manifest body, for encoding.
#[derive(Serialize)]
struct BodyRef<'a> {
    head: ManifestHead,
    storages: &'a BTreeMap<u64, Option<StorageRecord>>,
    tensors: &'a BTreeMap<String, Option<TensorRecord>>,
    attributes: &'a Attributes,
    garbage: &'a BTreeMap<u64, u64>,
}

/// A decoded manifest body.
#[derive(Serialize, Deserialize)]
struct Body {
    head: ManifestHead,
    #[serde(deserialize_with = "codec::changes")]
    storages: BTreeMap<u64, Option<StorageRecord>>,
    #[serde(deserialize_with = "codec::changes")]
    tensors: BTreeMap<String, Option<Box<Unchecked>>>,
    #[serde(deserialize_with = "codec::attributes")]
    attributes: Attributes,
    #[serde(deserialize_with = "codec::garbage")]
    garbage: BTreeMap<u64, u64>,
}

impl Manifest {
    /// Returns the first manifest of a store: generation 1, empty.
    #[must_use]
    pub fn first(uuid: Uuid) -> Self {
        Manifest {
            uuid,
            generation: 1,
            next_storage_id: 1,
            table: None,
            storages: BTreeMap::new(),
            tensors: BTreeMap::new(),
            attributes: BTreeMap::new(),
            garbage: BTreeMap::new(),
        }
    }

    /// Returns the bytes of the file.
    ///
    /// # Errors
    /// [`Rule::ManifestFrame`] if the file would be longer than 16 MiB, or the rule that a value breaks. Bytes that are
    /// returned can be decoded.
    pub fn encode(&self) -> Result<Vec<u8>> {
        self.check()?;
        let body =
            codec::encode(&self.body(), MAX_MANIFEST_BYTES.saturating_sub(FRAME_BYTES), Rule::ManifestFrame)?;
        let mut bytes = preamble(MAGIC);
        bytes.extend((body.len() as u64).to_le_bytes());
        bytes.extend(body);
        bytes.extend(digest(&bytes));
        Ok(bytes)
    }

    /// Decodes a manifest. `bytes` are the file of store `uuid` that is named after `generation`.
    ///
    /// # Errors
    /// Depending on the damage: [`Rule::ManifestFrame`], [`Rule::Version`], [`Rule::ManifestDigest`],
    /// [`Rule::Canonical`], [`Rule::ManifestLimits`], [`Rule::StoreUuid`], [`Rule::Generation`], and the rules of the
    /// ids, names, records and attributes inside.
    pub fn decode(bytes: &[u8], uuid: Uuid, generation: u64) -> Result<Self> {
        let body = body_in(bytes)?;
        Self::decode_body(body, uuid, generation).map_err(|e| e.at(24))
    }

    /// Returns whether `bytes` would [`decode`](Self::decode) to this manifest, without creating a second manifest.
    #[must_use]
    pub fn is_encoded_in(&self, bytes: &[u8]) -> bool {
        body_in(bytes).is_ok_and(|body| codec::is_encoding_of(body, &self.body()))
    }

    /// Returns the head of the file.
    #[must_use]
    pub fn head(&self) -> ManifestHead {
        let Manifest { uuid, generation, next_storage_id, table, .. } = *self;
        ManifestHead { uuid, generation, next_storage_id, table }
    }

    fn body(&self) -> BodyRef<'_> {
        let Manifest { storages, tensors, attributes, garbage, .. } = self;
        BodyRef { head: self.head(), storages, tensors, attributes, garbage }
    }

    fn decode_body(body: &[u8], uuid: Uuid, generation: u64) -> Result<Self> {
        let body: Body = codec::decode(body)?;
        body.head.check(uuid, generation)?;
        let ManifestHead { next_storage_id, table, .. } = body.head;
        let tensor = |(name, record): (String, Option<Box<Unchecked>>)| {
            Ok((name, record.map(|record| (*record).try_into()).transpose()?))
        };
        let manifest = Manifest {
            uuid,
            generation,
            next_storage_id,
            table,
            storages: body.storages,
            tensors: body.tensors.into_iter().map(tensor).collect::<Result<_>>()?,
            attributes: body.attributes,
            garbage: body.garbage,
        };
        manifest.check()?;
        Ok(manifest)
    }

    fn check(&self) -> Result<()> {
        for (what, count, limit) in [
            ("changes of storages", self.storages.len(), MAX_CHANGES),
            ("changes of tensors", self.tensors.len(), MAX_CHANGES),
            ("storages of garbage", self.garbage.len(), MAX_GARBAGE),
        ] {
            if count > limit {
                let detail = format!("a manifest with {count} {what}; at most {limit} are allowed");
                return Err(Error::new(Rule::ManifestLimits, detail));
            }
        }
        if self.next_storage_id == 0 {
            return Err(Error::new(Rule::StorageId, "the next storage id is 0"));
        }
        let wrong_generation = |what: &str, other: u64| {
            Error::new(Rule::Generation, format!("generation {} with {what} {other}", self.generation))
        };
        if self.generation == 0 {
            return Err(Error::new(Rule::Generation, "a manifest of generation 0"));
        }
        if let Some(table) = &self.table
            && (table.generation > self.generation || table.generation == 0)
        {
            return Err(wrong_generation("a table of generation", table.generation));
        }
        for (&id, record) in &self.storages {
            check_storage_id(id, self.next_storage_id)?;
            record.as_ref().map_or(Ok(()), StorageRecord::check)?;
        }
        for (name, record) in &self.tensors {
            check_text("name", name)?;
            record
                .as_ref()
                .map_or(Ok(()), |record| check_storage_id(record.storage_id, self.next_storage_id))?;
        }
        for (&id, &dropped) in &self.garbage {
            check_storage_id(id, self.next_storage_id)?;
            if dropped > self.generation {
                return Err(wrong_generation("garbage of generation", dropped));
            }
        }
        check_attributes(self.attributes.iter().map(|((scope, key), value)| (&**scope, &**key, &**value)))
    }

    /// Returns the number of changes since the table.
    #[must_use]
    pub fn change_count(&self) -> u64 {
        self.storages.len().saturating_add(self.tensors.len()) as u64
    }
}

/// Returns the body of a manifest, after checking the frame, digest and version.
fn body_in(bytes: &[u8]) -> Result<&[u8]> {
    let frame_error = |detail: String| Error::new(Rule::ManifestFrame, detail).at(16);
    if bytes.len() as u64 > MAX_MANIFEST_BYTES {
        return Err(frame_error(format!("a manifest of {} bytes", bytes.len())));
    }
    let mut rest = strip_preamble(bytes, &MAGIC, Rule::ManifestFrame)?;
    let body_length = take(&mut rest).map(u64::from_le_bytes);
    let body_and_digest =
        rest.split_last_chunk::<16>().filter(|(body, _)| Some(body.len() as u64) == body_length);
    let (body, stated) = body_and_digest.ok_or_else(|| {
        frame_error(format!(
            "{} bytes, but the stated length of the body is {}",
            bytes.len(),
            body_length.unwrap_or_default()
        ))
    })?;
    let covered = bytes.split_last_chunk::<16>().map_or(bytes, |(covered, _)| covered);
    if digest(covered) != *stated {
        return Err(Error::new(Rule::ManifestDigest, "the digest does not match").at(covered.len() as u64));
    }
    check_version(bytes)?;
    Ok(body)
}

/// Returns the size of an attribute as the limit of F-13 counts it: the bytes of its scope, key and value, and 16 more,
/// because an attribute with short texts also takes memory.
#[must_use]
pub fn attribute_size(scope: &str, key: &str, value: &str) -> usize {
    [scope, key, value].iter().fold(16, |sum: usize, text| sum.saturating_add(text.len()))
}

/// Checks all attributes of a store. Each is a scope, a key and a value. Keys obey the rules of names, and so do scopes
/// that are not empty (F-4). All attributes together take at most 1 MiB (F-13).
///
/// # Errors
/// [`Rule::Text`], [`Rule::ManifestLimits`].
pub fn check_attributes<'a>(attributes: impl IntoIterator<Item = (&'a str, &'a str, &'a str)>) -> Result<()> {
    let mut total = 0usize;
    for (scope, key, value) in attributes {
        if !scope.is_empty() {
            check_text("attribute scope", scope)?;
        }
        check_text("attribute key", key)?;
        total = total.saturating_add(attribute_size(scope, key, value));
    }
    if total > MAX_ATTRIBUTES_BYTES {
        return Err(Error::new(Rule::ManifestLimits, format!("attributes of {total} bytes")));
    }
    Ok(())
}
