//! Commands that read a mutable tensor while another process changes it.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Stdio};

use stridemap::{StorageKind, Tensor};

use crate::harness::Dir;

const SIZE: [usize; 2] = [90, 40];

/// The commands, and the file that each of them writes, if any.
const COMMANDS: [(&[&str], Option<&str>); 12] = [
    (&["show", "s.smap", "x"], None),
    (&["show", "s.smap", "x.T", "--csv"], None),
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
