//! Zip files, valid and damaged in every field.

use std::io::{Cursor, Write as _};
use std::time::SystemTime;

use proptest::prelude::*;
use stridemap::{ErrorKind, Result};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::{Member, Method, members};
use crate::file::RawFile;

fn open(bytes: &[u8]) -> (tempfile::NamedTempFile, RawFile) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    // With an old mtime, `open` need not wait until a further change would have a different mtime.
    file.as_file().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    let raw = RawFile::open(file.path()).unwrap();
    (file, raw)
}

fn zip_of(files: &[(&str, CompressionMethod, &[u8])], is_large: bool) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for &(name, method, bytes) in files {
        let options = SimpleFileOptions::default().compression_method(method).large_file(is_large);
        writer.start_file(name, options.with_alignment(64)).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

fn unpack(member: &Member, file: &RawFile, piece_bytes: usize) -> Result<Vec<u8>> {
    let mut unpacked = member.unpack(file);
    let mut bytes = Vec::new();
    let mut piece = vec![0; piece_bytes];
    loop {
        let count = unpacked.read(&mut piece)?;
        if count == 0 {
            return Ok(bytes);
        }
        bytes.extend(&piece[..count]);
    }
}

/// Returns the error for a file that is refused, when its members are listed or when they are unpacked.
fn refusal(bytes: &[u8]) -> String {
    let (_guard, file) = open(bytes);
    let members = match members(&file) {
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::BadFile, "{e}");
            return e.to_string();
        }
        Ok(members) => members,
    };
    let error =
        members.iter().find_map(|member| unpack(member, &file, 100).err()).expect("it is not refused");
    assert_eq!(error.kind(), ErrorKind::BadFile, "{error}");
    error.to_string()
}

#[track_caller]
fn assert_refused(bytes: &[u8], why: &str) {
    let message = refusal(bytes);
    assert!(message.contains(why), "{message}");
}

fn find(bytes: &[u8], signature: &[u8]) -> usize {
    bytes.windows(signature.len()).position(|there| there == signature).unwrap()
}

/// Changes the field at `offset` of the record that begins with `signature`.
fn with(mut bytes: Vec<u8>, signature: &[u8], offset: usize, value: &[u8]) -> Vec<u8> {
    let at = find(&bytes, signature) + offset;
    bytes[at..at + value.len()].copy_from_slice(value);
    bytes
}

const LOCAL: &[u8] = b"PK\x03\x04";
const CENTRAL: &[u8] = b"PK\x01\x02";
const END: &[u8] = b"PK\x05\x06";
const END64: &[u8] = b"PK\x06\x06";
const LOCATOR: &[u8] = b"PK\x06\x07";

const STORED: CompressionMethod = CompressionMethod::Stored;
const DEFLATED: CompressionMethod = CompressionMethod::Deflated;

fn sample() -> Vec<u8> {
    zip_of(&[("a.npy", STORED, &[7; 1000]), ("b.npy", DEFLATED, &[8; 1000])], false)
}

/// Inserts a zip64 record and its locator before the end record, as in a file of more than 4 GiB.
fn with_zip64(bytes: &[u8], has_ones_in_end_record: bool) -> Vec<u8> {
    let at = find(bytes, END);
    let field = |offset: usize, len: usize| {
        let mut wide = [0; 8];
        wide[..len].copy_from_slice(&bytes[at + offset..][..len]);
        wide
    };
    let (count, size, start) = (field(10, 2), field(12, 4), field(16, 4));
    let mut long = bytes[..at].to_vec();
    long.extend(END64);
    long.extend(44u64.to_le_bytes());
    long.extend([45, 0, 45, 0]);
    long.extend([0; 8]);
    long.extend([count, count, size, start].concat());
    long.extend(LOCATOR);
    long.extend(0u32.to_le_bytes());
    long.extend((at as u64).to_le_bytes());
    long.extend(1u32.to_le_bytes());
    let end_at = long.len();
    long.extend(&bytes[at..]);
    if has_ones_in_end_record {
        long[end_at + 8..end_at + 20].fill(0xff);
    }
    long
}

