//! The detection of formats: by what each format requires, whatever the first bytes look like.

use std::collections::BTreeSet;
use std::fs;

use stridemap::{Store, Tensor};
use stridemap_interop::{FileFormat, ForeignFile, gguf, npy};

use crate::numpy::npy_bytes;
use crate::place::Place;
use crate::torch::forge::{archive, legacy, tensor};

const TENSOR: &str = r#"{"x":{"dtype":"U8","shape":[512],"data_offsets":[0,512]}}"#;

/// Enough elements that byte 257 of the shortest file of each format is among them.
const NUMEL: usize = 512;

/// Returns a file with one tensor, or none if the header is too short, whose header has exactly `header_bytes`.
fn safetensors(header_bytes: usize) -> Vec<u8> {
    let (header, elements) = if header_bytes < TENSOR.len() { ("{}", 0) } else { (TENSOR, NUMEL) };
    let mut file = (header_bytes as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(8 + header_bytes, b' ');
    file.resize(file.len() + elements, 7);
    file
}

fn checkpoint_pickle() -> Vec<u8> {
    tensor(b"M\x80\x00", b"K\x00", b"K\x40\x85", b"K\x01\x85")
}

/// Returns a file of every format, of both PyTorch layouts, and of an npz with and without members.
fn every_format() -> Vec<(FileFormat, Vec<u8>)> {
    let npy = || npy_bytes("{'descr': '|u1', 'fortran_order': False, 'shape': (512,), }\n", &[7; NUMEL]);
    let metadata = "x".repeat(NUMEL);
    let mut gguf = Vec::new();
    let tensors = [("x".to_owned(), Tensor::from_vec(vec![7i8; NUMEL], &[NUMEL]).unwrap())];
    gguf::Export::new().write_to(&mut gguf, &tensors, |_| ()).unwrap();
    let index = format!(r#"{{"metadata":{{"k":"{metadata}"}},"weight_map":{{}}}}"#);
    vec![
        (FileFormat::Safetensors, safetensors(TENSOR.len())),
        (FileFormat::ShardIndex, index.into_bytes()),
        (FileFormat::Npy, npy()),
        (FileFormat::Gguf, gguf),
        (FileFormat::Npz, archive(&[("x.npy", &npy())])),
        (FileFormat::Npz, archive(&[])),
        (FileFormat::PyTorch, archive(&[("m/data.pkl", &checkpoint_pickle()), ("m/data/0", &[0; NUMEL])])),
        (FileFormat::PyTorch, legacy(&checkpoint_pickle(), &[("0", &[0.0; NUMEL / 4])])),
    ]
}

fn detect(place: &Place, bytes: &[u8]) -> Result<FileFormat, String> {
    ForeignFile::open(place.file("x", bytes)).map(|file| file.format()).map_err(|e| e.to_string())
}

#[test]
fn safetensors_are_detected_whatever_their_first_bytes() {
    let place = Place::new();
    // Every first byte with each second byte from 0 to 8, which include those of pickles of protocols 2 to 5.
    for header_bytes in 2..0x900 {
        assert_eq!(detect(&place, &safetensors(header_bytes)), Ok(FileFormat::Safetensors), "{header_bytes}");
    }
}

#[test]
fn each_format_is_detected_by_its_first_bytes() {
    let place = Place::new();
    // A safetensors header can have any length, so its length field can equal the start of any other format.
    let mut lengths = BTreeSet::new();
    for (format, bytes) in every_format() {
        assert_eq!(detect(&place, &bytes), Ok(format));
        let beginning = u64::from_le_bytes(*bytes.first_chunk().unwrap());
        lengths.extend((1..=8).map(|kept| beginning & (u64::MAX >> (64 - 8 * kept))));
    }
    lengths.retain(|length| (2..=100_000_000).contains(length));
    assert!(lengths.contains(&0x0403_4b50), "that of a zip file: {lengths:?}");
    for length in lengths {
        let found = detect(&place, &safetensors(length as usize));
        assert_eq!(found, Ok(FileFormat::Safetensors), "{length}");
    }
}

#[test]
fn tar_magic_in_elements_or_text_does_not_make_a_tar_file() {
    let place = Place::new();
    for (format, mut bytes) in every_format() {
        if bytes.len() < 257 + 5 {
            continue;
        }
        let is_free = bytes[257..262].windows(2).all(|pair| pair[0] == pair[1]);
        assert!(is_free, "{format}: byte 257 is not among elements or text");
        bytes[257..262].copy_from_slice(b"ustar");
        assert_eq!(detect(&place, &bytes), Ok(format));
    }
}

#[test]
fn truncated_files_are_refused_as_the_format_they_begin_with() {
    let place = Place::new();
    // The lengths of these headers begin with the bytes of a pickle of protocol 2: 0x280 and 0x4b0280.
    for header_bytes in [0x280, 0x4b_0280] {
        let cut = detect(&place, &safetensors(header_bytes)[..300]).unwrap_err();
        assert!(cut.contains(&format!("{header_bytes} bytes")) && cut.contains("292 are left"), "{cut}");
    }
    for protocol in 2..=5 {
        let pickle = detect(&place, &[0x80, protocol, b'}', b'.']).unwrap_err();
        assert!(pickle.contains("a pickle, but not a checkpoint"), "{pickle}");
    }
    let mut tar = b"a".to_vec();
    tar.resize(512, 0);
    tar[257..262].copy_from_slice(b"ustar");
    let tar = detect(&place, &tar).unwrap_err();
    assert!(tar.contains("a tar file"), "{tar}");
}

#[test]
fn errors_of_an_import_name_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("first.npy"), dir.path().join("second.npy"));
    for (path, values) in [(&first, vec![1f32]), (&second, vec![2f32; 3])] {
        let count = values.len();
        npy::Export::new().write(path, &Tensor::from_vec(values, &[count]).unwrap(), |_| ()).unwrap();
    }
    let store = Store::create(dir.path().join("s.smap")).unwrap();
    let mut txn = store.begin().unwrap();
    ForeignFile::open(&first).unwrap().import_into(&mut txn, "", |_| ()).unwrap();
    let file = ForeignFile::open(&second).unwrap();
    let named = |error: stridemap::Error| {
        let text = error.to_string();
        assert!(text.starts_with(&format!("import {}: ", second.display())), "{text}");
    };
    named(file.import_into(&mut txn, &"x".repeat(5000), |_| ()).unwrap_err());
    fs::write(&second, b"changed").unwrap();
    named(file.import_into(&mut txn, "", |_| ()).unwrap_err());
    // Of the two files that are imported in one transaction, the second has a name that exists.
    let again = ForeignFile::open(&first).unwrap();
    txn.on_existing(stridemap::OnExisting::Refuse);
    let text = again.import_into(&mut txn, "", |_| ()).unwrap_err().to_string();
    assert!(
        text.starts_with(&format!("import {}: ", first.display())) && text.contains("\"first\""),
        "{text}"
    );
}
