//! Properties of the format that hold for all values and all bytes.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use stridemap_format::{
    DType, Extent, Manifest, Marker, Rule, StorageRecord, TABLE_HEADER_BYTES, TableEncoder, TableHeader,
    TableRef, TensorRecord, Uuid, check_numel, digest,
};

mod support {
    pub(crate) mod arbitrary;
    pub(crate) mod frame;
    pub(crate) mod table;
}
use support::arbitrary::{dtype, manifest, number, storage_record, table, tensor_record};
use support::frame::{digested, entry_of, manifest_of};
use support::table::{Entry, Table, decode_entry, decode_header};

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn marker_reads_back_and_any_damage_is_refused(uuid in any::<Uuid>()) {
        let bytes = Marker { uuid }.encode();
        prop_assert_eq!(Marker::decode(&bytes), Ok(Marker { uuid }));
        for bit in 0..bytes.len() * 8 {
            prop_assert!(Marker::decode(&flipped(&bytes, bit)).is_err(), "bit {bit} flipped");
        }
        for length in 0..bytes.len() {
            prop_assert!(Marker::decode(&bytes[..length]).is_err(), "cut to {length}");
        }
    }

    #[test]
    fn manifest_reads_back(manifest in manifest()) {
        let bytes = manifest.encode().unwrap();
        prop_assert_eq!(Manifest::decode(&bytes, manifest.uuid, manifest.generation), Ok(manifest));
    }

    #[test]
    fn manifest_with_a_flipped_bit_is_refused(manifest in manifest(), bits in vec(any::<Index>(), 16)) {
        let bytes = manifest.encode().unwrap();
        for bit in bits.iter().map(|bit| bit.index(bytes.len() * 8)) {
            let decoded = Manifest::decode(&flipped(&bytes, bit), manifest.uuid, manifest.generation);
            prop_assert!(decoded.is_err(), "bit {bit} flipped: {decoded:?}");
        }
    }

    #[test]
    fn truncated_manifest_breaks_its_frame(manifest in manifest(), lengths in vec(any::<Index>(), 16)) {
        let bytes = manifest.encode().unwrap();
        for length in lengths.iter().map(|length| length.index(bytes.len())).chain(0..24) {
            let error = Manifest::decode(&bytes[..length], manifest.uuid, manifest.generation).unwrap_err();
            prop_assert_eq!(error.rule(), Rule::ManifestFrame, "cut to {}: {}", length, error);
        }
    }

    #[test]
    fn table_reads_back(table in table()) {
        let (bytes, reference) = table.encode();
        let decoded = Table::decode(&bytes, table.uuid, &reference, table.next_storage_id);
        prop_assert_eq!(decoded, Ok(table));
    }

    #[test]
    fn slots_read_together_equal_slots_read_singly(
        table in table(),
        ends in any::<(Index, Index)>(),
    ) {
        let (bytes, reference) = table.encode();
        let header = decode_header(&bytes, table.uuid, &reference).unwrap();
        let entry_count = header.entry_count() as usize;
        let ends = [ends.0.index(entry_count + 1), ends.1.index(entry_count + 1)];
        let [first, end] = [ends[0].min(ends[1]) as u64, ends[0].max(ends[1]) as u64];
        let read = |first, count| {
            let (offset, length) = header.slots(first, count);
            header.decode_slots(first, &bytes[offset as usize..][..length as usize]).unwrap()
        };
        let singles: Vec<_> = (first..end).flat_map(|ordinal| read(ordinal, 1)).collect();
        prop_assert_eq!(read(first, end - first), singles);
    }

    #[test]
    fn table_with_a_flipped_bit_never_returns_a_different_value(
        table in table(),
        bits in vec(any::<Index>(), 16),
        bits_of_slots in vec(any::<Index>(), 4),
    ) {
        let (bytes, _) = table.encode();
        let slots_bits = (table.storages.len() + table.tensors.len() + 1) * 64;
        let slots_at = bytes.len() * 8 - slots_bits;
        let of_slots = bits_of_slots.iter().map(|bit| slots_at + bit.index(slots_bits));
        for bit in bits.iter().map(|bit| bit.index(bytes.len() * 8)).chain(of_slots) {
            check_damaged_table(&table, &flipped(&bytes, bit))?;
        }
    }

    #[test]
    fn truncated_table_never_returns_a_different_value(table in table(), lengths in vec(any::<Index>(), 16)) {
        let (bytes, _) = table.encode();
        for length in lengths.iter().map(|length| length.index(bytes.len())) {
            check_damaged_table(&table, &bytes[..length])?;
        }
    }

    #[test]
    fn random_bytes_never_panic_and_read_back_if_accepted(bytes in random_bytes(), generation in 0..4u64) {
        check_marker(&bytes)?;
        check_marker(&digested(&[&Marker { uuid: [0; 16] }.encode()[..16], &bytes].concat()))?;
        check_manifest(&bytes, generation)?;
        check_manifest(&manifest_of(&bytes), generation)?;
        check_manifest(&manifest_of(&[&[0; 16], &bytes[..]].concat()), generation)?;
        check_entries(&bytes, 0, u64::MAX)?;
        check_entries(&entry_of(&bytes, 1, 0), 1, u64::MAX)?;
    }

    #[test]
    fn table_header_is_refused_unless_its_index_fits(
        bytes in random_bytes(),
        numbers in prop_oneof![[number(), number(), number()], [0..8u64, 0..8u64, 60..200u64]],
    ) {
        let [storages, tensors, length_bytes] = numbers;
        let decode = |header: &[u8]| {
            let header_digest = digest(header);
            TableHeader::decode(header, [0; 16], &TableRef { generation: 1, length_bytes, header_digest })
        };
        let header = [&empty_table().encode().0[..40], numbers.map(u64::to_le_bytes).as_flattened()].concat();
        let index_bytes = (u128::from(storages) + u128::from(tensors) + 1) * 8;
        let fits = 64 + index_bytes <= u128::from(length_bytes);
        prop_assert_eq!(decode(&header).is_ok(), fits);
        prop_assert!(decode(&[&header[..], &[0]].concat()).is_err(), "a header of 65 bytes");
        prop_assert!(decode(&bytes).is_err(), "{bytes:?}");
    }

    #[test]
    fn slots_lie_within_the_entries(
        entry_count in 0..4u64,
        length_bytes in 100..33_000u64,
        first in 0..5u64,
        slots in vec(prop_oneof![3 => 56..80u64, 3 => 60..33_000u64, 1 => any::<u64>()], 0..5),
        stray in 0..8usize,
    ) {
        let numbers = [0, entry_count, length_bytes].map(u64::to_le_bytes);
        let header = [&empty_table().encode().0[..40], numbers.as_flattened()].concat();
        let reference = TableRef { generation: 1, length_bytes, header_digest: digest(&header) };
        let header = decode_header(&header, [0; 16], &reference).unwrap();
        let bytes: Vec<u8> = slots.iter().flat_map(|slot| slot.to_le_bytes()).chain(vec![0; stray]).collect();
        if let Ok(entries) = header.decode_slots(first, &bytes) {
            let stated: Vec<_> = slots.windows(2).map(|pair| (pair[0], pair[1] - pair[0])).collect();
            prop_assert_eq!(&entries, &stated);
            for (offset, length) in entries {
                let index_offset = length_bytes - 8 * (entry_count + 1);
                let inside = offset >= 64 && offset + length <= index_offset;
                prop_assert!(inside && (8..=32768).contains(&length), "{length} bytes at {offset}");
            }
        }
    }

    #[test]
    fn mutated_manifest_is_refused_or_reads_back(manifest in manifest(), edits in edits()) {
        let bytes = manifest.encode().unwrap();
        let body = edited(&bytes[24..bytes.len() - 16], &edits);
        let mutated = manifest_of(&body);
        if let Ok(decoded) = Manifest::decode(&mutated, manifest.uuid, manifest.generation) {
            prop_assert_eq!(decoded.encode(), Ok(mutated));
        }
    }

    #[test]
    fn mutated_entry_is_refused_or_reads_back(
        storage in storage_record(),
        tensor in tensor_record(1000),
        edits in edits(),
    ) {
        let (storage, tensor) = (encoded_storage(1, &storage, 1000), encoded_tensor("t", &tensor, 1000));
        for entry in [storage, tensor] {
            let record = edited(&entry[..entry.len() - 8], &edits);
            check_entries(&entry_of(&record, 1, 0), 1, 1000)?;
        }
    }

    #[test]
    fn extent_covers_exactly_the_elements(
        dims in vec((0..5u64, -4..=4i64), 0..4),
        offset in -3..20i64,
        dtype in dtype(),
        length_bytes in 0..200u64,
    ) {
        let mut elements = vec![offset];
        for &(size, stride) in &dims {
            let along = |start: i64| (0..size as i64).map(move |i| start + i * stride);
            elements = elements.into_iter().flat_map(along).collect();
        }
        let (lowest, end) = match (elements.iter().min(), elements.iter().max()) {
            (Some(&lowest), Some(&highest)) => (lowest, highest + 1),
            _ => (offset, offset),
        };
        let itemsize = dtype.itemsize() as i64;
        let inside = lowest >= 0 && end * itemsize <= length_bytes as i64;
        let expected = inside.then(|| ((lowest * itemsize) as u64, (end * itemsize) as u64));
        let wide = dims.iter().map(|&(size, stride)| (i128::from(size), i128::from(stride)));
        match Extent::of(wide, offset.into(), dtype, length_bytes) {
            Ok(extent) => prop_assert_eq!(Some((extent.start_bytes(), extent.end_bytes())), expected),
            Err(error) => prop_assert_eq!((error.rule(), expected), (Rule::Extent, None), "{}", error),
        }
    }

    #[test]
    fn view_without_elements_needs_only_its_offset_inside(
        mut dims in vec((any::<u64>(), any::<i64>()), 1..8),
        zero in any::<Index>(),
        offset in 0..60u64,
        length_bytes in 0..200u64,
    ) {
        zero.get_mut(&mut dims).0 = 0;
        let wide = dims.iter().map(|&(size, stride)| (i128::from(size), i128::from(stride)));
        let extent = Extent::of(wide, offset.into(), DType::F32, length_bytes);
        let expected = (offset * 4 <= length_bytes).then_some((offset * 4, 0));
        prop_assert_eq!(extent.ok().map(|extent| (extent.start_bytes(), extent.span_bytes())), expected);
    }

    #[test]
    fn numel_is_the_product_if_it_fits(size in vec(number(), 0..5)) {
        let nonzero = |product: i64, &n: &u64| product.checked_mul(i64::try_from(n).ok()?);
        let product = if size.contains(&0) { Some(0) } else { size.iter().try_fold(1, nonzero) };
        prop_assert_eq!(check_numel(size).ok(), product.map(|product| product as u64));
    }
}

