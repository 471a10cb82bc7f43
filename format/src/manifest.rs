//! Manifests, `meta/<generation>.man` and `generations/<generation>.man`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::entry::{Bounds, Tree};
use crate::history::{GarbageKey, KeptGeneration, KeptKey, Tag, check_message};
use crate::limits::{MAX_ATTRIBUTES_BYTES, MAX_CHANGES, MAX_MANIFEST_BYTES};
use crate::preamble::{check_version, preamble, strip_preamble, take};
use crate::record::{Unchecked, check_storage_id};
use crate::{Error, Result, Rule, StorageRecord, TableRef, TensorRecord, Uuid, check_text, codec, digest};

const MAGIC: [u8; 8] = *b"SMAPMAN\n";
/// The number of bytes around the body: the magic and version, the length of the body, and the digest.
const FRAME_BYTES: u64 = 16 + 8 + 16;

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
    /// When it was published, in nanoseconds since 1970. Clocks jump: only the numbers give the order.
    pub time_ns: i64,
    /// What the user says about it.
    pub message: Option<String>,
    /// The next storage id. Ids grow and are never reused.
    pub next_storage_id: u64,
    /// The table that the changes of storages and tensors apply to, if one was ever written.
    pub table: Option<TableRef>,
    /// The table that the changes of tags, kept generations and garbage apply to, if one was ever written.
    pub history: Option<TableRef>,
    /// Storages added, changed or removed since the table, by id.
    pub storages: BTreeMap<u64, Option<StorageRecord>>,
    /// Tensors added, changed or removed since the table, by name.
    pub tensors: BTreeMap<String, Option<TensorRecord>>,
    /// The attributes that the user set on the store, on tensors and on prefixes of their names.
    pub attributes: Attributes,
    /// Tags added, changed or removed since the table, by name.
    pub tags: BTreeMap<String, Option<Tag>>,
    /// Kept generations added, changed or removed since the table.
    pub kept: BTreeMap<KeptKey, Option<KeptGeneration>>,
    /// Storages that no tensor refers to any more, added or removed since the table. Their files are deleted once no
    /// tag and no reader can need them.
    pub garbage: BTreeMap<GarbageKey, Option<StorageRecord>>,
}

/// The fields at the start of every manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestHead {
    /// The store's identity.
    pub uuid: Uuid,
    /// The number of this commit.
    pub generation: u64,
    /// When it was published, in nanoseconds since 1970.
    pub time_ns: i64,
    /// What the user says about it.
    pub message: Option<String>,
    /// The next storage id.
    pub next_storage_id: u64,
    /// The table of storages and tensors, if one was ever written.
    pub table: Option<TableRef>,
    /// The table of tags, kept generations and garbage, if one was ever written.
    pub history: Option<TableRef>,
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
    tags: &'a BTreeMap<String, Option<Tag>>,
    kept: &'a BTreeMap<KeptKey, Option<KeptGeneration>>,
    garbage: &'a BTreeMap<GarbageKey, Option<StorageRecord>>,
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
    #[serde(deserialize_with = "codec::changes")]
    tags: BTreeMap<String, Option<Tag>>,
    #[serde(deserialize_with = "codec::changes")]
    kept: BTreeMap<KeptKey, Option<KeptGeneration>>,
    #[serde(deserialize_with = "codec::changes")]
    garbage: BTreeMap<GarbageKey, Option<StorageRecord>>,
}

