//! Changes to a store's own files by other programs while a process reads them. For external files they are in
//! `tests/it/external`.

use std::env;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use stridemap::{DType, ErrorKind, StorageKind, Store};

use crate::harness::{filled, open_mapped};

const SIZE: usize = 3 << 12;
const BIN: &str = "storages/0000000000000001.bin";

/// Creates a store with one tensor of several pages, filled with sevens.
fn create_store_of_sevens(dir: &Path) -> PathBuf {
    let path = dir.join("x.smap");
    let store = Store::create(&path).unwrap();
    store.save("x", &filled(SIZE, 7u8)).unwrap();
    path
}

fn truncate(file: &Path, length_bytes: u64) {
    File::options().write(true).open(file).unwrap().set_len(length_bytes).unwrap();
}

#[test]
fn positional_reads_of_a_file_truncated_after_loading_return_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = create_store_of_sevens(dir.path());
    let store = Store::open(&path).unwrap();
    let _ = store.create_tensor("mutable", DType::I64, &[100], StorageKind::Mutable).unwrap();
    let _ = store.create_tensor("live", DType::I64, &[100], StorageKind::Live).unwrap();
    for (id, name) in ["x", "mutable", "live"].iter().enumerate() {
        let tensor = store.load(name).unwrap();
        let file = path.join(format!("storages/{:016x}.bin", id + 1));
        truncate(&file, 90);
        let refused = [
            tensor.to_bytes().map(drop),
            tensor.clone_data().map(drop),
            tensor.to_scalars().map(drop),
            store.save("copy", &tensor),
            Store::open(&path).unwrap().load(name).map(drop),
        ];
        for error in refused.map(Result::unwrap_err) {
            let text = error.to_string();
            assert!(matches!(error.kind(), ErrorKind::Io | ErrorKind::Corrupt), "{name}: {error:?}");
            assert!(text.contains(&format!("{:016x}.bin", id + 1)) && !text.contains('\n'), "{name}: {text}");
        }
        // Elements before the truncation can be read. The mark of a mutable storage is after it.
        let tensor = tensor.allow_interrupted();
        assert_eq!(tensor.narrow(0, 0, 2).unwrap().to_bytes().unwrap().len(), 2 * tensor.dtype().itemsize());
        assert_eq!(store.verify(|_| ()).unwrap().findings.len(), id + 1, "{name}");
    }
    assert_eq!(store.names().unwrap(), ["live", "mutable", "x"]);
}

/// The contract of `open_mapped` excludes this: the kernel kills a process that touches missing pages. The process
/// never returns other elements in their place.
#[test]
fn truncating_a_mapped_file_kills_the_process_and_returns_no_elements() {
    const VARIABLE: &str = "STRIDEMAP_CUT_WHILE_MAPPED";
    if let Some(path) = env::var_os(VARIABLE) {
        let store = open_mapped(Path::new(&path));
        let tensor = store.load("x").unwrap();
        truncate(&Path::new(&path).join(BIN), 90);
        println!("read {:?}", tensor.as_slice::<u8>().unwrap()[SIZE - 1]);
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = create_store_of_sevens(dir.path());
    let name = "cases::outside::truncating_a_mapped_file_kills_the_process_and_returns_no_elements";
    let output = Command::new(env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(VARIABLE, &path)
        .output()
        .unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
    assert!(!String::from_utf8(output.stdout).unwrap().contains("read"), "an element was made up");
    // A later open fails before anything is mapped.
    let refused = open_mapped(&path).load("x").unwrap_err();
    assert_eq!((refused.kind(), refused.rule().unwrap().number()), (ErrorKind::Corrupt, 26));
}

#[test]
fn file_replaced_while_mapped_keeps_its_bytes_and_the_next_open_fails() {
    for new in [vec![9u8; SIZE], vec![9u8; SIZE - 1]] {
        let dir = tempfile::tempdir().unwrap();
        let path = create_store_of_sevens(dir.path());
        let (store, lending) = (Store::open(&path).unwrap(), open_mapped(&path));
        let (read, lent) = (store.load("x").unwrap(), lending.load("x").unwrap());
        let slice = lent.as_slice::<u8>().unwrap();
        fs::write(path.join("new"), &new).unwrap();
        fs::rename(path.join("new"), path.join(BIN)).unwrap();
        assert_eq!(slice, [7; SIZE]);
        assert_eq!(read.read::<u8>().unwrap(), [7; SIZE]);
        drop((read, lent));
        for again in [Store::open(&path).unwrap(), open_mapped(&path)] {
            let rule = if new.len() < SIZE {
                assert_eq!(again.load("x").unwrap_err().kind(), ErrorKind::Corrupt);
                26
            } else {
                // The length is unchanged, but the record has the digest, and `verify` reads all bytes.
                25
            };
            let findings = again.verify(|_| ()).unwrap().findings;
            assert_eq!((findings.len(), findings[0].rule.number()), (1, rule), "{findings:?}");
        }
    }
}
