//! Directories as remotes: locks, leftovers and permissions.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use stridemap::{ErrorKind, Store, StoreOptions};
use stridemap_remote::{Client, Put, Remote};

const MINUTE: Duration = Duration::from_secs(60);

/// Set for the process that [`two_processes_replace_an_object_in_turns`] starts.
const WRITER: &str = "STRIDEMAP_TEST_REMOTE_WRITER";

const ROUNDS: u64 = 200;

/// Adds one to the number in COUNT, as often as it wins.
fn count_up(url: &str) {
    let client = Client::open(url, MINUTE).unwrap();
    let mut won = 0;
    while won < ROUNDS {
        let object = client.get("COUNT", 100).unwrap().unwrap();
        let count: u64 = std::str::from_utf8(&object.bytes).unwrap().parse().unwrap();
        let put = client.put_if_match("COUNT", (count + 1).to_string().into(), &object.version).unwrap();
        won += u64::from(put != Put::Exists);
    }
}

#[test]
fn two_processes_replace_an_object_in_turns() {
    if let Ok(url) = std::env::var(WRITER) {
        return count_up(&url);
    }
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file://{}", dir.path().display());
    let client = Client::open(&url, MINUTE).unwrap();
    client.put_new("COUNT", "0".into()).unwrap();
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "directories::two_processes_replace_an_object_in_turns"])
        .env(WRITER, &url)
        .spawn()
        .unwrap();
    count_up(&url);
    assert!(other.wait().unwrap().success());
    assert_eq!(client.get("COUNT", 100).unwrap().unwrap().bytes, (2 * ROUNDS).to_string());
}

#[test]
fn leftovers_of_killed_writers_are_not_objects() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file://{}", dir.path().display());
    let client = Client::open(&url, MINUTE).unwrap();
    let Put::Written(version) = client.put_new("HEAD", "1".into()).unwrap() else { panic!("it exists") };
    client.put_if_match("HEAD", "2".into(), &version).unwrap();
    client.put("objects/a", "1".into()).unwrap();
    fs::write(dir.path().join("objects/b#0123456789abcdef"), "half").unwrap();
    let mut names: Vec<String> = client.list("").unwrap().into_iter().map(|info| info.name).collect();
    names.sort();
    assert_eq!(names, ["HEAD", "objects/a"]);
    let mut files: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    files.sort();
    assert_eq!(files, ["HEAD", "HEAD.lock", "objects"], "no temporary file is left");
    assert!(client.put_new("objects/b", "whole".into()).unwrap() != Put::Exists);
}

#[test]
fn a_directory_where_nothing_may_be_written_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("remote");
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o555)).unwrap();
    if fs::write(path.join("probe"), "").is_ok() {
        eprintln!("skipped: root may write everywhere");
        return;
    }
    let client = Client::open(&format!("file://{}", path.display()), MINUTE).unwrap();
    let error = client.put_new("HEAD", "1".into()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert_eq!(error.io_error().unwrap().kind(), std::io::ErrorKind::PermissionDenied, "{error}");
    assert_eq!(client.requests().put, 1, "it is not repeated");
}

#[test]
fn a_directory_that_is_not_there_has_no_objects_and_is_created_by_the_first_put() {
    let dir = tempfile::tempdir().unwrap();
    let client = Client::open(&format!("file://{}/x/y", dir.path().display()), MINUTE).unwrap();
    assert!(client.get("HEAD", 10).unwrap().is_none());
    assert_eq!(client.list("").unwrap(), []);
    assert!(!dir.path().join("x").exists(), "reading creates nothing");
    client.put("objects/a", "1".into()).unwrap();
    assert_eq!(fs::read(dir.path().join("x/y/objects/a")).unwrap(), b"1");

    // Where a file is in the way, there are no objects either, and a put fails.
    let client = Client::open(&format!("file://{}/x/y/objects/a/z", dir.path().display()), MINUTE).unwrap();
    assert!(client.get("HEAD", 10).unwrap().is_none());
    assert!(client.put("HEAD", "1".into()).is_err());
}

#[test]
fn a_directory_to_which_a_store_was_pushed_is_no_damaged_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(dir.path().join("a.smap")).unwrap();
    store.save("x", &[1f32, 2.]).unwrap();
    let remote = dir.path().join("remote");
    Remote::open(&format!("file://{}", remote.display())).unwrap().push(&store, &|_| Ok(())).unwrap();
    let refusals = [
        Store::open(&remote).unwrap_err(),
        Store::open_or_create(&remote).unwrap_err(),
        StoreOptions::new().verify(&remote, |_| {}).unwrap_err(),
    ];
    for error in refusals {
        assert_eq!(error.kind(), ErrorKind::NotAStore, "{error}");
        assert!(error.to_string().contains("not a stridemap store but a remote"), "{error}");
    }

    // Without a HEAD of a remote, what is missing is damage.
    std::fs::write(remote.join("HEAD"), "something else").unwrap();
    assert_eq!(Store::open(&remote).unwrap_err().kind(), ErrorKind::Corrupt);
}