#[test]
fn members_are_ranges_of_the_file_in_the_order_of_the_directory() {
    let files: [(&str, _, &[u8]); 5] = [
        ("z", STORED, &[1; 300]),
        ("../../escape", DEFLATED, &[2; 100_000]),
        ("/absolute", STORED, b""),
        ("empty, and deflated", DEFLATED, b""),
        ("müsli/ü", DEFLATED, b"x"),
    ];
    for is_large in [false, true] {
        let bytes = zip_of(&files, is_large);
        let (_guard, file) = open(&bytes);
        let members = members(&file).unwrap();
        assert!(members.iter().map(|member| member.name.as_str()).eq(files.map(|(name, ..)| name)));
        for (member, (_, method, content)) in members.iter().zip(files) {
            assert_eq!(member.method == Method::Stored, method == STORED);
            assert_eq!(member.unpacked_bytes, content.len() as u64);
            for piece_bytes in [1, 7, 4096, 1 << 20] {
                assert_eq!(unpack(member, &file, piece_bytes).unwrap(), content);
            }
            if member.method == Method::Stored {
                assert_eq!(member.offset_bytes % 64, 0);
                assert_eq!(&bytes[member.offset_bytes as usize..][..content.len()], content);
            }
        }
    }
}

#[test]
fn empty_archive_has_no_members() {
    let (_guard, file) = open(&zip_of(&[], false));
    assert_eq!(members(&file).unwrap(), []);
}

#[test]
fn zip64_records_are_read_whether_or_not_the_end_record_has_the_values() {
    let bytes = sample();
    for has_ones_in_end_record in [false, true] {
        let long = with_zip64(&bytes, has_ones_in_end_record);
        let (_guard, file) = open(&long);
        let found = members(&file).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(unpack(&found[1], &file, 64).unwrap(), [8; 1000]);
    }
}

#[test]
fn both_end_records_of_a_zip64_file_must_agree() {
    let long = with_zip64(&sample(), false);
    let why = "disagree";
    assert_refused(&with(long.clone(), END64, 24, &[1; 16]), why);
    assert_refused(&with(long.clone(), END64, 40, &[1]), why);
    assert_refused(&with(long.clone(), END64, 48, &[1]), why);
    let why = "zip64 record";
    assert_refused(&with(long.clone(), END64, 4, &u64::MAX.to_le_bytes()), why);
    assert_refused(&with(long.clone(), END64, 0, b"PK\x06\x05"), why);
    assert_refused(&with(long.clone(), LOCATOR, 8, &[9]), why);
    assert_refused(&with(long, LOCATOR, 16, &[2]), why);
}

#[test]
fn impossible_member_counts_are_refused_before_allocation() {
    let long = with_zip64(&sample(), true);
    for count in [3, 1 << 32, u64::MAX] {
        let lie = [count.to_le_bytes(), count.to_le_bytes()].concat();
        assert_refused(&with(long.clone(), END64, 24, &lie), "entries");
    }
    let fewer = [1u64.to_le_bytes(), 1u64.to_le_bytes()].concat();
    assert_refused(&with(long, END64, 24, &fewer), "after its last entry");
}

#[test]
fn bytes_before_or_after_a_zip_file_are_refused() {
    let bytes = sample();
    assert_refused(&[b"#!/bin/sh\n".as_slice(), &bytes].concat(), "bytes before or after");
    assert_refused(&[&bytes, b"x".as_slice()].concat(), "states a comment of 0 bytes, but 1 bytes follow it");
    assert_refused(&bytes[..bytes.len() - 1], "is truncated");
    assert_refused(&bytes[..bytes.len() / 2], "may be truncated");
    assert_refused(b"PK", "may be truncated");
    assert_refused(&with(bytes, END, 4, &[1]), "multi-part");
}

/// Adds another entry after those of the directory.
fn with_entry(bytes: &[u8], entry: &[u8]) -> Vec<u8> {
    let end = find(bytes, END);
    let mut more = [&bytes[..end], entry, &bytes[end..]].concat();
    let end = &mut more[end + entry.len()..];
    end[8] += 1;
    end[10] += 1;
    let size_bytes = u32::from_le_bytes(end[12..16].try_into().unwrap()) + entry.len() as u32;
    end[12..16].copy_from_slice(&size_bytes.to_le_bytes());
    more
}

/// Returns the only entry of a directory.
fn entry_of(bytes: &[u8]) -> &[u8] {
    let start = bytes.windows(4).rposition(|there| there == CENTRAL).unwrap();
    &bytes[start..find(bytes, END)]
}

