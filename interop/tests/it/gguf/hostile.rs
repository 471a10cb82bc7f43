//! Malformed GGUF files: each is refused with a text that says what is wrong.

use stridemap::DType;
use stridemap_interop::{ForeignFile, ForeignOptions};

use crate::place::Place;

const U32: u32 = 4;
const BOOL: u32 = 7;
const TEXT: u32 = 8;
const ARRAY: u32 = 9;

fn text(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

/// Returns a value of the metadata with its key.
fn value(key: &str, code: u32, bytes: &[u8]) -> Vec<u8> {
    [&text(key.as_bytes())[..], &code.to_le_bytes(), bytes].concat()
}

fn list(key: &str, code: u32, count: u64, bytes: &[u8]) -> Vec<u8> {
    value(key, ARRAY, &[&code.to_le_bytes()[..], &count.to_le_bytes(), bytes].concat())
}

/// Returns the header of a tensor.
fn tensor(name: &[u8], dims: &[u64], code: u32, offset: u64) -> Vec<u8> {
    let dims_bytes: Vec<u8> = dims.iter().flat_map(|n| n.to_le_bytes()).collect();
    let rank = dims.len() as u32;
    [&text(name)[..], &rank.to_le_bytes(), &dims_bytes, &code.to_le_bytes(), &offset.to_le_bytes()].concat()
}

/// Returns a file with these parts of a header, and 64 bytes of elements after it.
fn file(version: u32, values: &[Vec<u8>], tensors: &[Vec<u8>]) -> Vec<u8> {
    let counts = [tensors.len() as u64, values.len() as u64].map(u64::to_le_bytes).concat();
    let mut file =
        [&b"GGUF"[..], &version.to_le_bytes(), &counts, &values.concat(), &tensors.concat()].concat();
    file.resize(file.len().next_multiple_of(32) + 64, 7);
    file
}

fn with_values(values: &[Vec<u8>]) -> Vec<u8> {
    file(3, values, &[])
}

fn with_tensors(tensors: &[Vec<u8>]) -> Vec<u8> {
    file(3, &[], tensors)
}

fn plain() -> Vec<u8> {
    tensor(b"x", &[4, 2], 0, 0)
}

#[test]
fn the_parts_of_these_files_are_valid() {
    let place = Place::new();
    for version in [2, 3] {
        let values =
            [value("a", U32, &[5, 0, 0, 0]), list("b", BOOL, 2, &[0, 1]), value("c", TEXT, &text(b"d"))];
        let tensors = [plain(), tensor(b"y", &[32], 2, 32)];
        let path = place.file("x.gguf", &file(version, &values, &tensors));
        let file = ForeignFile::open(&path).unwrap();
        let found: Vec<_> = file.tensors().map(|info| (info.name, info.header.size().to_vec())).collect();
        assert_eq!(found, [("x".to_owned(), vec![2, 4]), ("y".to_owned(), vec![18])]);
        assert_eq!(file.attributes()["b"], "json:[false,true]");
    }
}

#[test]
fn other_versions_are_refused_by_name() {
    let place = Place::new();
    for (version, what) in [
        (1, "version 1 of GGUF, which is not supported"),
        (4, "version 4 of GGUF, but only 2 and 3 are supported"),
        (0, "version 0 of GGUF"),
        (2u32.swap_bytes(), "a big-endian GGUF file"),
        (3u32.swap_bytes(), "a big-endian GGUF file"),
    ] {
        let message = place.refuse("x.gguf", &file(version, &[], &[]));
        assert!(message.contains(what), "{message}");
    }
}

#[test]
fn malformed_headers_are_refused() {
    let place = Place::new();
    let alignment = |code, bytes: &[u8]| with_values(&[value("general.alignment", code, bytes)]);
    let nested = |depth: usize| {
        let mut bytes = list("a", U32, 1, &[0; 4]);
        for _ in 0..depth {
            let inner = bytes.split_off(13);
            bytes = list("a", ARRAY, 1, &inner);
        }
        with_values(&[bytes])
    };
    let counts = |tensors: u64, values: u64| {
        [&b"GGUF\x03\0\0\0"[..], &tensors.to_le_bytes(), &values.to_le_bytes(), &[0; 100]].concat()
    };
    let long = with_values(&[value("a", TEXT, &u64::MAX.to_le_bytes())]);
    for (bytes, what) in [
        (counts(u64::MAX, 0), "tensors and 0 values at byte 24 does not fit in the 100 bytes that are left"),
        (counts(0, u64::MAX), "a header of 0 tensors"),
        (counts(u64::MAX / 24, u64::MAX / 13), "does not fit"),
        (counts(5, 0), "a header of 5 tensors and 0 values"),
        (long, "a text at byte"),
        (with_values(&[list("a", U32, u64::MAX, &[])]), "an array at byte"),
        (with_values(&[list("a", U32, 1 << 40, &[])]), "an array at byte"),
        (with_values(&[list("a", TEXT, 2, &text(&[b'x'; 200]))]), "does not fit"),
        (with_values(&[value("a", 13, &[])]), "has the type 13, which GGUF does not have"),
        (with_values(&[list("a", 99, 0, &[])]), "has the type 99"),
        (with_values(&[value("a", BOOL, &[2])]), "the value of \"a\" in the metadata: a bool is 2"),
        (with_values(&[value("a", TEXT, &text(&[0xff]))]), "the text is not UTF-8"),
        (with_values(&[list("a", TEXT, 1, &text(&[0xff]))]), "a text is not UTF-8"),
        (with_values(&[value("gguf.type:a", TEXT, &text(b"x"))]), "stridemap keeps the types"),
        (with_values(&[value("a", BOOL, &[0]), value("a", BOOL, &[0])]), "the metadata have \"a\" twice"),
        (with_values(&[value(&"k".repeat(5000), BOOL, &[0])]), "no attribute can have this key"),
        (with_values(&[value("", BOOL, &[0])]), "no attribute can have this key"),
        (nested(9), "nests deeper than 8"),
        (alignment(U32, &[0; 4]), "general.alignment is 0, and must be a power of two"),
        (alignment(U32, &[33, 0, 0, 0]), "general.alignment is 33"),
        (
            alignment(U32, &(2u32 << 20).to_le_bytes()),
            "general.alignment is 2097152, and must be a power of two, at most 1048576",
        ),
        (alignment(10, &[32, 0, 0, 0, 0, 0, 0, 0]), "general.alignment is not of the type uint32"),
        (alignment(TEXT, &text(b"32")), "general.alignment is not of the type uint32"),
    ] {
        let message = place.refuse("x.gguf", &bytes);
        assert!(message.contains(what), "{message}, not {what}");
    }
    ForeignFile::open(place.file("y.gguf", &nested(5))).unwrap();
}

#[test]
fn malformed_tensors_are_refused() {
    let place = Place::new();
    let huge = file(3, &[value("general.alignment", U32, &(1u32 << 20).to_le_bytes())], &[plain()]);
    for (bytes, what) in [
        (
            with_tensors(&[tensor(b"x", &[4, 2], 0, 64)]),
            "has 32 bytes at 64, but the file has 64 bytes of elements",
        ),
        (with_tensors(&[tensor(b"x", &[4, 5], 0, 0)]), "it is truncated"),
        (with_tensors(&[tensor(b"x", &[4], 0, u64::MAX - 31)]), "it is truncated"),
        (with_tensors(&[tensor(b"x", &[4], 0, 16)]), "begins at 16, which is not a multiple of 32"),
        (with_tensors(&[plain(), tensor(b"y", &[1], 0, 0)]), "within another tensor"),
        (with_tensors(&[tensor(b"x", &[12], 0, 0), tensor(b"y", &[4], 0, 32)]), "\"y\" begins at 32, within"),
        (with_tensors(&[plain(), tensor(b"x", &[4], 0, 32)]), "two tensors are named \"x\""),
        (with_tensors(&[tensor(b"x", &[u64::MAX, u64::MAX], 0, 0)]), "tensor \"x\""),
        (with_tensors(&[tensor(b"x", &[u64::MAX / 32 * 32], 2, 0)]), "tensor \"x\""),
        (with_tensors(&[tensor(b"x", &[1; 65], 0, 0)]), "has 65 dimensions, but at most 64"),
        (with_tensors(&[tensor(b"x", &[33], 2, 0)]), "its size [33] is not in rows of whole blocks of 32"),
        (with_tensors(&[tensor(b"x", &[], 2, 0)]), "whole blocks of 32 elements, as Q4_0 has"),
        (
            with_tensors(&[tensor(b"x", &[4], 4, 0)]),
            "its type has the number 4, which stridemap does not know",
        ),
        (with_tensors(&[tensor(&[0xff], &[4], 0, 0)]), "the name is not UTF-8"),
        (file(3, &[list("x", U32, 1025, &[0; 4100])], &[plain()]), "two tensors are named \"x\""),
        (huge, "it is truncated"),
    ] {
        let message = place.refuse("x.gguf", &bytes);
        assert!(message.contains(what), "{message}, not {what}");
    }
}

/// Programs with longer names than llama.cpp write GGUF files.
#[test]
fn names_and_dimensions_beyond_the_limits_of_llama_cpp_are_read() {
    let place = Place::new();
    let bytes = with_tensors(&[tensor(&[b'x'; 100], &[4], 0, 0), tensor(b"y", &[2, 1, 1, 1, 3], 0, 32)]);
    let file = ForeignFile::open(place.file("x.gguf", &bytes)).unwrap();
    let found: Vec<_> = file.tensors().map(|info| (info.name, info.header.size().to_vec())).collect();
    assert_eq!(found, [("x".repeat(100), vec![4]), ("y".to_owned(), vec![3, 1, 1, 1, 2])]);
}

/// 2^28 empty texts would take 2 GiB of the file, which has holes and takes 4 KiB on disk.
#[test]
fn a_header_beyond_the_limit_is_refused_before_it_is_read_through() {
    let place = Place::new();
    let values = [list("a", TEXT, 1 << 28, &[])];
    let path = place.file("x.gguf", &file(3, &values, &[]));
    std::fs::File::options().write(true).open(&path).unwrap().set_len(3 << 30).unwrap();
    let message = ForeignFile::open(&path).unwrap_err().to_string();
    assert!(message.contains("makes a header of more than 268435456 bytes, which is the limit"), "{message}");

    // A text that ends after the limit.
    let values = [value("a", TEXT, &(300u64 << 20).to_le_bytes())];
    let path = place.file("y.gguf", &file(3, &values, &[]));
    std::fs::File::options().write(true).open(&path).unwrap().set_len(3 << 30).unwrap();
    let message = ForeignFile::open(&path).unwrap_err().to_string();
    assert!(message.contains("makes a header of more than 268435456 bytes, which is the limit"), "{message}");
}

#[test]
fn a_file_that_ends_anywhere_before_its_last_element_is_refused() {
    let place = Place::new();
    let values = [value("a", U32, &[5, 0, 0, 0]), list("b", TEXT, 2, &[text(b"x"), text(b"y")].concat())];
    let whole = file(3, &values, &[plain(), tensor(b"y", &[2], 27, 32)]);
    let end = whole.len() - 16;
    ForeignFile::open(place.file("whole.gguf", &whole[..end])).unwrap();
    for length in 4..end {
        place.refuse("x.gguf", &whole[..length]);
    }
}

#[test]
fn what_cannot_be_read_is_left_out_by_request() {
    let place = Place::new();
    let values = [value("a", BOOL, &[2]), value("b", BOOL, &[1])];
    let tensors = [tensor(b"new", &[4], 77, 0), tensor(b"x", &[4], 0, 32)];
    let path = place.file("x.gguf", &file(3, &values, &tensors));
    let file = ForeignOptions::new().skip_unreadable(true).open(&path).unwrap();
    assert_eq!(file.skipped().iter().map(|skipped| &*skipped.name).collect::<Vec<_>>(), ["a", "new"]);
    assert_eq!(file.attributes().keys().collect::<Vec<_>>(), ["b"]);
    let only = file.tensors().next().unwrap();
    assert_eq!((&*only.name, only.header.dtype(), only.header.size()), ("x", DType::F32, &[4][..]));
}
