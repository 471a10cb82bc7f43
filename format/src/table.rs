//! Tables, `meta/<generation>.tab`.

use crate::limits::MAX_ENTRY_BYTES;
use crate::preamble::{check_version, preamble, strip_preamble, take};
use crate::record::{TensorWire, TensorWireRef, check_storage_id};
use crate::{
    Digest, Error, Result, Rule, StorageRecord, TableRef, TensorRecord, Uuid, check_name, checksum, codec,
    digest,
};

const MAGIC: [u8; 8] = *b"SMAPTAB\n";
const SLOT_BYTES: u64 = 8;
const CHECK_BYTES: usize = 8;

/// The length of a table's header in bytes.
pub const TABLE_HEADER_BYTES: usize = 64;

/// The header of a table. It states the number of entries and the length of the file, which together locate the index.
///
/// The entries follow the header: storages by ascending id, then tensors by ascending name. The file ends with the
/// index: the offset of each entry, and of the end of the last one. The *ordinal* of an entry is its position, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableHeader {
    uuid: Uuid,
    generation: u64,
    storage_count: u64,
    tensor_count: u64,
    length_bytes: u64,
}

impl TableHeader {
    /// Decodes the header of the table that a manifest of store `uuid` refers to.
    ///
    /// # Errors
    /// [`Rule::TableDigest`], [`Rule::TableHeader`], [`Rule::StoreUuid`], [`Rule::Generation`].
    pub fn decode(bytes: &[u8], uuid: Uuid, reference: &TableRef) -> Result<Self> {
        if digest(bytes) != reference.header_digest {
            return Err(Error::new(Rule::TableDigest, "the table's header does not match its manifest").at(0));
        }
        let mut rest = strip_preamble(bytes, &MAGIC, Rule::TableHeader)?;
        check_version(bytes, 8)?;
        let truncated = || Error::new(Rule::TableHeader, "truncated").at(16);
        let stated_uuid: Uuid = take(&mut rest).ok_or_else(truncated)?;
        let mut number = || take(&mut rest).map(u64::from_le_bytes).ok_or_else(truncated);
        let header = TableHeader {
            uuid: stated_uuid,
            generation: number()?,
            storage_count: number()?,
            tensor_count: number()?,
            length_bytes: number()?,
        };
        if !rest.is_empty() {
            return Err(Error::new(Rule::TableHeader, "trailing bytes").at(TABLE_HEADER_BYTES as u64));
        }
        if header.uuid != uuid {
            return Err(Error::new(Rule::StoreUuid, "the table of a different store").at(16));
        }
        if header.generation != reference.generation {
            return Err(Error::new(
                Rule::Generation,
                format!("the table of generation {}", header.generation),
            )
            .at(32));
        }
        if header.length_bytes != reference.length_bytes || header.index_offset().is_none() {
            return Err(Error::new(
                Rule::TableHeader,
                format!("{} entries in {} bytes", header.entry_count(), header.length_bytes),
            )
            .at(40));
        }
        Ok(header)
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = preamble(MAGIC);
        bytes.extend(self.uuid);
        for number in [self.generation, self.storage_count, self.tensor_count, self.length_bytes] {
            bytes.extend(number.to_le_bytes());
        }
        bytes
    }

    /// Returns the number of storages in the table. Their ordinals begin at 0.
    #[must_use]
    pub fn storage_count(&self) -> u64 {
        self.storage_count
    }

    /// Returns the number of tensors in the table. Their ordinals begin at [`storage_count`](Self::storage_count).
    #[must_use]
    pub fn tensor_count(&self) -> u64 {
        self.tensor_count
    }

    /// Returns the number of entries in the table.
    #[must_use]
    pub fn entry_count(&self) -> u64 {
        self.storage_count.saturating_add(self.tensor_count)
    }

    /// Returns the offset of the index: the length of the file minus the slots.
    fn index_offset(&self) -> Option<u64> {
        let slots = self.storage_count.checked_add(self.tensor_count)?.checked_add(1)?;
        let offset = self.length_bytes.checked_sub(slots.checked_mul(SLOT_BYTES)?)?;
        (offset >= TABLE_HEADER_BYTES as u64).then_some(offset)
    }

