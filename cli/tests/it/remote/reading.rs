//! Commands that look at a store, with its URL.

use std::fs;
use std::path::{Path, PathBuf};

use super::{failure, url};
use crate::harness::Dir;

/// Returns a directory with a store, with two tags and attributes, that has been pushed.
fn pushed() -> (Dir, String) {
    let dir = Dir::with_store();
    let url = url(&dir);
    dir.messages(&["tag", "s.smap", "v1", "-m", "the first"]);
    dir.messages(&["attr", "set", "s.smap", "unit", "m", "--of", "points"]);
    dir.messages(&["view", "s.smap", "points", "encoder.weight"]);
    dir.messages(&["tag", "s.smap", "v2"]);
    dir.messages(&["push", "s.smap", &url]);
    (dir, url)
}

/// Commands that only look, with `STORE` for the store.
const LOOKING: [&[&str]; 26] = [
    &["ls", "STORE"],
    &["ls", "-l", "STORE", "p*"],
    &["ls", "--json", "STORE"],
    &["info", "STORE"],
    &["info", "--all", "STORE"],
    &["info", "--all", "--json", "STORE"],
    &["show", "STORE", "points.t()[:, ::-1]"],
    &["show", "STORE", "'odd [name]'"],
    &["stats", "STORE"],
    &["stats", "--json", "STORE", "points"],
    &["plot", "STORE", "points"],
    &["plot", "STORE", "points", "points_t", "--over", "*"],
    &["diff", "STORE", "STORE@v1"],
    &["tree", "STORE"],
    &["du", "--map", "STORE"],
    &["verify", "STORE", "--quiet"],
    &["verify", "STORE@v1", "--quiet"],
    &["verify", "STORE", "points*"],
    &["log", "STORE"],
    &["log", "--json", "STORE"],
    &["tag", "STORE"],
    &["tag", "--json", "STORE"],
    &["attr", "list", "STORE"],
    &["attr", "get", "STORE@v2", "unit", "--of", "points"],
    // What a removal frees is not known of a URL.
    &["du", "STORE@v1", "points"],
    &["du", "STORE@v1"],
];

#[test]
fn commands_that_look_print_of_a_url_what_they_print_of_the_store() {
    let (dir, url) = pushed();
    for args in LOOKING {
        let run = |place: &str| {
            let args: Vec<String> = args.iter().map(|arg| arg.replace("STORE", place)).collect();
            let run = dir.run(&args.iter().map(String::as_str).collect::<Vec<_>>());
            let texts =
                [run.stdout, run.stderr].map(|text| text.replace(place, "STORE").replace("s.smap", "STORE"));
            (run.code, texts)
        };
        let (code, local) = run("s.smap");
        assert!(matches!(code, Some(0 | 1)) && !local[0].is_empty(), "{args:?}: {local:?}");
        assert_eq!(run(&url), (code, local), "{args:?}");
    }
}

#[test]
fn tagged_generation_of_a_url_is_read_by_tag_and_by_number() {
    let (dir, url) = pushed();
    let local = dir.stdout(&["ls", "s.smap@v1"]);
    assert!(!local.contains("encoder"));
    for at in ["v1", "2"] {
        assert_eq!(dir.stdout(&["ls", &format!("{url}@{at}")]), local);
    }
    // An earlier generation without a tag.
    dir.messages(&["rm", "s.smap", "points_t"]);
    dir.messages(&["push", "s.smap", &url]);
    dir.messages(&["rm", "s.smap", "points"]);
    dir.messages(&["push", "s.smap", &url]);
    assert_eq!(dir.stdout(&["ls", &format!("{url}@7")]).lines().count(), 3);
    assert_eq!(dir.stdout(&["verify", &format!("{url}@7")]), "ok\n");
    assert_eq!(dir.stdout(&["verify", &format!("{url}@7"), "points"]), "ok\n");
    let run = dir.run(&["ls", &format!("{url}@v3")]);
    assert!(failure(&run).starts_with("no tag is named \"v3\"; the tags of "), "{run:?}");
    for (number, why) in [("3", "it was not pushed, or was pruned"), ("99", "it was not pushed")] {
        let run = dir.run(&["ls", &format!("{url}@{number}")]);
        let why = format!("it is not there, because {why}; the newest is generation 8");
        assert_eq!(failure(&run), format!("open generation {number} of {url}: {why}"));
    }
    // A URL without a tag is its newest generation.
    let usage = dir.stdout(&["du", &url]);
    assert!(usage.starts_with("generation\t8\n") && usage.contains("\nown\t"), "{usage}");
}

#[test]
fn export_and_report_read_a_url() {
    let (dir, url) = pushed();
    for (out, names) in
        [("o.npy", &["points"][..]), ("o.safetensors", &[]), ("c.smap", &["points*"]), ("d.smap", &[])]
    {
        dir.messages(&[&["export", &url, out], names].concat());
        dir.messages(&[&["export", "s.smap", &format!("local-{out}")], names].concat());
        assert!(dir.stdout(&["diff", out, &format!("local-{out}")]).starts_with("equal"));
    }
    dir.messages(&["export", &url, "tags.smap", "--tags"]);
    assert_eq!(dir.stdout(&["tag", "tags.smap"]), dir.stdout(&["tag", "s.smap"]));
    dir.messages(&["report", &url, "-o", "r.html"]);
    assert!(std::fs::read_to_string(dir.path("r.html")).unwrap().contains("encoder.weight"));
}

#[test]
fn damaged_object_is_reported_with_its_name() {
    let (dir, url) = pushed();
    let objects = std::fs::read_dir(dir.path("remote/s.smap/objects")).unwrap();
    for object in objects {
        let name = object.unwrap().file_name().into_string().unwrap();
        let path = format!("remote/s.smap/objects/{name}");
        let length = std::fs::metadata(dir.path(&path)).unwrap().len();
        dir.write(&path, &vec![0; length as usize]);
    }
    let run = dir.run(&["show", &url, "points"]);
    let said = failure(&run);
    assert!(said.contains("objects/"), "{said}");
    let run = dir.run(&["pull", &url, "p.smap"]);
    assert!(failure(&run).contains("objects/"), "{run:?}");
    assert!(!dir.path("p.smap").exists());
}

/// All objects below a directory.
fn objects(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { objects(&path) } else { vec![path] }).collect()
}

#[test]
fn verify_lists_damaged_objects_as_it_does_damaged_files() {
    let dir = Dir::with_store();
    let url = url(&dir);
    dir.messages(&["push", "s.smap", &url]);
    for path in objects(&dir.path("remote")) {
        let name = path.file_name().unwrap().to_str().unwrap();
        if name == "FORMAT" || name.ends_with(".lock") {
            continue;
        }
        let original = fs::read(&path).unwrap();
        let mut wrong = original.clone();
        wrong[original.len() / 2] ^= 1;
        // HEAD that does not exist is no damage, and no store.
        let missing = (name != "HEAD").then_some(None);
        let cut = original[..original.len() - 1].to_vec();
        for damaged in [Some(Some(wrong)), Some(Some(cut)), missing].into_iter().flatten() {
            match &damaged {
                Some(bytes) => fs::write(&path, bytes).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            let run = dir.run(&["verify", &url]);
            assert_eq!(run.code, Some(1), "{name}: {run:?}");
            assert!(run.stdout.contains(name) && run.stdout.contains("(R-"), "{name}: {run:?}");
            assert_eq!(run.stderr, "", "{name}");
            fs::write(&path, &original).unwrap();
        }
    }
    assert_eq!(dir.stdout(&["verify", &url]), "ok\n");
}