#[test]
fn members_that_overlap_are_refused() {
    // The bytes of one member contain another, header included. Such a file could unpack to far more than its length.
    let inner = zip_of(&[("inner", STORED, &[7; 100])], false);
    let inner_local = &inner[..find(&inner, CENTRAL)];
    let outer = zip_of(&[("outer", STORED, inner_local)], false);
    let at = outer.windows(4).rposition(|there| there == LOCAL).unwrap() as u32;
    let nested = with(entry_of(&inner).to_vec(), CENTRAL, 42, &at.to_le_bytes());
    assert_refused(&with_entry(&outer, &nested), "members \"outer\" and \"inner\" of the zip file overlap");

    let again = with(entry_of(&outer).to_vec(), CENTRAL, 46, b"other");
    assert_refused(&with_entry(&outer, &again), "a different name in its own header");
}

#[test]
fn malformed_entries_are_refused() {
    let bytes = sample();
    let entry = |extra: &[u8]| {
        let mut entry = [CENTRAL, &[0; 42], b"c", extra].concat();
        (entry[28], entry[30]) = (1, extra.len() as u8);
        entry
    };
    let refused = "member \"c\" of the zip file has a different name in its own header";
    for extra in [&[][..], &[0xfe, 0xca, 0, 0].repeat(40), &[1, 0, 9, 9], &[1, 0]] {
        assert_refused(&with_entry(&bytes, &entry(extra)), refused);
    }
    let wide = with(entry(&[1, 0, 4, 0, 0, 0, 0, 0]), CENTRAL, 42, &[0xff; 4]);
    let refused = "entry 2 of the directory of the zip file has a zip64 field that is too short";
    assert_refused(&with_entry(&bytes, &wide), refused);
    assert_refused(&with_entry(&bytes, &with(entry(&[]), CENTRAL, 0, b"PK..")), "has a wrong signature");
    assert_refused(&with_entry(&bytes, &with(entry(&[]), CENTRAL, 34, &[1])), "another part");
    assert_refused(&with_entry(&bytes, &with(entry(&[]), CENTRAL, 32, &[1])), "is truncated");
}

#[test]
fn names_are_utf8_or_of_code_page_437() {
    let name = |raw: &[u8; 2]| {
        let mut bytes = zip_of(&[("aa", STORED, b"1")], false);
        let central = find(&bytes, CENTRAL);
        bytes[central + 46..central + 48].copy_from_slice(raw);
        bytes[30..32].copy_from_slice(raw);
        let (_guard, file) = open(&bytes);
        members(&file).unwrap().remove(0).name
    };
    // Python's bytes(range(128, 256)).decode("cp437").
    for (raw, decoded) in
        [(b"~\x80", "~Ç"), (b"\xe1\xb0", "ß░"), (b"\x9b\xff", "¢\u{a0}"), (b"\xc3\xbc", "ü")]
    {
        assert_eq!(name(raw), decoded);
    }
}

#[test]
fn duplicate_member_names_are_refused() {
    let mut bytes = zip_of(&[("a", STORED, b"1"), ("b", STORED, b"2")], false);
    let mut from = 0;
    while let Some(at) = bytes[from..].windows(4).position(|there| there == LOCAL || there == CENTRAL) {
        let name_at = from + at + if bytes[from + at + 2] == 3 { 30 } else { 46 };
        bytes[name_at] = b'a';
        from = name_at;
    }
    assert_refused(&bytes, "have the same name, \"");
}

#[test]
fn members_outside_of_the_file_are_refused() {
    let why = "is outside the file";
    assert_refused(&with(sample(), CENTRAL, 42, &u32::MAX.to_le_bytes()[..]), "zip file");
    assert_refused(&with(sample(), CENTRAL, 42, &[0, 0, 0, 1]), why);
    assert_refused(&with(sample(), CENTRAL, 20, &[0, 0, 1, 0, 0, 0, 1, 0]), why);
    assert_refused(&with(sample(), LOCAL, 28, &[0xff, 0xff]), why);
    assert_refused(&with(sample(), CENTRAL, 42, &[1]), "no header at byte 1");
}

#[test]
fn encrypted_members_and_other_compressions_are_refused() {
    for signature in [LOCAL, CENTRAL] {
        let offset = if signature == LOCAL { 6 } else { 8 };
        assert_refused(&with(sample(), signature, offset, &[1]), "\"a.npy\" of the zip file is encrypted");
    }
    let both = |code: u8| with(with(sample(), LOCAL, 8, &[code]), CENTRAL, 10, &[code]);
    assert_refused(&both(12), "\"a.npy\" of the zip file is compressed with bzip2");
    assert_refused(&both(93), "zstd");
    assert_refused(&both(77), "method 77");
    assert_refused(&with(sample(), CENTRAL, 10, &[8]), "different compression methods");
}

