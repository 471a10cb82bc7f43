//! The objects of a remote: properties that hold for all values and all bytes, and the limits.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::collection::{btree_map, btree_set, vec};
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use stridemap_format::limits::{
    MAX_INDEX_PAGES, MAX_MANIFEST_BYTES, MAX_OBJECT_BYTES, MAX_PAGE_BYTES, MAX_PAGE_ENTRIES,
    MAX_REMOTE_MANIFEST_BYTES, MAX_REPLACED, MAX_SEGMENT_BYTES,
};
use stridemap_format::remote::{
    Entries, FileKey, FileKind, Head, ObjectName, PAGE_TARGET_BYTES, Page, Place, Previous, RemoteManifest,
    Segment, decode_page, digests_length_bytes, encode_page, encode_pages, total_bytes,
};
use stridemap_format::{Error, Result, Rule, Uuid};

const UUID: Uuid = [7; 16];

/// A number of any width.
fn number() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..64u32).prop_map(|(n, shift)| n >> shift)
}

fn key() -> impl Strategy<Value = FileKey> {
    (select(&FileKind::ALL[..]), prop_oneof![number(), 0..8u64])
        .prop_map(|(kind, number)| FileKey { kind, number })
}

fn segment(limit_bytes: u64) -> impl Strategy<Value = Segment> {
    let length = (1..=limit_bytes, 0..26u32).prop_map(|(length, shift)| (length >> shift).max(1));
    let fields = (any::<ObjectName>(), number(), length, number(), any::<[u8; 16]>());
    fields.prop_map(|(object, offset, length_bytes, digests_offset, check)| {
        let offset_bytes = offset.min(MAX_OBJECT_BYTES - length_bytes);
        let digests_offset_bytes = match digests_length_bytes(length_bytes) {
            0 => 0,
            digests_bytes => digests_offset.min(MAX_OBJECT_BYTES - digests_bytes),
        };
        Segment { object, offset_bytes, length_bytes, digests_offset_bytes, check }
    })
}

fn entries() -> impl Strategy<Value = Entries> {
    btree_map(key(), vec(segment(MAX_SEGMENT_BYTES), 0..4), 0..12)
}

prop_compose! {
    fn manifest()(
        uuid in any::<Uuid>(),
        generation in number(),
        nonce in any::<[u8; 16]>(),
        previous in of((number(), any::<ObjectName>())),
        manifest in vec(any::<u8>(), 1..300),
        files in entries(),
        kinds in vec(of((1..=MAX_PAGE_ENTRIES as u64, segment(MAX_PAGE_BYTES))), 12),
        replaced in btree_set(any::<ObjectName>(), 0..4),
    ) -> RemoteManifest {
        RemoteManifest {
            uuid,
            generation: generation.max(1),
            nonce,
            previous: previous.map(|(generation, digest)| Previous { generation: generation.max(1), digest }),
            manifest,
            pages: files.into_iter().zip(kinds).map(|((key, segments), stored)| page(key, segments, stored)).collect(),
            replaced: replaced.into_iter().collect(),
        }
    }
}

/// Returns an inline page with a file, or a stored one that begins with it.
fn page(first: FileKey, segments: Vec<Segment>, stored: Option<(u64, Segment)>) -> Page {
    match stored {
        None => inline(Entries::from([(first, segments)])),
        Some((entry_count, segment)) => Page { first, entry_count, place: Place::Stored(segment) },
    }
}

/// Returns an inline page with these files.
fn inline(entries: Entries) -> Page {
    let bytes = encode_page(&entries).unwrap();
    Page {
        first: *entries.keys().next().unwrap(),
        entry_count: entries.len() as u64,
        place: Place::Inline(bytes),
    }
}

fn flipped(bytes: &[u8], bit: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[bit / 8] ^= 1 << (bit % 8);
    bytes
}

/// Checks that bytes are refused, or are the encoding of what they decode to.
fn check_manifest(bytes: &[u8], uuid: Uuid) -> std::result::Result<(), TestCaseError> {
    if let Ok(manifest) = RemoteManifest::decode(bytes, uuid) {
        prop_assert_eq!(&manifest.encode().unwrap()[..], bytes);
    }
    Ok(())
}

/// As [`check_manifest`], for a page.
fn check_page(bytes: &[u8]) -> std::result::Result<(), TestCaseError> {
    if let Ok(entries) = decode_page(bytes) {
        prop_assert_eq!(&encode_page(&entries).unwrap()[..], bytes);
    }
    Ok(())
}