    /// Returns the offset and length in bytes of the index slots of `count` entries, starting with `ordinal`.
    #[must_use]
    pub fn slots(&self, ordinal: u64, count: u64) -> (u64, u64) {
        let offset =
            self.index_offset().unwrap_or_default().saturating_add(ordinal.saturating_mul(SLOT_BYTES));
        (offset, count.saturating_add(1).saturating_mul(SLOT_BYTES))
    }

    /// Decodes the bytes at [`slots`](Self::slots) of `ordinal` into the offset and length of each entry, in order.
    ///
    /// # Errors
    /// [`Rule::TableIndex`] if the slots do not ascend, or a slot is outside the entries.
    pub fn decode_slots(&self, ordinal: u64, bytes: &[u8]) -> Result<Vec<(u64, u64)>> {
        let (index_offset, _) = self.slots(ordinal, 0);
        let entries_end = self.slots(0, 0).0;
        let offsets: Vec<u64> = bytes.as_chunks().0.iter().map(|slot| u64::from_le_bytes(*slot)).collect();
        // There are no gaps between the header, the entries and the index.
        let is_last = ordinal.saturating_add(offsets.len() as u64) == self.entry_count().saturating_add(1);
        let ends_are_right = (ordinal != 0 || offsets.first() == Some(&(TABLE_HEADER_BYTES as u64)))
            && (!is_last || offsets.last() == Some(&entries_end));
        if !ends_are_right {
            let detail =
                format!("the slots from {ordinal} leave a gap in {TABLE_HEADER_BYTES}..{entries_end}");
            return Err(Error::new(Rule::TableIndex, detail).at(index_offset));
        }
        let pairs = offsets.iter().zip(offsets.iter().skip(1));
        let entry = |(&start, &end): (&u64, &u64)| {
            let length = end.checked_sub(start).filter(|&length| {
                start >= TABLE_HEADER_BYTES as u64
                    && end <= entries_end
                    && (CHECK_BYTES as u64..=MAX_ENTRY_BYTES).contains(&length)
            });
            let wrong = || Error::new(Rule::TableIndex, format!("slots {start} and {end}")).at(index_offset);
            Ok((start, length.ok_or_else(wrong)?))
        };
        pairs.map(entry).collect()
    }

    /// Decodes the entry of a storage at `ordinal`. `next_id` is the manifest's next storage id.
    ///
    /// # Errors
    /// [`Rule::EntryCheck`] for damaged bytes, and the rules of the record.
    pub fn decode_storage(&self, ordinal: u64, next_id: u64, bytes: &[u8]) -> Result<(u64, StorageRecord)> {
        let (id, record): (u64, StorageRecord) = codec::decode(self.checked_body(ordinal, bytes)?)?;
        check_storage_id(id, next_id)?;
        record.check()?;
        Ok((id, record))
    }

    /// Decodes the entry of a tensor at `ordinal`. `next_id` is the manifest's next storage id.
    ///
    /// # Errors
    /// [`Rule::EntryCheck`] for damaged bytes, and the rules of the record.
    pub fn decode_tensor(&self, ordinal: u64, next_id: u64, bytes: &[u8]) -> Result<(String, TensorRecord)> {
        let (name, wire): (String, TensorWire) = codec::decode(self.checked_body(ordinal, bytes)?)?;
        check_name(&name)?;
        let record: TensorRecord = wire.try_into()?;
        check_storage_id(record.storage_id, next_id)?;
        Ok((name, record))
    }

    fn checked_body<'a>(&self, ordinal: u64, bytes: &'a [u8]) -> Result<&'a [u8]> {
        let body_and_check = bytes
            .split_last_chunk::<CHECK_BYTES>()
            .filter(|(body, check)| checksum::entry_check(body, self.generation, ordinal) == **check);
        body_and_check.map(|(body, _)| body).ok_or_else(|| {
            Error::new(Rule::EntryCheck, format!("entry {ordinal} does not match its checksum"))
        })
    }
}

