//! Mutated and truncated files in other formats: each is refused with a typed error, or is read the same in two ways.
//! The memory used is at most a few times the size of the file. The tests have a process of their own, whose
//! allocations are counted.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed test shows its location")]

mod bombs;
mod corpus;
mod mutate;
#[path = "../../../tests/common/random.rs"]
mod random;
mod valid;

use std::collections::hash_map::DefaultHasher;
use std::env;
use std::fs;
use std::hash::{Hash as _, Hasher as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use peak_alloc::PeakAlloc;
use stridemap::{Durability, Error, ErrorKind, OnExisting, Source as _, Store, StoreOptions, Tensor};
use stridemap_interop::{ForeignFile, ForeignOptions};

use crate::mutate::mutated;
use crate::random::Random;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Runs one test at a time, because allocations are counted for the whole process.
static ALONE: Mutex<()> = Mutex::new(());

/// The memory allowed for a file of any size: buffers, and the window of the decompressor.
const FIXED_BYTES: u64 = 256 << 10;

/// The memory allowed for the values of a checkpoint of any size.
const UNFOLDED_BYTES: u64 = 16 << 20;

const SMALL_BYTES: usize = 64 << 10;

/// The memory allowed for headers, as a multiple of the file.
const FACTOR: u64 = 8;

/// The same for GGUF, whose entries are a third as long as those of JSON.
const BINARY_FACTOR: u64 = 16;

/// The number of cases for each format: 1000 by default, 10,000 at full scale.
fn cases() -> u64 {
    env::var("STRIDEMAP_TEST_RANDOM_INPUTS").map_or(400, |cases| cases.parse::<u64>().unwrap()) * 5 / 2
}

/// Returns a digest of the bytes of a tensor in row-major order. A tensor that repeats a few bytes very often is
/// skipped.
fn digest(tensor: &Tensor, file_bytes: u64) -> Result<u64, Error> {
    let mut hasher = DefaultHasher::new();
    (tensor.dtype(), tensor.size(), tensor.stride()).hash(&mut hasher);
    if tensor.nbytes() as u64 <= FACTOR * file_bytes {
        tensor.write_to(&mut |bytes| {
            hasher.write(bytes);
            Ok(())
        })?;
    }
    Ok(hasher.finish())
}

type Digests = Vec<(String, u64)>;

/// Opens a file. In one that is named `skip`, what cannot be read is left out.
fn open(path: &Path) -> Result<ForeignFile, Error> {
    let is_skipping = path.file_stem().is_some_and(|stem| stem == "skip");
    ForeignOptions::new().skip_unreadable(is_skipping).open(path)
}

/// Reads the tensors of a file in place.
fn read(path: &Path) -> Result<Digests, Error> {
    let file_bytes = fs::metadata(path).unwrap().len();
    let file = open(path)?;
    for storage in file.storages() {
        assert!(storage.tensor_count <= file.tensors().count() as u64);
    }
    let tensor = |name: String| Ok((digest(&file.load(&name)?, file_bytes)?, name));
    file.tensors().map(|info| tensor(info.name).map(|(digest, name)| (name, digest))).collect()
}

/// Reads the tensors of a file after importing them into a store.
fn import(store: &Store, path: &Path) -> Result<Digests, Error> {
    let file_bytes = fs::metadata(path).unwrap().len();
    let file = open(path)?;
    let mut txn = store.begin()?;
    for name in store.names()? {
        txn.remove(&name)?;
    }
    txn.on_existing(OnExisting::Refuse);
    // A store may refuse a name that the file allows, such as an empty one. A prefix makes it valid.
    file.import_into(&mut txn, "in.", |_| ())?;
    txn.commit()?;
    let tensor = |name: String| {
        let loaded = store.load(&format!("in.{name}"))?;
        Ok((name, digest(&loaded, file_bytes)?))
    };
    file.tensors().map(|info| tensor(info.name)).collect()
}

fn is_typed(error: &Error) -> bool {
    let line = error.to_string();
    !line.contains('\n')
        && matches!(
            error.kind(),
            ErrorKind::BadFile
                | ErrorKind::LimitExceeded
                | ErrorKind::OutOfMemory
                | ErrorKind::InvalidArgument
                | ErrorKind::Io
        )
}

#[test]
fn mutated_files_are_refused_or_read_correctly_in_bounded_memory() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let store_path = dir.path().join("store.smap");
    let store = StoreOptions::new().durability(Durability::Process).create(&store_path).unwrap();
    let mut report = Vec::new();
    for (format, files) in valid::files() {
        let (mut refused, mut accepted, mut most) = (0, 0, 0.0f64);
        let small: Vec<_> = files.iter().filter(|(_, bytes)| bytes.len() < SMALL_BYTES).collect();
        for case in 0..cases() {
            let mut random = Random::new(case);
            // Each file is first read unchanged, so that a refusal below is caused by the mutation. Long files are
            // used rarely.
            let is_whole = (case as usize) < files.len();
            let chosen = if is_whole || case % 20 == 0 {
                &files[case as usize % files.len()]
            } else {
                small[random.below(small.len())]
            };
            let (name, bytes) = chosen;
            let bytes = if is_whole { bytes.clone() } else { mutated(bytes, &mut random) };
            let path = dir.path().join(name);
            fs::write(&path, &bytes).unwrap();
            // Files that were modified very recently are not adopted at once, so set an older time.
            fs::File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .set_modified(SystemTime::UNIX_EPOCH)
                .unwrap();

            MEMORY.reset_peak_usage();
            let before = MEMORY.current_usage() as u64;
            let read = read(&path);
            let taken = (MEMORY.peak_usage() as u64).saturating_sub(before);
            let unfolded = if format.starts_with("PyTorch") { UNFOLDED_BYTES } else { 0 };
            let factor = if format == "GGUF" { BINARY_FACTOR } else { FACTOR };
            let allowed = factor * bytes.len() as u64 + FIXED_BYTES + unfolded;
            let length = bytes.len();
            assert!(
                taken <= allowed,
                "{format} {name} {case}: {taken} bytes for {length} of a file: {read:?}"
            );
            if length >= 8 * SMALL_BYTES {
                most = most.max(taken as f64 / length as f64);
            }

            if read.is_err() && !is_whole && case % 16 != 0 {
                assert!(read.is_err_and(|error| is_typed(&error)), "{format} {name} {case}");
                refused += 1;
                continue;
            }
            let imported = import(&store, &path);
            match (read, imported) {
                (Ok(read), Ok(imported)) => {
                    assert_eq!(read, imported, "{format} {name} {case}");
                    accepted += 1;
                }
                (Err(read), Err(imported)) => {
                    assert!(!is_whole, "{format} {name}: {read}");
                    assert!(
                        is_typed(&read) && is_typed(&imported),
                        "{format} {name} {case}: {read}, {imported}"
                    );
                    refused += 1;
                }
                // An import reads everything, and so detects damage that partial reads do not.
                (Ok(_), Err(error)) if is_typed(&error) && !is_whole => refused += 1,
                (read, imported) => panic!("{format} {name} {case}: {read:?}, {imported:?}"),
            }
        }
        assert!(refused > 0, "{format}: nothing was refused");
        report.push(format!(
            "{format}: {refused} refused, {accepted} read alike twice, at most {most:.1} times a file of 512 KiB or more"
        ));
    }
    println!("{}", report.join("\n"));
}
