//! The files that a commit deletes.

use std::path::Path;

use stridemap::Store;

use crate::harness::strace::{is_local, mark, trace};
use crate::harness::{filled, new_path};

/// Runs a role in a started process. Returns false for a role in a different module.
pub(crate) fn run_role(role: &str, path: &Path) -> bool {
    if role != "replace a large tensor" {
        return false;
    }
    let store = Store::open(path).unwrap();
    let elements = filled(1 << 20, 2f32);
    mark("begin");
    store.save("x", &elements).unwrap();
    mark("end");
    true
}

#[test]
fn blocks_of_a_deleted_file_are_freed_after_the_writers_lock_is_released() {
    let (_dir, path) = new_path();
    if !is_local(&path) {
        return;
    }
    Store::create(&path).unwrap().save("x", &filled(1 << 20, 1f32)).unwrap();
    let Some(trace) = trace("replace a large tensor", &path, "begin") else { return };
    let calls = trace.between("begin", "end");
    let last = |is_it: &dyn Fn(&str) -> bool| {
        calls.iter().rposition(|call| is_it(call)).unwrap_or_else(|| panic!("{calls:#?}"))
    };
    let has = |call: &str, name: &str, of: &str| call.starts_with(name) && call.contains(of);
    const OLD: &str = "\"0000000000000001.bin\"";
    let number = |at: usize| calls[at].rsplit(" = ").next().unwrap();
    let lock = number(last(&|call| has(call, "openat(", "\"LOCK\"")));
    let opened = last(&|call| has(call, "openat(", OLD));
    let deleted = last(&|call| has(call, "unlinkat(", OLD));
    let unlocked = last(&|call| has(call, "flock(", &format!("({lock}, LOCK_UN)")));
    let closed = last(&|call| call.starts_with(&format!("close({})", number(opened))));
    assert!(opened < deleted && deleted < unlocked && unlocked < closed, "{calls:#?}");
    assert!(!path.join("storages/0000000000000001.bin").exists());
}