/// An encoder for tables: storages by ascending id, then tensors by ascending name.
///
/// The header is at the start of the file, but is known only at the end. First write the bytes that
/// [`push_storage`](Self::push_storage), [`push_tensor`](Self::push_tensor) and [`finish`](Self::finish) append, from
/// offset [`TABLE_HEADER_BYTES`] on. Then write the header at offset 0.
#[derive(Debug)]
pub struct TableEncoder {
    uuid: Uuid,
    generation: u64,
    next_storage_id: u64,
    storage_count: u64,
    last_id: u64,
    last_name: String,
    slots: Vec<u64>,
}

impl TableEncoder {
    /// Creates an encoder for the table of a generation.
    #[must_use]
    pub fn new(uuid: Uuid, generation: u64, next_storage_id: u64) -> Self {
        let (last_id, last_name) = (0, String::new());
        let slots = vec![TABLE_HEADER_BYTES as u64];
        TableEncoder { uuid, generation, next_storage_id, storage_count: 0, last_id, last_name, slots }
    }

    /// Appends a storage's entry to `out`.
    ///
    /// # Errors
    /// [`Rule::EntryOrder`] if its id does not ascend, and the rules of the record.
    pub fn push_storage(&mut self, id: u64, record: &StorageRecord, out: &mut Vec<u8>) -> Result<()> {
        check_storage_id(id, self.next_storage_id)?;
        record.check()?;
        if id <= self.last_id || !self.last_name.is_empty() {
            return Err(Error::new(Rule::EntryOrder, format!("storage {id} after storage {}", self.last_id)));
        }
        self.last_id = id;
        self.storage_count = self.storage_count.saturating_add(1);
        self.push(codec::encode(&(id, record), MAX_ENTRY_BYTES, Rule::TableIndex)?, out)
    }

    /// Appends a tensor's entry to `out`.
    ///
    /// # Errors
    /// [`Rule::EntryOrder`] if its name does not ascend, and the rules of the record.
    pub fn push_tensor(&mut self, name: &str, record: &TensorRecord, out: &mut Vec<u8>) -> Result<()> {
        check_name(name)?;
        check_storage_id(record.storage_id, self.next_storage_id)?;
        if name <= self.last_name.as_str() {
            return Err(Error::new(
                Rule::EntryOrder,
                format!("tensor {name:?} after tensor {:?}", self.last_name),
            ));
        }
        name.clone_into(&mut self.last_name);
        self.push(
            codec::encode(&(name, TensorWireRef::from(record)), MAX_ENTRY_BYTES, Rule::TableIndex)?,
            out,
        )
    }

    fn push(&mut self, mut entry: Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        let ordinal = self.slots.len().saturating_sub(1) as u64;
        entry.extend(checksum::entry_check(&entry, self.generation, ordinal));
        let end = self.slots.last().and_then(|start| start.checked_add(entry.len() as u64));
        self.slots.push(end.ok_or_else(|| Error::new(Rule::TableHeader, "a table of more than 2^64 bytes"))?);
        out.extend(entry);
        Ok(())
    }

    /// Appends the index to `out`, and returns the header's bytes and the manifest's reference to the table.
    #[must_use]
    pub fn finish(self, out: &mut Vec<u8>) -> (Vec<u8>, TableRef) {
        let entries_end = self.slots.last().copied().unwrap_or_default();
        let entry_count = self.slots.len().saturating_sub(1) as u64;
        out.extend(self.slots.iter().flat_map(|slot| slot.to_le_bytes()));
        let index_bytes = entry_count.saturating_add(1).saturating_mul(SLOT_BYTES);
        let header = TableHeader {
            uuid: self.uuid,
            generation: self.generation,
            storage_count: self.storage_count,
            tensor_count: entry_count.saturating_sub(self.storage_count),
            length_bytes: entries_end.saturating_add(index_bytes),
        };
        let bytes = header.encode();
        let header_digest: Digest = digest(&bytes);
        let reference =
            TableRef { generation: self.generation, length_bytes: header.length_bytes, header_digest };
        (bytes, reference)
    }
}
