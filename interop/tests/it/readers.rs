//! Files that arrive through a reader, such as a pipe.

use std::cell::Cell;
use std::io::{self, Read};

use stridemap::{DType, Error, ErrorKind};
use stridemap_interop::npz::Packing;
use stridemap_interop::{ForeignFile, ForeignOptions, npy, npz, safetensors};

use crate::place::counted;
use crate::torch::forge;

/// Counts the bytes that are read.
struct Counting<'a, R>(R, &'a Cell<u64>);

impl<R: Read> Read for Counting<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        // A pipe returns what has been written so far.
        let short = buf.len().min(5);
        let count = self.0.read(&mut buf[..short])?;
        self.1.set(self.1.get() + count as u64);
        Ok(count)
    }
}

fn open(reader: impl Read) -> (Result<ForeignFile, Error>, u64) {
    let count = Cell::new(0);
    let opened =
        ForeignOptions::new().open_reader(Counting(reader, &count), tempfile::tempfile().unwrap(), "stdin");
    (opened, count.get())
}

fn files() -> Vec<(Vec<u8>, &'static str)> {
    let tensors =
        [("a".to_owned(), counted(DType::F32, &[3, 2])), ("b".to_owned(), counted(DType::U8, &[5]))];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.npz");
    let (mut model, mut array) = (Vec::new(), Vec::new());
    safetensors::Export::new().write_to(&mut model, &tensors, |_| ()).unwrap();
    npy::Export::new().write_to(&mut array, &tensors[0].1, |_| ()).unwrap();
    npz::Export::new().packing(Packing::Deflated).write(&path, &tensors, |_| ()).unwrap();
    let checkpoint = forge::tensor(b"K\x02", b"K\x00", b"K\x02\x85", b"K\x01\x85");
    let old = forge::legacy(&checkpoint, &[("0", &[0.5, 1.5])]);
    vec![(model, "a"), (array, "stdin"), (std::fs::read(path).unwrap(), "a"), (old, "w")]
}

#[test]
fn file_of_every_format_is_read_from_a_reader() {
    for (bytes, name) in files() {
        let (opened, read_bytes) = open(bytes.as_slice());
        let file = opened.unwrap();
        assert_eq!(read_bytes, bytes.len() as u64, "{:?}", file.format());
        assert!(file.load(name).unwrap().to_bytes().is_ok());
    }
}

#[test]
fn endless_input_is_refused_by_its_first_bytes() {
    for (start, byte) in [
        (&b""[..], b'y'),
        (b"", 0),
        (b"", b' '),
        (b"", 0xff),
        (b"", 0x80),
        (b"<!doctype html>", b' '),
        (b"version https://git-lfs.github.com/spec/v1\n", b'0'),
        (b"\x10\0\0\0\0\0\0\0", b'x'),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff{", b'x'),
        (b"\x93NUMPY\x09\x00", 0),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", 0),
    ] {
        let (opened, read_bytes) = open(start.chain(io::repeat(byte)));
        let error = opened.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadFile, "{error}");
        assert!(error.to_string().starts_with("read stdin: ") && read_bytes < 100, "{error}: {read_bytes}");
    }
}

#[test]
fn tar_file_is_said_to_be_one_after_its_first_header() {
    let mut tar = b"sys_info".to_vec();
    tar.resize(512, 0);
    tar[257..262].copy_from_slice(b"ustar");
    let (opened, read_bytes) = open(tar.chain(io::repeat(0)));
    let error = opened.unwrap_err().to_string();
    assert!(error.contains("a tar file, such as a checkpoint") && read_bytes == 512, "{error}: {read_bytes}");
}

#[test]
fn file_whose_header_states_its_length_is_not_read_further() {
    let is_stated = |bytes: &[u8]| bytes.starts_with(b"\x93NUMPY") || bytes.get(8) == Some(&b'{');
    let mut count = 0;
    for (bytes, _) in files().into_iter().filter(|(bytes, _)| is_stated(bytes)) {
        let (opened, read_bytes) = open(bytes.chain(io::repeat(0)));
        let error = opened.unwrap_err();
        assert_eq!((error.kind(), read_bytes), (ErrorKind::BadFile, bytes.len() as u64 + 1), "{error}");
        for length in 0..bytes.len() {
            let (opened, read_bytes) = open(&bytes[..length]);
            assert!(opened.is_err() && read_bytes == length as u64, "{length}");
        }
        count += 1;
    }
    assert_eq!(count, 2);
}
