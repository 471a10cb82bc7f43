//! The memory that the executable takes for hostile files: the peak resident size, as the kernel counts it. This is a
//! separate, small program, because a started process begins with its parent's resident size.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed test shows its location")]

use std::env;
use std::fs;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The files that the test of `interop` opens.
#[path = "../../interop/tests/bounded_memory/bombs.rs"]
#[allow(dead_code, reason = "only some of it is used here")]
mod bombs;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Allowed beyond the memory for opening an empty store.
const ALLOWED_KIB: i64 = 64 << 10;

/// The result of a run: its exit code, or none for a signal, and its peak resident size in KiB.
#[expect(clippy::zombie_processes, reason = "wait4 waits for it and returns its memory use")]
fn run(args: &[&str]) -> (Option<i32>, i64) {
    let child = Command::new(env!("CARGO_BIN_EXE_stridemap"))
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (mut status, mut usage) = (0, MaybeUninit::<libc::rusage>::uninit());
    let id = child.id() as libc::pid_t;
    // SAFETY: the pointers are to live values, and nothing else waits for the child.
    assert_eq!(unsafe { libc::wait4(id, &raw mut status, 0, usage.as_mut_ptr()) }, id);
    // SAFETY: the call filled it.
    let usage = unsafe { usage.assume_init() };
    let code = libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
    (code, usage.ru_maxrss)
}

/// Set for the separate process that creates the bombs: they are large, and this process must stay small.
const MAKE: &str = "STRIDEMAP_MAKE_BOMBS";

const TEST: &str = "no_hostile_file_makes_the_executable_take_much_memory";

/// Returns the paths in a folder, relative to the repository or absolute.
fn in_folder(folder: impl AsRef<Path>) -> Vec<PathBuf> {
    let entries = fs::read_dir(Path::new(ROOT).join(folder)).unwrap();
    let mut found: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

#[test]
fn no_hostile_file_makes_the_executable_take_much_memory() {
    if let Some(dir) = env::var_os(MAKE) {
        bombs::stores(&Path::new(&dir).join("stores"));
        bombs::files(&Path::new(&dir).join("files"));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let made = ["stores", "files"].map(|name| dir.path().join(name));
    made.iter().for_each(|folder| fs::create_dir(folder).unwrap());
    let making = Command::new(env::current_exe().unwrap())
        .args([TEST, "--exact"])
        .env(MAKE, dir.path())
        .stdout(Stdio::null())
        .status();
    assert!(making.unwrap().success());
    let target = dir.path().join("target.smap");
    let target = target.to_str().unwrap();
    let empty = Path::new(ROOT).join("tests/data/stores/good/empty/store");
    let (code, base) = run(&["info", "--all", empty.to_str().unwrap()]);
    assert_eq!(code, Some(0));
    let damaged = in_folder("tests/data/stores/damaged").into_iter().map(|path| path.join("store"));
    let stores: Vec<_> = damaged.chain(in_folder(&made[0])).collect();
    let is_hostile = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with("hostile") || name.starts_with("refused")
    };
    let pickles = ["interop/tests/data/pt", "interop/tests/data/pt_more"]
        .into_iter()
        .flat_map(in_folder)
        .filter(is_hostile);
    let files: Vec<_> = pickles.chain(in_folder(&made[1])).collect();
    for (command, paths) in
        [("info", &stores), ("ls", &stores), ("verify", &stores), ("info", &files), ("import", &files)]
    {
        let mut most = (0, String::new());
        for path in paths {
            let name = path.to_str().unwrap();
            let args: &[&str] = match command {
                "import" => &[command, name, target],
                "info" => &[command, "--all", name],
                _ => &[command, name],
            };
            let (code, taken) = run(args);
            // If only elements are damaged, headers are still listed. A newer version is not damage.
            let is_newer = name.contains("-version-");
            let is_right = match command {
                "verify" => code == Some(if is_newer { 2 } else { 1 }),
                _ => matches!(code, Some(0 | 2)),
            };
            let is_bomb = path.starts_with(dir.path()) || name.contains("external-");
            assert!(is_right || is_bomb && code.is_some(), "{args:?}: {code:?}");
            let above = taken - base;
            assert!(above <= ALLOWED_KIB, "{command} {name}: {above} KiB");
            most = most.max((above, name.to_owned()));
        }
        let (above, name) = most;
        println!(
            "{command} of {} hostile {}: at most {:.1} MiB above the {:.1} MiB of an empty store, for {name}",
            paths.len(),
            if paths == &stores { "stores" } else { "files" },
            above as f64 / 1024.,
            base as f64 / 1024.
        );
    }
}