/// Adds the preamble of a remote manifest to a body.
fn framed(body: &[u8]) -> Vec<u8> {
    [b"SMAPREM\n", &1u64.to_le_bytes()[..], &(body.len() as u64).to_le_bytes(), body].concat()
}

#[test]
fn every_single_flipped_bit_is_refused_or_gives_the_only_encoding_of_another_value() {
    let manifest = small();
    let bytes = manifest.encode().unwrap();
    let Place::Inline(page) = &manifest.pages[0].place else { panic!("the page is inline") };
    for bit in 0..bytes.len() * 8 {
        check_manifest(&flipped(&bytes, bit), UUID).unwrap();
    }
    for bit in 0..page.len() * 8 {
        check_page(&flipped(page, bit)).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn head_reads_back_and_any_damage_is_refused(
        (uuid, manifest) in any::<(Uuid, ObjectName)>(),
        generation in number(),
        length in 1..=MAX_REMOTE_MANIFEST_BYTES,
    ) {
        let head = Head { uuid, generation: generation.max(1), manifest, manifest_length_bytes: length };
        let bytes = head.encode().unwrap();
        prop_assert_eq!(bytes.len(), Head::LENGTH);
        prop_assert_eq!(Head::decode(&bytes, Some(uuid)), Ok(head));
        for bit in 0..bytes.len() * 8 {
            prop_assert!(Head::decode(&flipped(&bytes, bit), Some(uuid)).is_err(), "bit {bit} flipped");
        }
        for length in 0..bytes.len() {
            prop_assert!(Head::decode(&bytes[..length], Some(uuid)).is_err(), "cut to {length}");
        }
    }

    #[test]
    fn page_reads_back(entries in entries()) {
        let encoded = encode_page(&entries);
        if entries.is_empty() {
            prop_assert_eq!(encoded.unwrap_err().rule(), Rule::IndexPage);
        } else {
            prop_assert_eq!(decode_page(&encoded.unwrap()), Ok(entries));
        }
    }

    #[test]
    fn page_with_a_changed_byte_is_refused_or_the_only_one_of_its_files(
        entries in entries().prop_filter("has a file", |entries| !entries.is_empty()),
        bits in vec(any::<Index>(), 64),
        changes in vec((any::<Index>(), any::<u8>()), 16),
    ) {
        let bytes = encode_page(&entries).unwrap();
        for bit in bits.iter().map(|bit| bit.index(bytes.len() * 8)) {
            check_page(&flipped(&bytes, bit))?;
        }
        for (at, byte) in changes {
            let (mut changed, at) = (bytes.clone(), at.index(bytes.len()));
            changed[at] = byte;
            check_page(&changed)?;
        }
        for length in (0..bytes.len()).step_by(7) {
            prop_assert!(decode_page(&bytes[..length]).is_err(), "cut to {length}");
        }
    }

    #[test]
    fn index_is_split_into_pages_of_the_usual_length(count in 0..1000u64, segment_count in 0..5usize) {
        let file = |number| FileKey { kind: FileKind::Storage, number };
        let segment = Segment { object: [1; 32], offset_bytes: 9999, length_bytes: 9999, digests_offset_bytes: 0, check: [2; 16] };
        let entries: Entries = (0..count).map(|id| (file(id), vec![segment; segment_count])).collect();
        let mut found = Entries::new();
        let pages = encode_pages(&entries).unwrap();
        let longest = 18 + 60 * segment_count;
        for (position, (first, entry_count, bytes)) in pages.iter().enumerate() {
            let mut page = decode_page(bytes).unwrap();
            prop_assert_eq!((page.keys().next(), page.len() as u64), (Some(first), *entry_count));
            prop_assert!(bytes.len() <= PAGE_TARGET_BYTES);
            prop_assert!(position + 1 == pages.len() || bytes.len() + longest > PAGE_TARGET_BYTES);
            found.append(&mut page);
        }
        prop_assert_eq!(found, entries);
    }

    #[test]
    fn remote_manifest_reads_back(manifest in manifest()) {
        let bytes = manifest.encode().unwrap();
        prop_assert_eq!(RemoteManifest::decode(&bytes, manifest.uuid), Ok(manifest));
    }

    #[test]
    fn every_file_is_found_in_the_page_that_has_it(manifest in manifest(), other in key()) {
        for (position, page) in manifest.pages.iter().enumerate() {
            prop_assert_eq!(manifest.page_of(page.first), Some(position));
        }
        let position = manifest.page_of(other);
        let is_before = manifest.pages.first().is_none_or(|page| other < page.first);
        prop_assert_eq!(position.is_none(), is_before);
        if let Some(position) = position {
            prop_assert!(manifest.pages[position].first <= other);
            prop_assert!(manifest.pages.get(position + 1).is_none_or(|page| other < page.first));
        }
    }

    #[test]
    fn remote_manifest_with_a_changed_byte_is_refused_or_the_only_one_of_its_values(
        manifest in manifest(),
        changes in vec((any::<Index>(), any::<u8>()), 64),
        lengths in vec(any::<Index>(), 16),
    ) {
        let bytes = manifest.encode().unwrap();
        for (at, byte) in changes {
            let (mut changed, at) = (bytes.clone(), at.index(bytes.len()));
            changed[at] = byte;
            check_manifest(&changed, manifest.uuid)?;
        }
        for length in lengths.iter().map(|length| length.index(bytes.len())).chain(0..24) {
            let error = RemoteManifest::decode(&bytes[..length], manifest.uuid).unwrap_err();
            prop_assert_eq!(error.rule(), Rule::RemoteFrame, "cut to {}: {}", length, error);
        }
    }

    #[test]
    fn random_bytes_never_panic_and_read_back_if_accepted(bytes in vec(any::<u8>(), 0..200)) {
        check_page(&bytes)?;
        check_manifest(&bytes, UUID)?;
        check_manifest(&framed(&bytes), UUID)?;
        check_manifest(&framed(&[&UUID[..], &[1], &[0; 17], &bytes].concat()), UUID)?;
        prop_assert!(Head::decode(&bytes, Some(UUID)).is_err());
    }
}

/// A remote manifest with one page for each kind of place.
fn small() -> RemoteManifest {
    let whole = Segment {
        object: [1; 32],
        offset_bytes: 0,
        length_bytes: 300,
        digests_offset_bytes: 0,
        check: [8; 16],
    };
    let part = Segment {
        object: [2; 32],
        offset_bytes: 5,
        length_bytes: 70_000,
        digests_offset_bytes: 0,
        check: [3; 16],
    };
    let file = |kind, number| FileKey { kind, number };
    let first = Entries::from([
        (file(FileKind::KeptManifest, 2), vec![part]),
        (file(FileKind::Storage, 1), vec![whole, part]),
        (file(FileKind::Storage, 2), vec![]),
    ]);
    let stored = Page { first: file(FileKind::Storage, 300), entry_count: 4, place: Place::Stored(part) };
    RemoteManifest {
        uuid: UUID,
        generation: 9,
        nonce: [4; 16],
        previous: Some(Previous { generation: 8, digest: [5; 32] }),
        manifest: b"a manifest".to_vec(),
        pages: vec![inline(first), stored],
        replaced: vec![[6; 32], [7; 32]],
    }
}

/// Returns the errors of encoding a value, and of decoding what an encoder without checks writes.
fn refused(manifest: &RemoteManifest) -> [Error; 2] {
    let body = bincode::Options::serialize(bincode::DefaultOptions::new(), manifest).unwrap();
    [manifest.encode().unwrap_err(), RemoteManifest::decode(&framed(&body), UUID).unwrap_err()]
}

#[test]
fn values_past_the_limits_are_neither_written_nor_read() {
    let small = small();
    let with_page = |change: &dyn Fn(&mut Page)| {
        let mut changed = small.clone();
        change(&mut changed.pages[1]);
        changed
    };
    let with_first = |change: &dyn Fn(&mut Page)| {
        let mut changed = small.clone();
        change(&mut changed.pages[0]);
        changed
    };
    let stored = |offset_bytes, length_bytes| {
        Place::Stored(Segment {
            object: [2; 32],
            offset_bytes,
            length_bytes,
            digests_offset_bytes: 0,
            check: [3; 16],
        })
    };
    let many = Page { first: FileKey { kind: FileKind::Table, number: 0 }, ..small.pages[1].clone() };
    let page = |number| Page { first: FileKey { number, ..many.first }, ..many.clone() };
    let name = |number: u32| {
        let mut name = [0; 32];
        name[..4].copy_from_slice(&number.to_be_bytes());
        name
    };
    let last = FileKey { kind: FileKind::Storage, number: 2 };
    let cases = [
        (Rule::RemoteGeneration, RemoteManifest { generation: 0, ..small.clone() }),
        (
            Rule::RemoteGeneration,
            RemoteManifest { previous: Some(Previous { generation: 0, digest: [5; 32] }), ..small.clone() },
        ),
        (Rule::RemoteFrame, RemoteManifest { manifest: Vec::new(), ..small.clone() }),
        (
            Rule::RemoteFrame,
            RemoteManifest { manifest: vec![0; MAX_MANIFEST_BYTES as usize + 1], ..small.clone() },
        ),
        (
            Rule::RemoteLimits,
            RemoteManifest { pages: (0..=MAX_INDEX_PAGES as u64).map(page).collect(), ..small.clone() },
        ),
        (
            Rule::RemoteLimits,
            RemoteManifest { replaced: (0..=MAX_REPLACED as u32).map(name).collect(), ..small.clone() },
        ),
        (Rule::RemoteLimits, RemoteManifest { replaced: vec![[7; 32], [6; 32]], ..small.clone() }),
        (Rule::RemoteLimits, RemoteManifest { replaced: vec![[7; 32], [7; 32]], ..small.clone() }),
        (Rule::IndexPage, with_page(&|page| page.entry_count = 0)),
        (Rule::IndexPage, with_page(&|page| page.entry_count = MAX_PAGE_ENTRIES as u64 + 1)),
        (Rule::IndexPage, with_page(&|page| page.place = stored(0, MAX_PAGE_BYTES + 1))),
        (Rule::IndexPage, with_first(&|page| page.entry_count = 2)),
        (
            Rule::IndexPage,
            with_first(&|page| page.place = Place::Inline(vec![0; MAX_PAGE_BYTES as usize + 1])),
        ),
        (Rule::IndexPage, with_first(&|page| page.place = Place::Inline(vec![0]))),
        (Rule::Canonical, with_first(&|page| page.place = Place::Inline(Vec::new()))),
        (Rule::IndexOrder, with_first(&|page| page.first.number = 1)),
        (Rule::IndexOrder, with_page(&|page| page.first = last)),
        (Rule::IndexOrder, with_page(&|page| page.first = FileKey { kind: FileKind::Table, number: 0 })),
        (
            Rule::IndexOrder,
            with_page(&|page| page.first = FileKey { kind: FileKind::KeptManifest, number: 0 }),
        ),
        (Rule::Segment, with_page(&|page| page.place = stored(0, 0))),
        (Rule::Segment, with_page(&|page| page.place = stored(0, MAX_SEGMENT_BYTES + 1))),
        (Rule::Segment, with_page(&|page| page.place = stored(5, 0))),
        (Rule::Segment, with_page(&|page| page.place = stored(MAX_OBJECT_BYTES - 5, 6))),
        (Rule::Segment, with_page(&|page| page.place = stored(u64::MAX, 1))),
        (Rule::Segment, with_page(&|page| page.place = stored(1, u64::MAX))),
    ];
    for (rule, value) in cases {
        for error in refused(&value) {
            assert_eq!(error.rule(), rule, "{error}");
        }
    }
    let most = RemoteManifest {
        pages: (0..MAX_INDEX_PAGES as u64).map(page).collect(),
        replaced: (0..MAX_REPLACED as u32).map(name).collect(),
        manifest: vec![0; MAX_MANIFEST_BYTES as usize],
        ..small
    };
    let bytes = most.encode().unwrap();
    assert!(RemoteManifest::decode(&bytes, UUID).unwrap() == most);
}

#[test]
fn remote_manifest_past_64_mib_is_neither_written_nor_read() {
    let file = |number| FileKey { kind: FileKind::Storage, number };
    let segment = Segment {
        object: [1; 32],
        offset_bytes: 0,
        length_bytes: 1,
        digests_offset_bytes: 0,
        check: [2; 16],
    };
    // 17 pages of almost 4 MiB.
    let page = |number| inline(Entries::from([(file(number), vec![segment; 80_000])]));
    let mut manifest = RemoteManifest { pages: (1..=17).map(page).collect(), ..small() };
    for error in refused(&manifest) {
        assert_eq!(error.rule(), Rule::RemoteFrame, "{error}");
    }
    manifest.pages.truncate(16);
    let bytes = manifest.encode().unwrap();
    assert!(RemoteManifest::decode(&bytes, UUID).unwrap() == manifest);
}

#[test]
fn remote_manifest_of_another_version_store_or_kind_is_refused() {
    let bytes = small().encode().unwrap();
    let changed = |at: usize, byte| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        RemoteManifest::decode(&bytes, UUID).unwrap_err()
    };
    for (at, byte, rule) in [
        (0, b'T', Rule::RemoteFrame),
        (8, 2, Rule::Version),
        (16, 0, Rule::RemoteFrame),
        (24, 8, Rule::RemoteUuid),
    ] {
        assert_eq!(changed(at, byte).rule(), rule, "byte {at}");
    }
    assert_eq!(changed(24, 8).offset_bytes(), Some(24));
}

