//! Malformed NumPy files: all are refused, without allocating the memory that they claim to need.

use std::io::{Cursor, Write as _};

use stridemap::ErrorKind;
use stridemap_interop::ForeignFile;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::npy_bytes;
use crate::place::Place;

pub(super) const DEFLATED: CompressionMethod = CompressionMethod::Deflated;
pub(super) const STORED: CompressionMethod = CompressionMethod::Stored;

pub(super) fn zip_of(members: &[(&str, CompressionMethod, &[u8])]) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for &(name, method, bytes) in members {
        let options = SimpleFileOptions::default().compression_method(method).large_file(true);
        writer.start_file(name, options).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

fn bytes_of(shape: &str, elements: &[u8]) -> Vec<u8> {
    npy_bytes(&format!("{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}\n"), elements)
}

#[test]
fn member_that_is_not_an_array_is_refused_by_name() {
    let place = Place::new();
    let good = bytes_of("(4,)", &[0; 4]);
    for (name, bytes, what) in [
        ("readme.txt", b"text that is long enough".as_slice(), "not a NumPy array"),
        ("short.npy", b"\x93NUM", "not a NumPy array"),
        ("cut.npy", &good[..20], "ends after"),
        ("less.npy", &bytes_of("(4,)", &[0; 3]), "4 bytes of elements, but 3"),
        ("more.npy", &bytes_of("(4,)", &[0; 5]), "4 bytes of elements, but 5"),
        ("large.npy", &bytes_of("(4611686018427387904, 4)", &[]), "too large"),
        ("negative.npy", &bytes_of("(-1,)", &[]), "expected a size"),
        ("version.npy", b"\x93NUMPY\x04\x00\x00\x00\x00\x00\x00", "version 4.0"),
        (
            "header.npy",
            b"\x93NUMPY\x02\x00\xff\xff\xff\xff\x00",
            "4294967295 bytes; at most 65536 are allowed",
        ),
        (
            "object.npy",
            &npy_bytes("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"\x80\x04."),
            "pickle",
        ),
    ] {
        for method in [STORED, DEFLATED] {
            let message =
                place.refuse("x.npz", &zip_of(&[("good.npy", method, &good), (name, method, bytes)]));
            assert!(
                message.contains(what) && message.contains(&format!("{name:?}")),
                "{message}, and not {what}"
            );
        }
    }
    // A zip file may have entries for directories.
    place
        .import(&place.file("x.npz", &zip_of(&[("dir/", STORED, b""), ("dir/good.npy", STORED, &good)])))
        .unwrap();
    assert_eq!(place.store.names().unwrap(), ["dir/good"]);
}

#[test]
fn name_that_two_members_share_is_refused() {
    let place = Place::new();
    let good = bytes_of("(4,)", &[0; 4]);
    let message = place.refuse("x.npz", &zip_of(&[("a", STORED, &good), ("a.npy", STORED, &good)]));
    assert!(message.contains("two tensors are named \"a\""), "{message}");
}

#[test]
fn member_that_claims_more_than_it_can_unpack_to_is_refused_before_allocating() {
    let place = Place::new();
    let claim = 1u64 << 50;
    let header = bytes_of(&format!("({claim},)"), &[]);
    let mut bomb = zip_of(&[("bomb.npy", DEFLATED, &[&header[..], &[0; 100_000]].concat())]);
    // The zip64 field of the directory agrees with the header about the length.
    let actual = (header.len() as u64 + 100_000).to_le_bytes();
    let directory = bomb.windows(4).position(|bytes| bytes == b"PK\x01\x02").unwrap();
    let at = directory + bomb[directory..].windows(8).position(|bytes| bytes == actual).unwrap();
    bomb[at..at + 8].copy_from_slice(&(header.len() as u64 + claim).to_le_bytes());
    let path = place.file("bomb.npz", &bomb);
    for error in [place.import(&path).unwrap_err(), ForeignFile::open(&path).map(drop).unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::BadFile, "{error}");
        assert!(error.to_string().contains("\"bomb.npy\" of the zip file is deflated to"), "{error}");
    }
    assert!(place.store.names().unwrap().is_empty());
}

#[test]
fn import_detects_a_wrong_checksum_and_commits_nothing() {
    let place = Place::new();
    let good = bytes_of("(4,)", &[7; 4]);
    for method in [STORED, DEFLATED] {
        let mut bytes = zip_of(&[("good.npy", method, &good), ("bad.npy", method, &good)]);
        let directory = bytes.windows(4).rposition(|there| there == b"PK\x01\x02").unwrap();
        bytes[directory + 16] ^= 1;
        let error = place.import(&place.file("x.npz", &bytes)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadFile);
        assert!(error.to_string().contains("\"bad.npy\" of the zip file is damaged"), "{error}");
        assert!(place.store.names().unwrap().is_empty());
        // So do reads of one tensor.
        let file = ForeignFile::open(place.path("x.npz")).unwrap();
        assert!(file.write_elements("good", &mut |_| Ok(())).is_ok());
        let error = file.write_elements("bad", &mut |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadFile, "{error}");
    }
}
