//! Properties of the format that hold for all values and all bytes.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fmt::Debug;

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::Index;
use stridemap_format::{
    Bounds, DType, Entry, Extent, GarbageKey, Header, KeptKey, Manifest, Marker, Node, PAGE_BYTES, Result,
    Rule, TableEncoder, TableRef, TensorRecord, Tree, Uuid, check_numel,
};

mod support {
    pub(crate) mod arbitrary;
    pub(crate) mod frame;
    pub(crate) mod table;
}
use support::arbitrary::{dtype, garbage, kept, manifest, number, storage_record, table, tag, tensor_record};
use support::frame::{digested, manifest_of, node_of, redigested};
use support::table::{GarbageEntry, KeptEntry, StorageEntry, Table, TableFile, TagEntry, TensorEntry};

/// The bounds of entries that are not in a table.
const BOUNDS: Bounds = Bounds { generation: 1000, next_storage_id: 1000 };

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
    fn table_reads_back_by_scan_and_by_lookup(table in table()) {
        let (bytes, reference) = table.encode();
        let decoded = Table::decode(&bytes, table.uuid, &reference, table.bounds);
        prop_assert_eq!(decoded.as_ref(), Ok(&table));
        check_lookups(&table, &bytes, &reference)?;
    }

    #[test]
    fn names_that_begin_alike_are_found_in_every_node(
        record in tensor_record(2),
        names in btree_set(("(a{0,2}|a{200,300})", "[ab\u{1}é]{0,12}").prop_map(|(start, end)| start + &end), 0..400),
    ) {
        let tensors = names.into_iter().filter(|name| !name.is_empty()).map(|name| (name, record.clone())).collect();
        let bounds = Bounds { generation: 3, next_storage_id: 2 };
        let table = Table { tensors, ..Table::empty([7; 16], bounds) };
        let (bytes, reference) = table.encode();
        check_lookups(&table, &bytes, &reference)?;
    }

    #[test]
    fn nodes_are_written_without_a_gap_and_roots_last(table in table()) {
        let (bytes, reference) = table.encode();
        let (mut page, mut starts) = (0, Vec::new());
        while page < reference.page_count {
            let node = node_at(&table, &bytes, page).unwrap();
            starts.push(page);
            page += node.pages();
        }
        let trees: Vec<_> = starts.iter().map(|&page| node_at(&table, &bytes, page).unwrap().tree()).collect();
        prop_assert!(trees.is_sorted(), "{:?}", trees);
        for tree in Tree::ALL {
            let last = starts.iter().zip(&trees).rfind(|(_, of)| **of == tree).map(|(&page, _)| page);
            let stated = reference.tree(tree);
            prop_assert_eq!(stated.root_page, last.unwrap_or_default(), "{}", tree);
            prop_assert_eq!(stated.entry_count == 0, last.is_none(), "{}", tree);
        }
    }

    #[test]
    fn table_with_a_flipped_bit_is_refused_and_never_returns_a_different_value(
        table in table(),
        bits in vec(any::<Index>(), 6),
    ) {
        let (bytes, reference) = table.encode();
        for bit in bits.iter().filter(|_| !bytes.is_empty()).map(|bit| bit.index(bytes.len() * 8)) {
            let damaged = flipped(&bytes, bit);
            let whole = Table::decode(&damaged, table.uuid, &reference, table.bounds);
            prop_assert!(whole.is_err(), "bit {bit} flipped: {whole:?}");
            check_lookups(&table, &damaged, &reference)?;
        }
    }

    #[test]
    fn truncated_table_is_refused(table in table(), lengths in vec(any::<Index>(), 16)) {
        let (bytes, reference) = table.encode();
        // A table without entries has no bytes.
        for length in lengths.iter().filter_map(|length| Some(length.index(bytes.len().checked_sub(1)? + 1))) {
            let cut = Table::decode(&bytes[..length], table.uuid, &reference, table.bounds);
            prop_assert_eq!(cut.unwrap_err().rule(), Rule::TableFile);
        }
    }

    #[test]
    fn random_bytes_never_panic_and_read_back_if_accepted(bytes in random_bytes(), generation in 0..4u64) {
        check_marker(&bytes)?;
        check_marker(&digested(&[&Marker { uuid: [0; 16] }.encode()[..16], &bytes].concat()))?;
        check_manifest(&bytes, generation)?;
        check_manifest(&manifest_of(&bytes), generation)?;
        check_manifest(&manifest_of(&[&[0; 16], &bytes[..]].concat()), generation)?;
        check_node(&bytes)?;
        check_entries(&bytes)?;
    }

    #[test]
    fn mutated_node_is_refused_or_the_only_one_with_its_entries(table in table(), edits in edits(), at in any::<Index>()) {
        let (bytes, reference) = table.encode();
        if bytes.is_empty() {
            return Ok(());
        }
        let page = at.index(reference.page_count as usize);
        let node = edited(&bytes[page * PAGE_BYTES..], &edits);
        check_node(&node)?;
        if node.len() >= PAGE_BYTES {
            check_node(&redigested(node[..PAGE_BYTES].to_vec()))?;
        }
        // Edits of the header and the slots, which are at most a few bytes of a page.
        let mut node = bytes[..PAGE_BYTES].to_vec();
        let head = edited(&node[..72], &edits);
        node[..head.len().min(72)].copy_from_slice(&head[..head.len().min(72)]);
        check_node(&redigested(node))?;
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
        tag in tag(BOUNDS),
        kept in kept(BOUNDS),
        garbage in garbage(BOUNDS),
        edits in edits(),
    ) {
        let leaves = [
            leaf_of(&(1, storage)),
            leaf_of(&("t".to_owned(), tensor)),
            leaf_of(&("t".to_owned(), tag)),
            leaf_of(&kept),
            leaf_of(&garbage),
        ];
        for leaf in leaves {
            check_entries(&edited(&only_entry(&leaf), &edits))?;
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
    fn numel_is_the_product_if_it_fits(size in vec(number().prop_map(|n| n as usize), 0..5)) {
        let nonzero = |product: isize, &n: &usize| product.checked_mul(isize::try_from(n).ok()?);
        let product = if size.contains(&0) { Some(0) } else { size.iter().try_fold(1, nonzero) };
        prop_assert_eq!(check_numel(&size).ok(), product.map(|product| product as usize));
    }
}

#[test]
fn lookup_in_a_million_tensors_reads_at_most_four_nodes() {
    const COUNT: u64 = 1_000_000;
    let header = Header::new(DType::F32, [4096, 1024], [1024, 1], 1 << 20).unwrap();
    let record = TensorRecord { header: header.into(), storage_id: 1 };
    let name = |i: u64| format!("model.layers.{i:07}.weight");
    let bounds = Bounds { generation: 3, next_storage_id: 2 };
    let (mut encoder, mut bytes) = (TableEncoder::new([7; 16], bounds), Vec::new());
    for i in 0..COUNT {
        encoder.push(&(name(2 * i), record.clone()), &mut bytes).unwrap();
    }
    let reference = encoder.finish(&mut bytes).unwrap();
    assert_eq!((reference.entry_count(), reference.tree(Tree::Tensors).entry_count), (COUNT, COUNT));
    let file = TableFile::open(&bytes, [7; 16], &reference, bounds).unwrap();
    for i in (0..COUNT).step_by(9973).chain([COUNT - 1]) {
        let (found, node_count) = file.find::<TensorEntry>(&name(2 * i)).unwrap();
        assert_eq!(found, Some((name(2 * i), record.clone())));
        assert!(node_count <= 4, "{node_count} nodes");
        assert_eq!(file.find::<TensorEntry>(&name(2 * i + 1)).unwrap().0, None);
    }
}

/// Checks lookups of the keys in a table, and of keys beside them. Each returns the right entry, or, if the bytes are
/// damaged, an error.
fn check_lookups(table: &Table, bytes: &[u8], reference: &TableRef) -> Result<(), TestCaseError> {
    let is_whole = bytes == table.encode().0;
    let file = TableFile::open(bytes, table.uuid, reference, table.bounds).unwrap();
    let around = |&number: &u64| [number.saturating_sub(1), number, number.saturating_add(1)];
    let beside = |name: &String| {
        let mut shorter = name.clone();
        shorter.pop();
        [shorter, name.clone(), format!("{name}\u{1}")]
    };
    for id in table.storages.keys().flat_map(around).chain([0, u64::MAX]) {
        check_lookup::<StorageEntry>(&file, &id, entry_of(&table.storages, &id), is_whole)?;
    }
    for name in table.tensors.keys().flat_map(beside).chain([String::new(), "\u{10ffff}".repeat(5)]) {
        check_lookup::<TensorEntry>(&file, &name, entry_of(&table.tensors, &name), is_whole)?;
    }
    for name in table.tags.keys().flat_map(beside) {
        check_lookup::<TagEntry>(&file, &name, entry_of(&table.tags, &name), is_whole)?;
    }
    for key in table.kept.keys() {
        for generation in around(&key.generation) {
            let key = KeptKey { generation, ..*key };
            check_lookup::<KeptEntry>(&file, &key, entry_of(&table.kept, &key), is_whole)?;
        }
    }
    for key in table.garbage.keys() {
        for is_tagged in [false, true] {
            let key = GarbageKey { is_tagged, ..*key };
            check_lookup::<GarbageEntry>(&file, &key, entry_of(&table.garbage, &key), is_whole)?;
        }
    }
    Ok(())
}

fn check_lookup<E: Entry + PartialEq + Debug>(
    file: &TableFile<'_>,
    key: &E::Key,
    expected: Option<E>,
    is_whole: bool,
) -> Result<(), TestCaseError> {
    match file.find::<E>(key) {
        Ok((found, _)) => prop_assert_eq!(found, expected),
        Err(e) => prop_assert!(!is_whole, "{expected:?}: {e}"),
    }
    Ok(())
}

fn entry_of<K: Ord + Clone, V: Clone>(entries: &BTreeMap<K, V>, key: &K) -> Option<(K, V)> {
    entries.get_key_value(key).map(|(key, record)| (key.clone(), record.clone()))
}

/// Decodes the node at a page of a valid table.
fn node_at(table: &Table, bytes: &[u8], page: u64) -> Result<Node> {
    let rest = &bytes[page as usize * PAGE_BYTES..];
    let length = Node::page_count(rest) as usize * PAGE_BYTES;
    Node::decode(rest[..length].into(), table.uuid, table.bounds.generation, page)
}

/// Decodes any bytes as a node, at the place that they state. If they are accepted, no other node has these entries.
fn check_node(bytes: &[u8]) -> Result<(), TestCaseError> {
    let number = |at: usize, width: usize| {
        let stated = bytes.get(at..at + width).unwrap_or_default();
        stated.iter().rev().fold(0, |number: u64, &byte| number << 8 | u64::from(byte))
    };
    let uuid = bytes.get(16..32).map_or([0; 16], |uuid| uuid.try_into().unwrap());
    let (generation, page) = (number(32, 8), number(40, 8));
    let Ok(node) = Node::decode(bytes.into(), uuid, generation, page) else { return Ok(()) };
    prop_assert_eq!(node.pages() as usize * PAGE_BYTES, bytes.len());
    let slots: Vec<usize> = (0..=node.len()).map(|index| number(56 + 2 * index, 2) as usize).collect();
    let entries: Vec<_> = slots.windows(2).map(|slots| bytes[slots[0]..slots[1]].to_vec()).collect();
    let again = node_of(uuid, generation, (page, number(48, 2) as u16, node.level()), &entries);
    prop_assert!(again == bytes, "two nodes have the same entries");
    // These must not panic.
    try_all::<StorageEntry>(&node, &5);
    try_all::<TensorEntry>(&node, "t");
    try_all::<TagEntry>(&node, "t");
    try_all::<KeptEntry>(&node, &KeptKey { is_tagged: true, generation: 5 });
    try_all::<GarbageEntry>(&node, &GarbageKey { is_tagged: true, dropped: 5, id: 5 });
    Ok(())
}

/// Reads a node as one of a tree, which it may not be.
fn try_all<E: Entry>(node: &Node, key: &E::Key) {
    for index in 0..node.len() {
        let _ = node.key_bytes::<E>(index).is_ok();
        let _ = (node.entry::<E>(index, BOUNDS).is_ok(), node.child::<E>(index).is_ok());
    }
    for _ in 0..3 {
        let _ = (node.search::<E>(key).is_ok(), node.find::<E>(key).is_ok());
    }
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

/// Reads `entry` as one of each tree. If it is accepted, it is what the encoder writes.
fn check_entries(entry: &[u8]) -> Result<(), TestCaseError> {
    check_entry::<StorageEntry>(entry)?;
    check_entry::<TensorEntry>(entry)?;
    check_entry::<TagEntry>(entry)?;
    check_entry::<KeptEntry>(entry)?;
    check_entry::<GarbageEntry>(entry)
}

fn check_entry<E: Entry>(entry: &[u8]) -> Result<(), TestCaseError> {
    let tree = Tree::ALL.iter().position(|&tree| tree == E::TREE).unwrap() as u16;
    let leaf = node_of([0; 16], BOUNDS.generation, (0, tree, 0), &[entry.to_vec()]);
    let Ok(node) = Node::decode(leaf[..].into(), [0; 16], BOUNDS.generation, 0) else {
        prop_assert!(entry.is_empty(), "a leaf with one entry was refused");
        return Ok(());
    };
    if let Ok(decoded) = node.entry::<E>(0, BOUNDS) {
        prop_assert!(leaf_of(&decoded) == leaf);
    }
    Ok(())
}

/// Returns a table with one entry: a leaf.
fn leaf_of<E: Entry>(entry: &E) -> Vec<u8> {
    let (mut encoder, mut bytes) = (TableEncoder::new([0; 16], BOUNDS), Vec::new());
    encoder.push(entry, &mut bytes).unwrap();
    encoder.finish(&mut bytes).unwrap();
    bytes
}

/// Returns the bytes of the entry in a leaf with one.
fn only_entry(leaf: &[u8]) -> Vec<u8> {
    let end = u16::from_le_bytes(leaf[58..60].try_into().unwrap());
    leaf[60..usize::from(end)].to_vec()
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