impl Manifest {
    /// Returns the first manifest of a store: generation 1, empty.
    #[must_use]
    pub fn first(uuid: Uuid) -> Self {
        Manifest {
            uuid,
            generation: 1,
            time_ns: 0,
            message: None,
            next_storage_id: 1,
            table: None,
            history: None,
            storages: BTreeMap::new(),
            tensors: BTreeMap::new(),
            attributes: BTreeMap::new(),
            tags: BTreeMap::new(),
            kept: BTreeMap::new(),
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

    /// Decodes a manifest in `generations/`, which a tag keeps. It has no history. Otherwise as [`decode`](Self::decode).
    ///
    /// # Errors
    /// Those of `decode`, and [`Rule::RecordCount`] for a manifest with a history, which only the newest one states.
    pub fn decode_kept(bytes: &[u8], uuid: Uuid, generation: u64) -> Result<Self> {
        let manifest = Self::decode(bytes, uuid, generation)?;
        if manifest.history.is_some() || manifest.change_count(true) > 0 {
            let detail = "a manifest that a tag keeps, with a history of its own";
            return Err(Error::new(Rule::RecordCount, detail).at(24));
        }
        Ok(manifest)
    }

    /// Returns whether `bytes` would [`decode`](Self::decode) to this manifest, without creating a second manifest.
    #[must_use]
    pub fn is_encoded_in(&self, bytes: &[u8]) -> bool {
        body_in(bytes).is_ok_and(|body| codec::is_encoding_of(body, &self.body()))
    }

    /// Returns the head of the file.
    #[must_use]
    pub fn head(&self) -> ManifestHead {
        let Manifest { uuid, generation, time_ns, next_storage_id, table, history, .. } = *self;
        let message = self.message.clone();
        ManifestHead { uuid, generation, time_ns, message, next_storage_id, table, history }
    }

    /// Returns what the entries of this generation may refer to.
    #[must_use]
    pub fn bounds(&self) -> Bounds {
        Bounds { generation: self.generation, next_storage_id: self.next_storage_id }
    }

    fn body(&self) -> BodyRef<'_> {
        let Manifest { storages, tensors, attributes, tags, kept, garbage, .. } = self;
        BodyRef { head: self.head(), storages, tensors, attributes, tags, kept, garbage }
    }

    fn decode_body(body: &[u8], uuid: Uuid, generation: u64) -> Result<Self> {
        let body: Body = codec::decode(body)?;
        body.head.check(uuid, generation)?;
        let ManifestHead { time_ns, message, next_storage_id, table, history, .. } = body.head;
        let tensor = |(name, record): (String, Option<Box<Unchecked>>)| {
            Ok((name, record.map(|record| (*record).try_into()).transpose()?))
        };
        let manifest = Manifest {
            uuid,
            generation,
            time_ns,
            message,
            next_storage_id,
            table,
            history,
            storages: body.storages,
            tensors: body.tensors.into_iter().map(tensor).collect::<Result<_>>()?,
            attributes: body.attributes,
            tags: body.tags,
            kept: body.kept,
            garbage: body.garbage,
        };
        manifest.check()?;
        Ok(manifest)
    }

    fn check(&self) -> Result<()> {
        for (tree, count) in self.change_counts() {
            if count > MAX_CHANGES {
                let detail =
                    format!("a manifest with {count} changes of {tree}; at most {MAX_CHANGES} are allowed");
                return Err(Error::new(Rule::ManifestLimits, detail));
            }
        }
        if self.next_storage_id == 0 {
            return Err(Error::new(Rule::StorageId, "the next storage id is 0"));
        }
        if self.generation == 0 {
            return Err(Error::new(Rule::Generation, "a manifest of generation 0"));
        }
        check_message(self.message.as_deref())?;
        for (table, is_history) in [(&self.table, false), (&self.history, true)] {
            table.as_ref().map_or(Ok(()), |table| table.check(self.generation, is_history))?;
        }
        let bounds = self.bounds();
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
        for (name, tag) in &self.tags {
            check_text("tag", name)?;
            tag.as_ref().map_or(Ok(()), |tag| tag.check(bounds))?;
        }
        for (key, kept) in &self.kept {
            key.check(bounds)?;
            kept.as_ref().map_or(Ok(()), |kept| kept.check(*key, bounds))?;
            let other = KeptKey { is_tagged: !key.is_tagged, ..*key };
            if kept.is_some() && self.kept.get(&other).is_some_and(Option::is_some) {
                let detail = format!("generation {} is listed both with tags and without", key.generation);
                return Err(Error::new(Rule::RecordCount, detail));
            }
        }
        for (key, record) in &self.garbage {
            key.check(bounds)?;
            record.as_ref().map_or(Ok(()), StorageRecord::check_garbage)?;
        }
        check_attributes(self.attributes.iter().map(|((scope, key), value)| (&**scope, &**key, &**value)))
    }

    /// Returns the number of changes of each tree since the table.
    fn change_counts(&self) -> [(Tree, usize); 5] {
        [
            (Tree::Storages, self.storages.len()),
            (Tree::Tensors, self.tensors.len()),
            (Tree::Tags, self.tags.len()),
            (Tree::Generations, self.kept.len()),
            (Tree::Garbage, self.garbage.len()),
        ]
    }

    /// Returns the number of changes since the table of storages and tensors, or since that of the history.
    #[must_use]
    pub fn change_count(&self, is_history: bool) -> u64 {
        let counts = self.change_counts().into_iter();
        let counts = counts.filter(|(tree, _)| tree.is_history() == is_history);
        counts.fold(0, |sum: u64, (_, count)| sum.saturating_add(count as u64))
    }

    /// Returns the manifest that a tag keeps of this generation. It lacks the tags, the kept generations and the garbage:
    /// readers take these from the newest manifest.
    #[must_use]
    pub fn without_history(&self) -> Self {
        Manifest {
            history: None,
            tags: BTreeMap::new(),
            kept: BTreeMap::new(),
            garbage: BTreeMap::new(),
            message: self.message.clone(),
            storages: self.storages.clone(),
            tensors: self.tensors.clone(),
            attributes: self.attributes.clone(),
            ..*self
        }
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