/// Checks that a damaged table fails verification, and that each of its entries is refused or unchanged.
fn check_damaged_table(table: &Table, damaged: &[u8]) -> Result<(), TestCaseError> {
    let (bytes, reference) = table.encode();
    let whole = Table::decode(damaged, table.uuid, &reference, table.next_storage_id);
    prop_assert!(whole.is_err(), "the damage was not seen: {whole:?}");
    let Ok(header) = decode_header(damaged, table.uuid, &reference) else {
        let header_is_whole = damaged.get(..TABLE_HEADER_BYTES) == bytes.get(..TABLE_HEADER_BYTES);
        prop_assert!(!header_is_whole, "the header was refused for something that it does not contain");
        return Ok(());
    };
    let storages = table.storages.iter().map(|(&id, record)| Entry::Storage(id, record.clone()));
    let tensors = table.tensors.iter().map(|(name, record)| Entry::Tensor(name.clone(), record.clone()));
    for (ordinal, entry) in (0..).zip(storages.chain(tensors)) {
        if let Ok(found) = decode_entry(damaged, &header, ordinal, table.next_storage_id) {
            prop_assert_eq!(found, entry, "entry {}", ordinal);
        }
    }
    Ok(())
}

fn check_marker(bytes: &[u8]) -> Result<(), TestCaseError> {
    if let Ok(marker) = Marker::decode(bytes) {
        prop_assert_eq!(marker.encode(), bytes);
    }
    Ok(())
}