#[test]
fn head_with_a_digest_but_a_wrong_value_is_refused() {
    let good = Head { uuid: UUID, generation: 9, manifest: [1; 32], manifest_length_bytes: 5000 };
    let bytes = good.encode().unwrap();
    let with = |at: usize, value: &[u8]| {
        let mut bytes = bytes[..80].to_vec();
        bytes[at..at + value.len()].copy_from_slice(value);
        bytes.extend(stridemap_format::digest(&bytes));
        Head::decode(&bytes, Some(UUID)).map_err(|error| error.rule())
    };
    assert_eq!(with(0, b"S"), Ok(good));
    assert_eq!(with(0, b"s"), Err(Rule::HeadMagic));
    assert_eq!(with(8, &[2]), Err(Rule::Version));
    assert_eq!(with(16, &[8]), Err(Rule::RemoteUuid));
    assert_eq!(with(32, &[0]), Err(Rule::RemoteGeneration));
    assert_eq!(with(72, &[0; 8]), Err(Rule::RemoteFrame));
    assert_eq!(with(72, &(MAX_REMOTE_MANIFEST_BYTES + 1).to_le_bytes()), Err(Rule::RemoteFrame));
    let zero = Head { generation: 0, ..good };
    assert_eq!(zero.encode().unwrap_err().rule(), Rule::RemoteGeneration);
    let empty = Head { manifest_length_bytes: 0, ..good };
    assert_eq!(empty.encode().unwrap_err().rule(), Rule::RemoteFrame);
    let longer = Head::decode(&[&bytes[..], &[0]].concat(), Some(UUID));
    assert_eq!(longer.unwrap_err().rule(), Rule::HeadDigest);
}

