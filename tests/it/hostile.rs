//! What the fuzzer found of stores that lie.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use stridemap::{Store, Tensor};

use crate::support::temporary;

#[test]
fn an_older_manifest_that_is_no_file_holds_nothing_back() {
    for kind in ["directory", "symlink", "fifo"] {
        let dir = temporary();
        let path = dir.path().join("x.smap");
        let store = Store::create(&path).unwrap();
        let older = path.join("meta/0000000000000000.man");
        match kind {
            "directory" => fs::create_dir(&older).unwrap(),
            "symlink" => symlink(path.join("FORMAT"), &older).unwrap(),
            _ => assert!(Command::new("mkfifo").arg(&older).status().unwrap().success()),
        }
        store.save("x", &Tensor::from_vec(vec![1u8, 2, 3], &[3]).unwrap()).unwrap();
        store.remove("x").unwrap();
        store.gc().unwrap();
        let left = fs::read_dir(path.join("storages")).unwrap().count();
        assert_eq!(left, 0, "{kind}: what no generation has is collected");
        let stats = store.stats().unwrap_or_else(|e| panic!("{kind}: {e}"));
        assert_eq!(stats.reclaimable_bytes(), 0, "{kind}");
        assert!(store.verify(|_| ()).unwrap().findings.is_empty(), "{kind}");
    }
}