fn check_manifest(bytes: &[u8], generation: u64) -> Result<(), TestCaseError> {
    if let Ok(manifest) = Manifest::decode(bytes, [0; 16], generation) {
        prop_assert_eq!(manifest.encode(), Ok(bytes.to_vec()));
    }
    Ok(())
}

/// Reads `entry` both as a storage and as a tensor, at ordinal 0 of a table.
fn check_entries(entry: &[u8], generation: u64, next_id: u64) -> Result<(), TestCaseError> {
    let table = Table { generation, ..empty_table() };
    let (bytes, reference) = table.encode();
    let header = decode_header(&bytes, table.uuid, &reference).unwrap();
    if let Ok((id, record)) = header.decode_storage(0, next_id, entry) {
        prop_assert_eq!(encoded_storage(id, &record, next_id), entry);
    }
    if let Ok((name, record)) = header.decode_tensor(0, next_id, entry) {
        prop_assert_eq!(encoded_tensor(&name, &record, next_id), entry);
    }
    Ok(())
}

fn empty_table() -> Table {
    let (storages, tensors) = (BTreeMap::new(), BTreeMap::new());
    Table { uuid: [0; 16], generation: 1, next_storage_id: 1, storages, tensors }
}

/// Returns the first entry of a table of generation 1.
fn encoded_storage(id: u64, record: &StorageRecord, next_id: u64) -> Vec<u8> {
    let mut entry = Vec::new();
    TableEncoder::new([0; 16], 1, next_id).push_storage(id, record, &mut entry).unwrap();
    entry
}

