//! Tags that are removed, moved and made while they are copied, and processes that are killed.

use std::fs;
use std::path::Path;

use stridemap::Store;

use super::{assert_copy, copy_of, names_in};
use crate::harness::processes::{OtherProcess, send_line, start_together};
use crate::harness::{filled, new_fast_store, new_store};
use crate::history::{first_of, save_tagged, tag_names};

/// Runs a role in a started process. Returns false for a role in a different module.
pub(in crate::history) fn run_role(role: &str, path: &Path) -> bool {
    if role != "history: copy" {
        return false;
    }
    let store = Store::open(path).unwrap();
    let mut has_said = false;
    let copied = store.copy_with_tags(path.with_file_name("copy.smap"), |_| {
        if !std::mem::replace(&mut has_said, true) {
            send_line("copying");
        }
        std::thread::park(); // until it is killed
    });
    panic!("{copied:?}");
}

/// How many generations are held at a time.
const HELD: i64 = 100;

#[test]
fn tags_that_are_removed_meanwhile_are_copied_if_their_generations_were_held() {
    let (_dir, path, store) = new_fast_store();
    let name = |step: i64| format!("step{step:03}");
    for step in 0..HELD + 30 {
        save_tagged(&store, "x", &filled(10, step), &name(step));
    }
    store.write(|txn| txn.tag_snapshot("moved", &store.at(&*name(5))?)).unwrap();
    let other = Store::open(&path).unwrap();
    let mut is_done = false;
    let prune = |_| {
        if std::mem::replace(&mut is_done, true) {
            return;
        }
        let all = tag_names(&other);
        other
            .write(|txn| all.iter().filter(|tag| *tag != "moved").try_for_each(|tag| txn.untag(tag)))
            .unwrap();
        other.write(|txn| txn.untag("moved").and_then(|()| txn.tag("moved"))).unwrap();
        save_tagged(&other, "x", &filled(10, -1i64), "new");
        other.save("x", &filled(10, -2i64)).unwrap();
        other.gc().unwrap();
    };
    let to = path.with_file_name("copy.smap");
    let newest = store.generation();
    let copied = store.copy_with_tags(&to, prune).unwrap();
    assert!(is_done);
    let copy = Store::open(&to).unwrap();
    let mut expected: Vec<_> = (0..HELD).map(name).collect();
    expected.insert(5, "moved".to_owned());
    assert_eq!((copied.tag_count, tag_names(&copy)), (HELD as u64 + 1, expected));
    for step in 0..HELD {
        assert_eq!(first_of(&copy, &name(step), "x"), step);
    }
    assert_eq!((first_of(&copy, "moved", "x"), copy.generation()), (5, newest));
    assert_eq!(copy.load("x").unwrap().read::<i64>().unwrap(), [HELD + 29; 10]);
    let verified = copy.verify(|_| ()).unwrap();
    assert!(verified.is_whole() && verified.orphans.is_empty(), "{verified:#?}");
    // What only the copy held is deleted.
    other.gc().unwrap();
    assert_eq!(tag_names(&other), ["moved", "new"]);
    assert_eq!(super::lengths(&other, "generations").len(), 2);
}

#[test]
fn copies_made_while_processes_tag_and_untag_are_whole() {
    let (_dir, path, store) = new_fast_store();
    save_tagged(&store, "x", &filled(10, 1i64), "kept");
    let others = start_together("history: tag and untag", &path, 2);
    for _ in 0..20 {
        let (copied, copy) = copy_of(&store);
        let verified = copy.verify(|_| ()).unwrap();
        assert!(verified.is_whole() && verified.orphans.is_empty(), "{verified:#?}");
        assert_eq!((first_of(&copy, "kept", "x"), tag_names(&copy).len() as u64), (1, copied.tag_count));
        for tag in tag_names(&copy) {
            let there = copy.at(&*tag).unwrap();
            for name in there.names().unwrap() {
                there.load(&name).unwrap().read::<i64>().unwrap();
            }
        }
        fs::remove_dir_all(copy.path()).unwrap();
    }
    others.into_iter().for_each(OtherProcess::assert_success);
}

#[test]
fn killed_copy_leaves_a_directory_that_may_be_deleted() {
    let (dir, path, store) = new_store();
    save_tagged(&store, "x", &filled(10, 1i64), "v1");
    store.save("x", &filled(10, 2i64)).unwrap();
    let mut copying = OtherProcess::start("history: copy", &path);
    assert_eq!(copying.read_line(), "copying");
    copying.kill();
    let left = names_in(dir.path());
    assert_eq!(left.len(), 2);
    assert!(left[0].starts_with(".stage-") && left[1] == "x.smap", "{left:?}");
    assert_copy(&copy_of(&store).1, &store);
    fs::remove_dir_all(dir.path().join(&left[0])).unwrap();
    assert!(store.verify(|_| ()).unwrap().is_whole());
}
