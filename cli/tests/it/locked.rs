//! Commands that read a mutable tensor while another process changes it.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Stdio};
use std::thread;

use stridemap::{StorageKind, Tensor};

use crate::harness::Dir;

const SIZE: [usize; 2] = [90, 40];

/// The commands, and the file that each of them writes, if any.
const COMMANDS: [(&[&str], Option<&str>); 12] = [
    (&["show", "s.smap", "x"], None),
    (&["show", "s.smap", "x.T", "--format", "csv"], None),
    (&["show", "s.smap", "x", "--json"], None),
    (&["stats", "s.smap", "x"], None),
    (&["plot", "s.smap", "x"], None),
    (&["plot", "s.smap", "x[:, 0]"], None),
    (&["diff", "s.smap", "twos.smap"], None),
    (&["diff", "twos.smap", "s.smap", "--json"], None),
    (&["export", "s.smap", "x.safetensors", "x"], Some("x.safetensors")),
    (&["export", "s.smap", "x.npy", "x"], Some("x.npy")),
    (&["export", "s.smap", "x.npz", "x"], Some("x.npz")),
    (&["report", "s.smap", "-o", "x.html"], Some("x.html")),
];

/// Waits until a command says that it waits for this process.
fn wait_until_it_waits(command: &[&str], child: &mut Child) -> String {
    let mut lines = BufReader::new(child.stderr.as_mut().unwrap()).lines();
    let said = lines.next().unwrap_or_else(|| panic!("{command:?} did not wait")).unwrap();
    assert!(said.contains("waiting for"), "{command:?}: {said}");
    said
}

/// Returns the lines of a file, except those with the random number of a page.
fn read(dir: &Dir, file: &str) -> Vec<Vec<u8>> {
    let bytes = fs::read(dir.path(file)).unwrap();
    let lines =
        bytes.split(|&byte| byte == b'\n').filter(|line| !line.windows(5).any(|word| word == b"nonce"));
    lines.map(<[u8]>::to_vec).collect()
}

#[test]
fn commands_wait_for_the_end_of_a_change_and_show_all_of_it() {
    let dir = Dir::empty();
    let ones = Tensor::from_vec(vec![1i64; SIZE[0] * SIZE[1]], &SIZE).unwrap();
    for name in ["s.smap", "twos.smap"] {
        let store = stridemap::Store::create(dir.path(name)).unwrap();
        store.write(|txn| txn.save_as("x", &ones, StorageKind::Mutable)).unwrap();
        store.load("x").unwrap().lock_exclusive().unwrap().fill_(2).unwrap();
    }
    let x = dir.store().load("x").unwrap();
    let mut guard = x.lock_exclusive().unwrap();
    guard.at(&x.narrow(0, 30, 50).unwrap()).unwrap().fill_(1).unwrap();
    let mut children = COMMANDS.map(|(command, _)| {
        dir.command(command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    });
    for ((command, _), child) in COMMANDS.iter().zip(&mut children) {
        wait_until_it_waits(command, child);
    }
    guard.fill_(2).unwrap();
    drop(guard);
    for ((command, file), mut child) in COMMANDS.iter().zip(children) {
        let mut shown = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut shown).unwrap();
        assert!(child.wait().unwrap().success(), "{command:?}");
        let written = file.map(|file| {
            let written = read(&dir, file);
            fs::remove_file(dir.path(file)).unwrap();
            written
        });
        // Nothing changes the tensor now.
        let again = dir.command(command).output().unwrap();
        assert!(again.status.success(), "{command:?}");
        assert_eq!(String::from_utf8_lossy(&shown), String::from_utf8_lossy(&again.stdout), "{command:?}");
        assert!(written == file.map(|file| read(&dir, file)), "{command:?}");
    }
}

#[test]
fn interrupted_change_is_an_error_that_verify_explains() {
    let dir = Dir::empty();
    for name in ["s.smap", "twos.smap"] {
        let store = stridemap::Store::create(dir.path(name)).unwrap();
        store.write(|txn| txn.save_as("x", &[[1i64; 2]; 2], StorageKind::Mutable)).unwrap();
    }
    assert_eq!(dir.stdout(&["verify", "s.smap"]), "ok\n");
    let x = dir.store().load("x").unwrap();
    let writer = thread::spawn({
        let x = x.clone();
        move || x.lock_exclusive().unwrap().fill_(2).map(|_| panic!("expected by the test")).unwrap()
    });
    assert!(writer.join().is_err());
    for (command, file) in COMMANDS.iter().filter(|(command, _)| command[0] != "report") {
        let ended = dir.run(command);
        assert_eq!(ended.code, Some(2), "{command:?}: {ended:?}");
        assert!(ended.stderr.contains("allow_interrupted"), "{command:?}: {ended:?}");
        assert!(file.is_none_or(|file| !dir.path(file).exists()), "{command:?}");
    }
    for names in [&[][..], &["x"]] {
        let verified = dir.run(&[&["verify", "s.smap"], names].concat());
        assert_eq!(verified.code, Some(1));
        assert!(
            verified.stdout.starts_with("\"x\": ") && verified.stdout.contains("allow_interrupted().lock()")
        );
        let json = dir.run(&[&["verify", "s.smap", "--json"], names].concat());
        let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
        assert_eq!(
            (&json["interrupted"], &json["findings"]),
            (&serde_json::json!(["x"]), &serde_json::json!([]))
        );
    }
    let copied = dir.refusal(&["export", "s.smap", "copy.smap"]);
    assert!(copied.contains("allow_interrupted") && !dir.path("copy.smap").exists(), "{copied}");
    for args in [&["salvage", "s.smap", "-n"][..], &["salvage", "s.smap", "new.smap"]] {
        let salvaged = dir.run(args);
        assert_eq!(salvaged.code, Some(0), "{salvaged:?}");
        assert!(salvaged.stdout.starts_with("interrupted: \"x\": "), "{salvaged:?}");
        assert!(salvaged.stderr.ends_with("nothing is lost\n"), "{salvaged:?}");
        let json = dir.stdout(&["salvage", "s.smap", "-n", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(
            (&json["interrupted"], &json["losses"]),
            (&serde_json::json!(["x"]), &serde_json::json!([]))
        );
    }
    assert!(dir.run(&["verify", "new.smap"]).stdout.starts_with("\"x\": "));
    drop(x.allow_interrupted().lock_exclusive().unwrap());
    assert_eq!(dir.stdout(&["verify", "s.smap"]), "ok\n");
}