#[test]
fn wrong_lengths_and_checksums_are_detected_when_unpacking() {
    let deflated = zip_of(&[("a", DEFLATED, &[7; 100_000])], false);
    let length = |n: u32| with(deflated.clone(), CENTRAL, 24, &n.to_le_bytes());
    assert_refused(&length(99_999), "more than the stated 99999 bytes");
    assert_refused(&length(0), "more than the stated 0 bytes");
    assert_refused(&length(100_001), "unpacks to 100000 bytes, but 100001 are stated");
    assert_refused(&length(u32::MAX - 1), "is deflated to");
    assert_refused(&with(deflated.clone(), CENTRAL, 16, &[1, 2, 3, 4]), "its checksum is");
    assert_refused(&with(sample(), CENTRAL, 16, &[1, 2, 3, 4]), "its checksum is");
    assert_refused(&with(sample(), CENTRAL, 24, &[1]), "stored uncompressed");

    // The packed bytes end too early, or continue past the end of the stream.
    let packed = u32::from_le_bytes(deflated[find(&deflated, CENTRAL) + 20..][..4].try_into().unwrap());
    let cut = with(deflated.clone(), CENTRAL, 20, &(packed - 3).to_le_bytes());
    assert!(refusal(&cut).contains("\"a\""));
    let at = find(&deflated, CENTRAL);
    let mut longer = [&deflated[..at], b"xx".as_slice(), &deflated[at..]].concat();
    longer = with(longer, CENTRAL, 20, &(packed + 2).to_le_bytes());
    longer = with(longer, END, 16, &(at as u32 + 2).to_le_bytes());
    assert_refused(&longer, "is complete after");
}

#[test]
fn impossible_unpacked_lengths_are_refused_before_allocation() {
    let bytes = zip_of(&[("zeros", DEFLATED, &[0; 1 << 20])], false);
    let (_guard, file) = open(&bytes);
    let packed_bytes = members(&file).unwrap()[0].packed_bytes;
    let stating = |n: u64| with(bytes.clone(), CENTRAL, 24, &u32::try_from(n).unwrap().to_le_bytes());
    assert_refused(&stating(packed_bytes * 1032), "unpacks to 1048576 bytes");
    let (_guard, file) = open(&stating(packed_bytes * 1032 + 1));
    let error = members(&file).unwrap_err();
    assert!(error.to_string().contains("\"zeros\" of the zip file is deflated to"), "{error}");
}

#[test]
fn small_members_are_read_up_to_a_limit() {
    let (_guard, file) = open(&sample());
    let found = members(&file).unwrap();
    assert_eq!(found[1].read(&file, 1000).unwrap(), [8; 1000]);
    let e = found[1].read(&file, 999).unwrap_err();
    assert!(e.to_string().contains("has 1000 bytes; at most 999 are allowed"), "{e}");
    let mut too_long = [0; 1001];
    assert!(
        found[0].unpack(&file).read_exact(&mut too_long).unwrap_err().to_string().contains("ends after 1000")
    );
}

fn cases() -> u32 {
    std::env::var("STRIDEMAP_TEST_RANDOM_INPUTS").ok().and_then(|n| n.parse().ok()).unwrap_or(400)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    /// Every changed file is refused, or its unpacked bytes have the stated checksum.
    #[test]
    fn changed_bytes_are_refused_or_unpack_to_their_checksum(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
        is_zip64 in any::<bool>(),
    ) {
        let files: [(&str, _, &[u8]); 3] =
            [("a", STORED, &[1; 90]), ("b", DEFLATED, &[2; 3000]), ("c", STORED, b"")];
        let mut bytes = zip_of(&files, is_zip64);
        if is_zip64 {
            bytes = with_zip64(&bytes, true);
        }
        let whole = bytes.clone();
        for (at, value) in &changes {
            bytes[at.index(whole.len())] = *value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(whole.len()));
        }
        let (_guard, file) = open(&bytes);
        match members(&file) {
            Err(e) => {
                prop_assert_eq!(e.kind(), ErrorKind::BadFile);
                prop_assert_ne!(bytes, whole);
            }
            Ok(members) => for member in members {
                match unpack(&member, &file, 1000) {
                    Ok(bytes) => prop_assert_eq!(Some(crc32fast::hash(&bytes)), member.crc32),
                    Err(e) => prop_assert_eq!(e.kind(), ErrorKind::BadFile),
                }
            },
        }
    }
}
