//! Mutated checkpoints: each is refused, or is read within its bounds.

use std::cell::Cell;
use std::fs;
use std::path::Path;

use proptest::prelude::*;
use stridemap::ErrorKind;
use stridemap_interop::ForeignFile;

use super::conformance::checkpoints;
use super::forge::{archive, members};
use crate::place::write_old;
use crate::support::{scaled, temporary};

/// A change to the bytes of a file. Positions are fractions of its length.
#[derive(Clone, Debug)]
enum Change {
    Flip(u16, u8),
    Cut(u16),
    Remove(u16, u8),
    Repeat(u16, u8),
    /// Replaces a number with an extreme value.
    Number(u16, u8, u64),
    /// Replaces an instruction.
    Instruct(u16, u8),
}

fn changes() -> impl Strategy<Value = Change> {
    let extremes =
        prop::sample::select(vec![0, 1, 127, 128, 255, 1 << 31, u32::MAX.into(), i64::MAX as u64, u64::MAX]);
    let instructions = prop::sample::select(
        b"(.012FIJKLMNPQRSTUVXabcdeghijloqrpstu})]GBC\x80\x81\x82\x85\x86\x87\x88\x89\x8a\x8b\x8c\x93\x94"
            .to_vec(),
    );
    prop_oneof![
        (any::<u16>(), 0..8u8).prop_map(|(at, bit)| Change::Flip(at, bit)),
        any::<u16>().prop_map(Change::Cut),
        (any::<u16>(), 1..40u8).prop_map(|(at, count)| Change::Remove(at, count)),
        (any::<u16>(), 1..40u8).prop_map(|(at, count)| Change::Repeat(at, count)),
        (any::<u16>(), prop::sample::select(vec![1, 2, 4, 8u8]), extremes)
            .prop_map(|(at, n, x)| Change::Number(at, n, x)),
        (any::<u16>(), instructions).prop_map(|(at, code)| Change::Instruct(at, code)),
    ]
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    if bytes.is_empty() {
        return;
    }
    let place = |at: u16| usize::from(at) * bytes.len() / 65536;
    match *change {
        Change::Flip(at, bit) => {
            let at = place(at);
            bytes[at] ^= 1 << bit;
        }
        Change::Cut(at) => bytes.truncate(place(at)),
        Change::Remove(at, count) => {
            let at = place(at);
            bytes.drain(at..(at + usize::from(count)).min(bytes.len()));
        }
        Change::Repeat(at, count) => {
            let at = place(at);
            let again = bytes[at..(at + usize::from(count)).min(bytes.len())].to_vec();
            bytes.splice(at..at, again);
        }
        Change::Number(at, width, number) => {
            let at = place(at);
            let number = number.to_le_bytes();
            let end = (at + usize::from(width)).min(bytes.len());
            bytes[at..end].copy_from_slice(&number[..end - at]);
        }
        Change::Instruct(at, code) => {
            let at = place(at);
            bytes[at] = code;
        }
    }
}

/// Opens a file of arbitrary bytes: it is refused as a bad file with one line, or all of its tensors can be read.
pub(crate) fn check(path: &Path) -> bool {
    match ForeignFile::open(path) {
        Ok(file) => {
            let tensors: Vec<_> = file.tensors().collect();
            for info in &tensors {
                // A tensor broadcast to more than the memory is not read.
                if info.nbytes() < 1 << 20 {
                    assert_eq!(file.load(&info.name).unwrap().to_bytes().unwrap().len(), info.nbytes());
                }
            }
            true
        }
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::BadFile, "{e}");
            assert!(!e.to_string().contains('\n'));
            false
        }
    }
}

#[test]
fn changed_checkpoints_are_refused_or_read() {
    let files: Vec<Vec<u8>> = ["pt", "pt_more"]
        .iter()
        .flat_map(|folder| checkpoints(folder))
        .map(|path| fs::read(path).unwrap())
        .collect();
    let dir = temporary();
    let path = dir.path().join("changed.pt");
    let config = ProptestConfig::with_cases(scaled("STRIDEMAP_TEST_RANDOM_INPUTS", 256) as u32 * 4);
    let read_count = Cell::new(0);
    proptest!(config, |(index in 0..files.len(), is_inside: bool, changes in prop::collection::vec(changes(), 1..4))| {
        let mut file = files[index].clone();
        let is_zip = file.starts_with(b"PK\x03\x04") && file.ends_with(&[0, 0]);
        if is_inside && is_zip {
            // The pickle is changed, and its checksum is updated.
            let mut members = members(&file);
            let pickle = members.iter_mut().find(|(name, _)| name.ends_with("data.pkl")).unwrap();
            changes.iter().for_each(|change| apply(&mut pickle.1, change));
            let parts: Vec<_> = members.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
            file = archive(&parts);
        } else {
            changes.iter().for_each(|change| apply(&mut file, change));
        }
        write_old(&path, &file);
        read_count.set(read_count.get() + usize::from(check(&path)));
    });
    println!("{} changed checkpoints were read", read_count.get());
    assert!(read_count.get() > 0);
}
