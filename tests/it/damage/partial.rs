//! Verification of one tensor, which reads nothing else.

use crate::harness::hooked::Hooked;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use stridemap::{ErrorKind, StoreOptions};

use super::support::create_chunked_store;

const CHUNK: u64 = 1 << 20;

#[test]
fn verifying_a_tensor_reads_only_its_chunks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("chunked.smap");
    create_chunked_store(&path);
    let disk = Hooked::default();
    let store = StoreOptions::new().disk(Arc::new(disk.clone())).open(&path).unwrap();
    for (name, chunk_bytes) in
        [("chunk1", CHUNK), ("ends", 2 * CHUNK), ("none", 0), ("tail", 400), ("all", 3 * CHUNK + 400)]
    {
        disk.take_counts();
        let mut told = 0;
        assert_eq!(store.verify_tensors(&[name], |bytes| told += bytes).unwrap().findings, []);
        let counts = disk.take_counts();
        assert_eq!(told, chunk_bytes, "{name}");
        // Besides the chunks, the digests of three.
        assert!(counts.data_read_bytes <= chunk_bytes + 6 * 16, "{name}: {counts:?}");
        assert!(counts.metadata_read_bytes < 1000, "{name}: {counts:?}");
    }
    let bin = fs::File::options().write(true).open(path.join("storages/0000000000000001.bin")).unwrap();
    bin.write_all_at(b"x", CHUNK + 100).unwrap();
    for (name, count) in [("chunk0", 0), ("chunk1", 1), ("chunk2", 0), ("ends", 0), ("all", 1)] {
        let findings = store.verify_tensors(&[name], |_| ()).unwrap().findings;
        assert_eq!(findings.len(), count, "{name}: {findings:?}");
        for finding in findings {
            assert_eq!(finding.offset_bytes, Some(CHUNK));
            assert!(finding.affects(name) && !finding.affects("chunk2"), "{finding}");
        }
    }
    let missing = store.verify_tensors(&["chunk"], |_| ()).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NameNotFound);
}
