//! Compactions that are killed before each of their steps.

use std::io::BufReader;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::{env, fs};

use stridemap::{Store, StoreOptions};

use crate::compaction::{assert_intact, content, storage_bytes, vector};
use crate::harness::hooked::Hooked;
use crate::harness::processes::die;
use crate::harness::processes::{command, read_line, send_line};
use crate::support::temporary;

const STEP: &str = "STRIDEMAP_TEST_STEP";

/// The disk operations that change something.
const CHANGES: [&str; 8] =
    ["create_staged", "allocate", "write_all_at", "set_len", "sync", "rename_new", "sync_dir", "remove"];

/// Not a test: runs the role of a started process.
pub(crate) fn run_role(role: &str, path: &Path) -> bool {
    if role != "compact and die" {
        return false;
    }
    let last: u64 = env::var(STEP).unwrap().parse().unwrap();
    let (is_compacting, step) = (Arc::new(AtomicBool::new(false)), AtomicU64::new(0));
    let is_armed = Arc::clone(&is_compacting);
    let disk = Hooked::before(move |operation, path| {
        if CHANGES.contains(&operation)
            && is_armed.load(Ordering::Relaxed)
            && step.fetch_add(1, Ordering::Relaxed) == last
        {
            send_line(format!("{operation} {}", path.file_name().unwrap().display()));
            die();
        }
        Ok(())
    });
    let store = StoreOptions::new().disk(Arc::new(disk)).open(path).unwrap();
    is_compacting.store(true, Ordering::Relaxed);
    assert_eq!(store.compact(false, |_| ()).unwrap().storage_count, 2);
    send_line("done");
    true
}

/// Creates a store of two half-referenced storages, which a compaction joins: one of more than a chunk, and a small one.
fn create_half_referenced_store(path: &Path) -> Store {
    let store = Store::create(path).unwrap();
    for (name, elements) in [("large", 3 << 18), ("small", 1 << 13)] {
        store.save("all", &vector(elements, 7)).unwrap();
        let all = store.load("all").unwrap();
        store.save_view(name, &all.slice(0, None, None, 2).unwrap()).unwrap();
    }
    store.remove("all").unwrap();
    store
}

#[test]
fn compaction_killed_before_any_step_leaves_the_store_intact() {
    let dir = temporary();
    let mut steps = Vec::new();
    let (mut taken_back, mut published) = (0, 0);
    loop {
        let path = dir.path().join(format!("{}.smap", steps.len()));
        let store = create_half_referenced_store(&path);
        let (before, generation) = (content(&store), store.generation());
        // Its pin would keep the generation and its files.
        drop(store);
        let mut other = command("compact and die", &path);
        let other = other.env(STEP, steps.len().to_string()).stdout(std::process::Stdio::piped());
        let mut other = other.spawn().unwrap();
        let mut said = BufReader::new(other.stdout.take().unwrap());
        let heard = read_line(&mut said);
        std::io::copy(&mut said, &mut std::io::sink()).unwrap();
        let status = other.wait().unwrap();
        let is_done = heard == "done";
        assert_eq!(
            (status.success(), status.signal()),
            (is_done, (!is_done).then_some(libc::SIGKILL)),
            "{heard}"
        );
        let store = Store::open(&path).unwrap();
        assert_eq!(content(&store), before, "killed before {heard}");
        assert_intact(&store);
        match store.generation() - generation {
            0 => taken_back += 1,
            _ => published += 1,
        }
        // Only leftovers are deleted.
        store.gc().unwrap();
        let known: u64 = store.snapshot().storages().map(|storage| storage.unwrap().size_bytes).sum();
        let sums = fs::read_dir(path.join("storages")).unwrap().map(|entry| entry.unwrap());
        let sums = sums.filter(|entry| entry.path().extension().is_some_and(|end| end == "sum"));
        let sum_bytes: u64 = sums.map(|entry| entry.metadata().unwrap().len()).sum();
        assert_eq!(storage_bytes(&path) - sum_bytes, known, "killed before {heard}");
        store.compact(false, |_| ()).unwrap();
        assert_eq!(content(&store), before, "killed before {heard}");
        assert_eq!(store.disk_usage().unwrap().reclaimable_bytes, 0, "killed before {heard}");
        fs::remove_dir_all(&path).unwrap();
        if is_done {
            break;
        }
        steps.push(heard);
    }
    println!("{taken_back} times nothing had happened, {published} times it had: {steps:?}");
    // During the copy, at each rename of the commit, and after the commit.
    for step in [
        "write_all_at .stage-",
        "sync .stage-",
        "rename_new 0000000000000003.bin",
        "rename_new 0000000000000003.sum",
        "sync_dir storages",
        "rename_new 0000000000000007.man",
        "sync_dir meta",
        "remove 0000000000000001.bin",
    ] {
        assert!(steps.iter().any(|heard| heard.starts_with(step)), "never before {step}: {steps:?}");
    }
    assert!(taken_back > 0 && published > 0, "{steps:?}");
}