/// Returns the first entry of a table of generation 1.
fn encoded_tensor(name: &str, record: &TensorRecord, next_id: u64) -> Vec<u8> {
    let mut entry = Vec::new();
    TableEncoder::new([0; 16], 1, next_id).push_tensor(name, record, &mut entry).unwrap();
    entry
}

fn flipped(bytes: &[u8], bit: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[bit / 8] ^= 1 << (bit % 8);
    bytes
}

/// Generates bytes that are mostly small, so that counts and options among them are often valid.
fn random_bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(prop_oneof![3 => 0..4u8, 1 => any::<u8>()], 0..120)
}

#[derive(Clone, Debug)]
enum Edit {
    Replace(Index, u8),
    Insert(Index, u8),
    Remove(Index),
    Swap(Index, Index),
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let byte = || prop_oneof![0..4u8, 248..=255u8, any::<u8>()];
    let edit = prop_oneof![
        4 => (any::<Index>(), byte()).prop_map(|(at, byte)| Edit::Replace(at, byte)),
        1 => (any::<Index>(), byte()).prop_map(|(at, byte)| Edit::Insert(at, byte)),
        1 => any::<Index>().prop_map(Edit::Remove),
        1 => any::<(Index, Index)>().prop_map(|(a, b)| Edit::Swap(a, b)),
    ];
    vec(edit, 1..4)
}

fn edited(bytes: &[u8], edits: &[Edit]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for edit in edits {
        let length = bytes.len();
        match edit {
            Edit::Replace(at, byte) => bytes[at.index(length)] = *byte,
            Edit::Insert(at, byte) => bytes.insert(at.index(length + 1), *byte),
            Edit::Remove(at) => drop(bytes.remove(at.index(length))),
            Edit::Swap(a, b) => bytes.swap(a.index(length), b.index(length)),
        }
    }
    bytes
}
