//! Salvages of stores with tags: they copy one generation.

use std::fs;
use std::path::Path;

use stridemap::maintenance::Salvaged;
use stridemap::{Store, StoreOptions};

use super::{files, save_tagged};
use crate::harness::{filled, new_path};

fn salvage(path: &Path, new: &Path) -> Salvaged {
    StoreOptions::new().salvage(path, Some(new), |_| ()).unwrap()
}

fn reasons(done: &Salvaged) -> Vec<(&Path, &str)> {
    assert!(done.losses.iter().all(|loss| loss.name.is_none() && loss.lost_bytes == 0), "{done:#?}");
    done.losses.iter().map(|loss| (loss.path.as_path(), loss.reason.as_str())).collect()
}

#[test]
fn salvage_says_which_tags_are_not_copied() {
    let (_dir, path) = new_path();
    let store = Store::create(&path).unwrap();
    save_tagged(&store, "x", &filled(10, 1i64), "v1");
    save_tagged(&store, "x", &filled(10, 2i64), "v2");
    store.write(|txn| txn.tag_snapshot("same", &store.at("v2")?)).unwrap();
    drop(store);
    let new = path.with_extension("new");
    let done = salvage(&path, &new);
    assert_eq!((&done.tags[..], &done.losses[..]), (&["same", "v1", "v2"].map(str::to_owned)[..], &[][..]));
    let salvaged = Store::open(&new).unwrap();
    assert!(salvaged.tags().unwrap().is_empty());
    assert_eq!(salvaged.load("x").unwrap().read::<i64>().unwrap(), [2; 10]);
    assert!(salvaged.verify(|_| ()).unwrap().is_whole());
    assert!(files(&new, "generations", "man").is_empty());
    // Without a copy, the same is said.
    assert_eq!(StoreOptions::new().salvage(&path, None, |_| ()).unwrap().tags, done.tags);
}

#[test]
fn salvage_reads_a_tagged_generation_if_no_manifest_is_left() {
    let (_dir, path) = new_path();
    let store = Store::create(&path).unwrap();
    save_tagged(&store, "x", &filled(10, 1i64), "v1");
    save_tagged(&store, "x", &filled(10, 2i64), "v2");
    store.save("x", &filled(10, 3i64)).unwrap();
    drop(store);
    for file in files(&path, "meta", "man") {
        fs::write(file, "damaged").unwrap();
    }
    let new = path.with_extension("new");
    let done = salvage(&path, &new);
    assert_eq!(done.generation, 3);
    let said = reasons(&done);
    assert!(said.iter().any(|(_, reason)| reason.contains("generation 3 is read instead")), "{said:?}");
    let lost = (
        path.join("generations"),
        "the names of the tags are lost, and only one of the tagged generations is copied",
    );
    assert!(said.contains(&(&lost.0, lost.1)), "{said:?}");
    let salvaged = Store::open(&new).unwrap();
    assert_eq!(salvaged.load("x").unwrap().read::<i64>().unwrap(), [2; 10]);
    assert!(salvaged.verify(|_| ()).unwrap().is_whole());
}

#[test]
fn salvage_of_a_damaged_table_of_tags_loses_no_tensor() {
    let (_dir, path) = new_path();
    let store = Store::create(&path).unwrap();
    for step in 0..200i64 {
        save_tagged(&store, "x", &filled(1, step), &format!("{}{step:03}", "long".repeat(40)));
    }
    drop(store);
    let history = files(&path, "meta", "his").pop().unwrap();
    let whole = fs::read(&history).unwrap();
    let new = path.with_extension("new");
    for damaged in [Some(whole[..4096].to_vec()), Some([&whole[..100], &[255], &whole[101..]].concat()), None]
    {
        match &damaged {
            Some(bytes) => fs::write(&history, bytes).unwrap(),
            None => fs::remove_file(&history).unwrap(),
        }
        let done = salvage(&path, &new);
        assert_eq!(done.copied.tensor_count, 1);
        let unknown = reasons(&done);
        assert!(done.tags.len() < 200 && !unknown.is_empty(), "{unknown:?}");
        for (at, reason) in unknown {
            assert_eq!(at, history);
            assert!(reason.ends_with("; tags that it lists are not known"), "{reason}");
        }
        assert_eq!(Store::open(&new).unwrap().load("x").unwrap().read::<i64>().unwrap(), [199]);
        fs::remove_dir_all(&new).unwrap();
    }
}
