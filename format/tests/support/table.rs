//! Encodes and decodes whole tables. The crate itself reads and writes them in pieces, for use with files.

use std::collections::BTreeMap;

use stridemap_format::{
    Error, StorageRecord, TABLE_HEADER_BYTES, TableEncoder, TableHeader, TableRef, TensorRecord, Uuid,
};

/// The content of a table, and the next storage id of the manifest that refers to it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Table {
    pub(crate) uuid: Uuid,
    pub(crate) generation: u64,
    pub(crate) next_storage_id: u64,
    pub(crate) storages: BTreeMap<u64, StorageRecord>,
    pub(crate) tensors: BTreeMap<String, TensorRecord>,
}

/// The reason why a file was refused.
#[derive(Debug, PartialEq)]
pub(crate) enum Failure {
    Refused(Error),
    /// The crate requested bytes past the end of the file.
    CutShort,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Refused(error)
    }
}

#[derive(Debug, PartialEq)]
pub(crate) enum Entry {
    Storage(u64, StorageRecord),
    Tensor(String, TensorRecord),
}

impl Table {
    pub(crate) fn encode(&self) -> (Vec<u8>, TableRef) {
        let mut encoder = TableEncoder::new(self.uuid, self.generation, self.next_storage_id);
        let mut rest = Vec::new();
        for (&id, record) in &self.storages {
            encoder.push_storage(id, record, &mut rest).unwrap();
        }
        for (name, record) in &self.tensors {
            encoder.push_tensor(name, record, &mut rest).unwrap();
        }
        let (header, reference) = encoder.finish(&mut rest);
        ([header, rest].concat(), reference)
    }

    /// Reads a whole table, like a verification. It does not check that entries ascend (F-24): the encoder refuses any
    /// other order.
    pub(crate) fn decode(
        bytes: &[u8],
        uuid: Uuid,
        reference: &TableRef,
        next_storage_id: u64,
    ) -> Result<Table, Failure> {
        let header = decode_header(bytes, uuid, reference)?;
        let (offset, length) = header.slots(0, header.entry_count());
        header.decode_slots(0, part(bytes, offset, length)?)?;
        let generation = reference.generation;
        let mut order = TableEncoder::new(uuid, generation, next_storage_id);
        let (mut storages, mut tensors) = (BTreeMap::new(), BTreeMap::new());
        for ordinal in 0..header.entry_count() {
            match decode_entry(bytes, &header, ordinal, next_storage_id)? {
                Entry::Storage(id, record) => {
                    order.push_storage(id, &record, &mut Vec::new())?;
                    storages.insert(id, record);
                }
                Entry::Tensor(name, record) => {
                    order.push_tensor(&name, &record, &mut Vec::new())?;
                    tensors.insert(name, record);
                }
            }
        }
        Ok(Table { uuid, generation, next_storage_id, storages, tensors })
    }
}

pub(crate) fn decode_header(bytes: &[u8], uuid: Uuid, reference: &TableRef) -> Result<TableHeader, Error> {
    TableHeader::decode(bytes.get(..TABLE_HEADER_BYTES).unwrap_or(bytes), uuid, reference)
}

/// Reads one entry by its two slots, like a lookup.
pub(crate) fn decode_entry(
    bytes: &[u8],
    header: &TableHeader,
    ordinal: u64,
    next_id: u64,
) -> Result<Entry, Failure> {
    let (offset, length) = header.slots(ordinal, 1);
    let entries = header.decode_slots(ordinal, part(bytes, offset, length)?)?;
    let &[(offset, length)] = &entries[..] else { panic!("two slots gave {} entries", entries.len()) };
    let entry = part(bytes, offset, length)?;
    if ordinal < header.storage_count() {
        let (id, record) = header.decode_storage(ordinal, next_id, entry)?;
        Ok(Entry::Storage(id, record))
    } else {
        let (name, record) = header.decode_tensor(ordinal, next_id, entry)?;
        Ok(Entry::Tensor(name, record))
    }
}

/// Returns the bytes that a reader gets from a file at `offset`.
fn part(bytes: &[u8], offset: u64, length: u64) -> Result<&[u8], Failure> {
    let range = usize::try_from(offset).ok().zip(usize::try_from(length).ok());
    range.and_then(|(offset, length)| bytes.get(offset..offset.checked_add(length)?)).ok_or(Failure::CutShort)
}