#[test]
fn head_refuses_a_remote_manifest_of_another_generation() {
    let manifest = small();
    let bytes = manifest.encode().unwrap();
    let head =
        Head { uuid: UUID, generation: 9, manifest: [1; 32], manifest_length_bytes: bytes.len() as u64 };
    assert_eq!(head.decode_manifest(&bytes), Ok(manifest));
    let other = Head { generation: 10, ..head }.decode_manifest(&bytes).unwrap_err();
    assert_eq!(other.rule(), Rule::RemoteGeneration, "{other}");
}

#[test]
fn stored_page_must_be_the_one_that_its_manifest_states() {
    let file = |number| FileKey { kind: FileKind::Storage, number };
    let segment = Segment {
        object: [1; 32],
        offset_bytes: 0,
        length_bytes: 1,
        digests_offset_bytes: 0,
        check: [2; 16],
    };
    let page = |first| Page { first: file(first), entry_count: 2, place: Place::Stored(segment) };
    let manifest = RemoteManifest { pages: vec![page(3), page(10)], ..small() };
    let bytes = |ids: &[u64]| {
        encode_page(&ids.iter().map(|&id| (file(id), vec![segment])).collect::<BTreeMap<_, _>>()).unwrap()
    };
    let read = |position, ids: &[u64]| -> Result<usize, Rule> {
        manifest.decode_page(position, &bytes(ids)).map(|page| page.len()).map_err(|error| error.rule())
    };
    assert_eq!(read(0, &[3, 9]), Ok(2));
    assert_eq!(read(1, &[10, 11]), Ok(2));
    assert_eq!(read(0, &[3]), Err(Rule::IndexPage));
    assert_eq!(read(0, &[4, 9]), Err(Rule::IndexOrder));
    assert_eq!(read(0, &[3, 10]), Err(Rule::IndexOrder));
    assert_eq!(read(2, &[3, 9]), Ok(0));
}

