//! Signals and kills in the middle of a push and of a pull, and the repetition.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use stridemap::{Store, Tensor};

use super::{failure, json, save, url};
use crate::harness::{Deadline, Dir};

/// The length of the large tensor. It is cut into five objects.
const BYTES: usize = 320 << 20;

/// When a command is in the middle.
const WRITTEN_BYTES: u64 = 100 << 20;

/// Returns a directory with a store of one large tensor of random elements, and its URL.
fn large() -> (Dir, String) {
    let dir = Dir::empty();
    let mut random = fastrand::Rng::with_seed(7);
    let mut elements = vec![0u8; BYTES];
    random.fill(&mut elements);
    let store = Store::create(dir.path("s.smap")).unwrap();
    store.save("big", &Tensor::from_vec(elements, &[BYTES]).unwrap()).unwrap();
    let url = url(&dir);
    (dir, url)
}

/// Starts a command, and sends it a signal when it has written many bytes. Returns its exit code and its messages.
fn interrupted(dir: &Dir, args: &[&str], signal: &str) -> (Option<i32>, String) {
    let mut command = dir.command(args);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let _deadline = Deadline::of(&child);
    while written_bytes(&child) < WRITTEN_BYTES {
        assert!(child.try_wait().unwrap().is_none(), "it has ended: {args:?}");
        thread::sleep(Duration::from_millis(2));
    }
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

fn written_bytes(child: &Child) -> u64 {
    let io = fs::read_to_string(format!("/proc/{}/io", child.id())).unwrap();
    io.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap().parse().unwrap()
}

#[test]
fn interrupted_or_killed_push_publishes_nothing_and_its_repetition_sends_only_the_rest() {
    let (dir, url) = large();
    let args = ["push", "s.smap", &url, "--jobs", "1"];
    for (signal, expected) in [("-INT", Some(130)), ("-TERM", Some(143)), ("-KILL", None)] {
        let (code, said) = interrupted(&dir, &args, signal);
        assert_eq!(code, expected, "{said}");
        if code.is_some() {
            assert_eq!(said, "stridemap: push: interrupted; nothing was published\n");
        }
        assert!(!dir.path("remote/s.smap/HEAD").exists());
        assert!(dir.run(&["ls", &url]).stderr.contains("there is no store"));
        if signal != "-KILL" {
            fs::remove_dir_all(dir.path("remote")).unwrap();
        }
    }
    let finished = fs::read_dir(dir.path("remote/s.smap/objects")).unwrap();
    // Others have a name of their own until they are complete.
    let is_whole = |object: &fs::DirEntry| object.file_name().len() == 64;
    let finished = finished.map(Result::unwrap).filter(is_whole);
    let finished_bytes: u64 = finished.map(|object| object.metadata().unwrap().len()).sum();
    assert!(finished_bytes > 0);
    let pushed = json(&dir, &args);
    let sent = pushed["requests"]["sent_bytes"].as_u64().unwrap();
    assert!(sent < BYTES as u64 - finished_bytes + (1 << 20), "{pushed}");
    assert_eq!(dir.stdout(&["verify", &url]), "ok\n");
    assert!(dir.stdout(&["diff", "s.smap", &url]).starts_with("equal"));
}

#[test]
fn interrupted_or_killed_pull_changes_nothing_and_can_be_repeated() {
    let (dir, url) = large();
    dir.messages(&["push", "s.smap", &url]);
    let args = ["pull", &url, "p.smap", "--jobs", "1"];
    for (signal, expected) in [("-INT", Some(130)), ("-KILL", None)] {
        let (code, said) = interrupted(&dir, &args, signal);
        assert_eq!(code, expected, "{said}");
        if code.is_some() {
            assert_eq!(said, "stridemap: pull: interrupted; nothing was changed\n");
            let left: Vec<_> =
                fs::read_dir(dir.path("")).unwrap().map(|it| it.unwrap().file_name()).collect();
            assert_eq!(left.len(), 2, "{left:?}");
        }
        assert!(!dir.path("p.smap").exists());
    }
    let (code, said) = interrupted(&dir, &["pull", &url, "c.smap", "big"], "-INT");
    assert_eq!((code, said.as_str()), (Some(130), "stridemap: pull: interrupted; nothing was changed\n"));
    assert!(!dir.path("c.smap").exists());
    dir.messages(&args);
    assert!(dir.stdout(&["diff", "s.smap", "p.smap"]).starts_with("equal"));

    // Into a store that exists.
    let store = dir.store();
    let mut elements = store.load("big").unwrap().read::<u8>().unwrap();
    elements.reverse();
    store.save("more", &Tensor::from_vec(elements, &[BYTES]).unwrap()).unwrap();
    save(&store, "x", 1);
    dir.messages(&["push", "s.smap", &url]);
    let shown = dir.stdout(&["info", "--all", "p.smap"]);
    for (signal, expected) in [("-INT", Some(130)), ("-KILL", None)] {
        let (code, said) = interrupted(&dir, &args, signal);
        assert_eq!(code, expected, "{said}");
        assert_eq!(dir.stdout(&["info", "--all", "p.smap"]), shown);
    }
    dir.messages(&args);
    assert!(dir.stdout(&["diff", "s.smap", "p.smap"]).starts_with("equal"));
    assert_eq!(dir.stdout(&["verify", "p.smap", "-q"]), "ok\n");
}

#[test]
fn push_that_ends_while_it_is_published_says_that_it_may_have_been_and_how_to_find_out() {
    let dir = Dir::with_store();
    let url = url(&dir);
    dir.messages(&["push", "s.smap", &url]);
    save(&dir.store(), "x", 1);
    // HEAD is replaced under this lock, so the last request of the push waits.
    let lock = fs::File::create(dir.path("remote/s.smap/HEAD.lock")).unwrap();
    lock.lock().unwrap();
    let run = dir.run(&["push", "s.smap", &url, "--timeout", "500ms"]);
    let why = "generation 3 may have been published; push again to find out: ";
    assert!(failure(&run).starts_with(&format!("push s.smap to {url}: {why}")), "{run:?}");

    let manifests = || fs::read_dir(dir.path("remote/s.smap/generations")).unwrap().count();
    let before = manifests();
    let args = ["push", "s.smap", &url];
    let child = dir.command(&args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let _deadline = Deadline::of(&child);
    while manifests() == before {
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(Duration::from_millis(200));
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let expected = "stridemap: push: interrupted while the generation was being published, so the URL may have it; push \
                    again to find out: that says that the URL is up to date, or publishes it\n";
    assert_eq!((output.status.code(), said.as_str()), (Some(130), expected));
    drop(lock);
    assert!(dir.messages(&args).starts_with("stridemap: pushed s.smap to "));
    assert_eq!(dir.stdout(&["show", &url, "x"]), "tensor([1])\n");
}
