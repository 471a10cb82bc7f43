//! Plans, which change nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use stridemap_remote::PruneOptions;

use crate::support::Place;

/// All files below a directory, with their contents.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.append(&mut files(&path)),
            false => drop(found.insert(path.clone(), std::fs::read(&path).unwrap())),
        }
    }
    found
}

#[test]
fn plan_changes_nothing_here_and_nothing_there() {
    let place = Place::in_files();
    let all = || files(place.path("").as_path());
    let store = place.create("a.smap");
    store.save("x", &vec![1f32; 1000]).unwrap();
    let unchanged = |what: &str, plan: &dyn Fn()| {
        let before = all();
        plan();
        let after = all();
        let names = |files: &BTreeMap<PathBuf, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&after), names(&before), "{what}");
        assert!(after == before, "{what} changed a file");
    };
    let push = || assert!(place.remote.plan_push(&store).unwrap().changed_bytes > 0);
    unchanged("plan of the first push", &push);
    place.push(&store);
    unchanged("plan of a push of nothing new", &|| {
        place.remote.plan_push(&store).unwrap();
    });
    unchanged("plan of the first pull", &|| {
        place.remote.plan_pull(&place.path("b.smap")).unwrap();
    });
    place.pull("b.smap");
    store.save("x", &vec![2f32; 1000]).unwrap();
    unchanged("plan of a push", &push);
    place.push(&store);
    // As if the store came from a backup without the records.
    for name in all().into_keys().filter(|path| path.to_string_lossy().contains("REMOTE-")) {
        std::fs::remove_file(name).unwrap();
    }
    let pull = || assert!(place.remote.plan_pull(&place.path("b.smap")).unwrap().received_bytes > 0);
    unchanged("plan of a pull", &pull);
    unchanged("plan of a push without a record", &|| {
        place.remote.plan_push(&store).unwrap();
    });
    let prune = PruneOptions::new().keep_last(1).orphans(true).plan(true);
    unchanged("plan of a prune", &|| {
        place.remote.prune(&prune).unwrap();
    });
}

#[test]
fn plan_is_made_while_a_push_is_running() {
    let place = Place::in_memory();
    let store = place.create("a.smap");
    store.save("x", &vec![1u8; 1000]).unwrap();
    let plan = |_| {
        assert!(place.remote.plan_push(&store).unwrap().changed_bytes > 0);
        Ok(())
    };
    place.remote.push(&store, &plan).unwrap();
}