#[test]
fn pages_past_the_limits_are_neither_written_nor_read() {
    let file = |number| FileKey { kind: FileKind::Storage, number };
    let of = |count: u64| -> Entries { (0..count).map(|id| (file(id), Vec::new())).collect() };
    let most = of(MAX_PAGE_ENTRIES as u64);
    assert_eq!(decode_page(&encode_page(&most).unwrap()), Ok(most));
    let many = of(MAX_PAGE_ENTRIES as u64 + 1);
    let written = bincode::Options::serialize(bincode::DefaultOptions::new(), &many).unwrap();
    assert_eq!(encode_page(&many).unwrap_err().rule(), Rule::IndexPage);
    assert_eq!(decode_page(&written).unwrap_err().rule(), Rule::IndexPage);
    let segment = Segment {
        object: [1; 32],
        offset_bytes: 0,
        length_bytes: 1,
        digests_offset_bytes: 0,
        check: [2; 16],
    };
    let long = Entries::from([(file(1), vec![segment; 90_000])]);
    let written = bincode::Options::serialize(bincode::DefaultOptions::new(), &long).unwrap();
    assert_eq!(encode_page(&long).unwrap_err().rule(), Rule::IndexPage);
    assert_eq!(decode_page(&written).unwrap_err().rule(), Rule::IndexPage);
    assert_eq!(decode_page(&[0]).unwrap_err().rule(), Rule::IndexPage);
    assert_eq!(total_bytes(&[segment; 3]), 3);
}

#[test]
fn unknown_choices_long_counts_and_wrong_orders_are_refused() {
    let file = |number| FileKey { kind: FileKind::Storage, number };
    let segment = Segment {
        object: [1; 32],
        offset_bytes: 0,
        length_bytes: 1,
        digests_offset_bytes: 0,
        check: [2; 16],
    };
    let page = encode_page(&Entries::from([(file(1), vec![segment])])).unwrap();
    assert_eq!(page[..5], [1, 3, 1, 1, 0]);
    let changed = |at: usize, byte| {
        let mut page = page.clone();
        page[at] = byte;
        decode_page(&page).unwrap_err().rule()
    };
    assert_eq!(changed(1, 5), Rule::RemoteChoice, "kind of file");
    assert_eq!(changed(4, 1), Rule::RemoteChoice, "kind of segment");
    let wide = [&[253][..], &(1u64 << 60).to_le_bytes()].concat();
    for bytes in [wide.clone(), [&[1, 3, 1][..], &wide].concat(), [1, 3, 1, 0, 0].to_vec()] {
        assert_eq!(decode_page(&bytes).unwrap_err().rule(), Rule::Canonical, "{bytes:?}");
    }
    // The second file is the first again, or comes before it.
    assert!(decode_page(&[2, 3, 1, 0, 3, 2, 0]).is_ok());
    for bytes in [[2, 3, 1, 0, 3, 1, 0], [2, 3, 1, 0, 2, 2, 0]] {
        assert_eq!(decode_page(&bytes).unwrap_err().rule(), Rule::Canonical, "{bytes:?}");
    }
    // After the uuid, the generation, the nonce and no previous: a manifest of one byte, then one page.
    let start = [&UUID[..], &[1], &[0; 16], &[0], &[1, 9]].concat();
    let read = |rest: &[u8]| {
        let decoded = RemoteManifest::decode(&framed(&[&start[..], rest].concat()), UUID);
        decoded.map(drop).map_err(|error| error.rule())
    };
    assert_eq!(read(&[0, 0]), Ok(()));
    assert_eq!(read(&[1, 3, 1, 1, 0, 4, 1, 3, 1, 0, 0]), Ok(()));
    assert_eq!(read(&[1, 3, 1, 1, 2, 4, 1, 3, 1, 0, 0]), Err(Rule::RemoteChoice));
    assert_eq!(read(&[1, 5, 1, 1, 0, 4, 1, 3, 1, 0, 0]), Err(Rule::RemoteChoice));
    for rest in [wide.clone(), [&[0][..], &wide].concat(), [&[1, 3, 1, 1, 0][..], &wide].concat()] {
        assert_eq!(read(&rest), Err(Rule::Canonical), "{rest:?}");
    }
}
