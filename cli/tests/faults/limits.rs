//! Limits of a process (file size, descriptors, threads, memory), and a file system without shared mappings.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output};

use stridemap::{DType, ErrorKind, StorageKind, Store};

use crate::read_only::NOBODY;
use crate::run::{EXECUTABLE, output, refused, role, skip, stridemap, succeed};
use crate::strace;
use crate::template::{self, Content, assert_usable, bytes, content, matching_content};

const WRITERS: [&[&str]; 5] = [
    &["import", "many.safetensors", "rows.npy", "s.smap"],
    &["append", "s.smap", "log", "rows.npy", "rows.npy"],
    &["view", "s.smap", "kept[::2]", "new"],
    &["rm", "s.smap", "kept", "part"],
    &["compact", "s.smap"],
];

fn with_template() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    template::make(dir.path());
    dir
}

/// Runs a command on a copy of the template, through a program that sets a limit. The store must hold the content
/// before or after. Returns the error message, if the command was refused.
fn limited(template: &Path, limit: &[&str], args: &[&str], [before, after]: [&Content; 2]) -> Option<String> {
    let dir = tempfile::tempdir().unwrap();
    let copied = output(Command::new("cp").arg("-r").arg(template.join(".")).arg(dir.path()));
    assert!(copied.status.success(), "{copied:?}");
    let mut command = Command::new(limit[0]);
    let ended = output(command.args(&limit[1..]).arg(EXECUTABLE).args(args).current_dir(dir.path()));
    let what = format!("{limit:?} {args:?}: {ended:?}");
    let refusal = (!ended.status.success()).then(|| refused(&ended));
    let allowed: &[&Content] = match &refusal {
        None => &[after],
        Some(line) if line.contains("may or may not have been published") => &[before, after],
        Some(_) => &[before],
    };
    matching_content(&dir.path().join("s.smap"), allowed, &what);
    assert_usable(dir.path(), "s.smap", &what);
    refusal
}

/// Runs each command under each limit. Returns how many times it was refused, and how many times it succeeded.
fn each_limited(limits: &[Vec<String>], args: &[&str], says: &[&str]) -> (usize, usize) {
    let template = with_template();
    let before = content(&template.path().join("s.smap")).unwrap();
    let done = with_template();
    succeed(done.path(), args);
    let after = content(&done.path().join("s.smap")).unwrap();
    let mut counts = (0, 0);
    for limit in limits {
        let limit: Vec<&str> = limit.iter().map(String::as_str).collect();
        match limited(template.path(), &limit, args, [&before, &after]) {
            Some(line) => {
                assert!(says.iter().all(|text| line.contains(text)), "{limit:?} {args:?}: {line}");
                counts.0 += 1;
            }
            None => counts.1 += 1,
        }
    }
    counts
}

/// Runs both with SIGXFSZ ignored and with its default action, which the executable overrides. A write up to the limit
/// is short, and the next one fails.
#[test]
fn file_size_limit_is_an_error_that_leaves_the_old_content() {
    let lengths =
        [0, 1, 30, 99, 150, 250, 999, 3000, 5000, 1 << 20, (1 << 20) + 90, (1 << 20) + 1090, 4 << 20];
    let limits = |ignoring: bool| {
        let ignoring = if ignoring { &["env", "--ignore-signal=XFSZ"][..] } else { &[] };
        let with = |n: &i32| {
            let words = ignoring.iter().map(|&word| word.to_owned());
            words.chain(["prlimit".to_owned(), format!("--fsize={n}")]).collect()
        };
        lengths.iter().map(with).collect::<Vec<Vec<String>>>()
    };
    let limits = [limits(false), limits(true)].concat();
    for args in &WRITERS[..5] {
        let (refused, done) = each_limited(&limits, args, &["File too large", "ulimit -f"]);
        assert!(refused >= 8 && done >= 2 && refused % 2 == 0, "{args:?}: {refused} refused, {done} done");
    }
}

#[test]
fn command_without_descriptors_is_refused_and_leaves_the_old_content() {
    // With only three descriptors, the dynamic loader cannot open a system library.
    let limits: Vec<Vec<String>> =
        (4..24).map(|n| vec!["prlimit".to_owned(), format!("--nofile={n}")]).collect();
    for args in WRITERS {
        let (refused, done) = each_limited(&limits, args, &["ulimit -n"]);
        assert!(refused > 0 && done > 0, "{args:?}: {refused} refused, {done} done");
    }
}

/// Runs as `nobody`, because the limit does not apply to root.
#[test]
fn command_that_cannot_start_threads_works_on_one_thread() {
    if !rustix::process::geteuid().is_root() {
        skip("STRIDEMAP_REQUIRE_ROOT", "only root can become a user who has no other processes");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::copy(EXECUTABLE, dir.path().join("stridemap")).unwrap();
    for (name, last) in [("a.smap", 0), ("b.smap", 1)] {
        let store = Store::create(dir.path().join(name)).unwrap();
        let mut elements = vec![0u8; 40 << 20];
        *elements.last_mut().unwrap() = last;
        store.save("x", &stridemap::Tensor::from_vec(elements, &[40, 1 << 20]).unwrap()).unwrap();
        store.save_view("x_t", &store.load("x").unwrap().t().unwrap()).unwrap();
    }
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    for args in [
        &["verify", "a.smap"][..],
        &["salvage", "a.smap", "-n"],
        &["diff", "a.smap", "b.smap"],
        &["export", "a.smap", "x.npy", "x_t", "--force"],
    ] {
        let run = |limit: &str| {
            let mut command = Command::new("timeout");
            command.args(["60", "prlimit", limit, "./stridemap"]).args(args);
            output(command.current_dir(dir.path()).uid(NOBODY).gid(NOBODY))
        };
        let unlimited = run("--nproc=1000");
        assert_eq!(unlimited.status.code(), Some(i32::from(args[0] == "diff")), "{unlimited:?}");
        for most in 1..=5 {
            assert_eq!(run(&format!("--nproc={most}")), unlimited, "{args:?} with {most} processes");
        }
    }
}

/// Views larger than the available memory are written in small pieces or refused. No process aborts.
#[test]
fn command_with_little_memory_is_refused_or_uses_less() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(dir.path().join("s.smap")).unwrap();
    let elements = (0..4 << 20).map(|i| i as u32).collect();
    store.save("x", &stridemap::Tensor::from_vec(elements, &[1024, 4096]).unwrap()).unwrap();
    let x = store.load("x").unwrap();
    store.save_view("x_t", &x.t().unwrap()).unwrap();
    store.save_view("stepped", &x.slice(1, None, None, 2).unwrap()).unwrap();
    drop((x, store));
    let run = |limit_mib: u64, args: &[&str]| {
        let mut command = Command::new("prlimit");
        command.arg(format!("--as={}", limit_mib << 20)).arg(EXECUTABLE).args(args);
        output(command.current_dir(dir.path()).env("RUST_BACKTRACE", "0"))
    };
    // The memory that the executable and small commands need.
    let least = (1..1000).find(|&mib| run(mib, &["ls", "s.smap"]).status.success()).unwrap() + 4;
    let (mut done_count, mut refused_count) = (0, 0);
    for args in [
        &["export", "s.smap", "x.npy", "x_t", "--force"][..],
        &["export", "s.smap", "x.npy", "stepped", "--force"],
        &["export", "s.smap", "x.safetensors", "--force"],
        &["diff", "s.smap", "s.smap"],
        &["verify", "s.smap"],
    ] {
        for limit_mib in (least..least + 60).step_by(6) {
            let ended = run(limit_mib, args);
            if ended.status.success() {
                done_count += 1;
                continue;
            }
            let message = String::from_utf8(ended.stderr.clone()).unwrap();
            let is_refusal = ended.status.code() == Some(2) && message.contains("memory");
            assert!(is_refusal && !message.contains("panicked"), "{limit_mib} MiB: {args:?}: {ended:?}");
            refused_count += 1;
        }
    }
    assert!(done_count > 25, "{done_count} done, {refused_count} refused");
}

/// A file system without shared mappings cannot be mounted everywhere, so strace injects its error for the files of
/// the store.
#[test]
fn file_system_that_refuses_shared_mappings_is_read_without_them() {
    if !strace::is_available() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.smap");
    let store = Store::create(&path).unwrap();
    store.save("sealed", &bytes(1000, 0)).unwrap();
    let _ = store.create_tensor("mutable", DType::U8, &[10], StorageKind::Mutable).unwrap();
    let _ = store.create_tensor("live", DType::U8, &[10], StorageKind::Live).unwrap();
    drop(store);
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o"]).arg(dir.path().join("trace")).args(["-e", "inject=mmap:error=ENODEV"]);
    for id in 1..=3 {
        command.arg("-P").arg(path.join(format!("storages/{id:016x}.bin")));
    }
    let played = role("unmapped", &path);
    command.arg(played.get_program()).args(played.get_args());
    command.envs(played.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let ended: Output = output(&mut command);
    assert!(ended.status.success(), "{ended:?}");
    let trace = std::fs::read_to_string(dir.path().join("trace")).unwrap();
    assert!(trace.matches("(INJECTED)").count() >= 3, "{trace}");
    let all = output(&mut stridemap(dir.path(), &["verify", "s.smap"]));
    assert!(all.status.success(), "{all:?}");
}

/// A file system such as those of some cameras and containers: strace injects the errors that it gives.
#[test]
fn file_system_without_hard_links_and_without_renames_that_do_not_replace_can_be_used() {
    if !strace::is_available() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    template::make(dir.path());
    let run = |args: &[&str]| {
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-o", "trace", "-e", "inject=renameat2:error=EINVAL"]);
        command.args(["-e", "inject=link,linkat:error=EPERM"]).arg(EXECUTABLE).args(args);
        output(command.current_dir(dir.path()))
    };
    let mut refused_count = 0;
    for args in [
        &["import", "rows.npy", "new.smap"][..],
        &["import", "many.safetensors", "rows.npy", "s.smap"],
        &["view", "s.smap", "kept[::2]", "new"],
        &["append", "s.smap", "log", "rows.npy"],
        &["append", "s.smap", "log", "rows.npy"],
        &["compact", "s.smap"],
        &["export", "s.smap", "kept.npy", "kept"],
        &["export", "s.smap", "all.safetensors"],
        &["report", "s.smap", "-o", "s.html"],
    ] {
        let ended = run(args);
        assert!(ended.status.success(), "{args:?}: {ended:?}");
        let trace = fs::read_to_string(dir.path().join("trace")).unwrap();
        refused_count += trace.matches("(INJECTED)").count();
    }
    assert!(refused_count > 20, "{refused_count}");
    // What exists is not replaced.
    for args in [&["export", "s.smap", "kept.npy", "kept"][..], &["import", "rows.npy", "s.smap"]] {
        assert_eq!(run(args).status.code(), Some(2), "{args:?}");
    }
    let mut chunk = fs::read(dir.path().join("s.smap/storages/0000000000000001.bin")).unwrap();
    chunk[0] ^= 1;
    fs::write(dir.path().join("s.smap/storages/0000000000000001.bin"), chunk).unwrap();
    let ended = run(&["salvage", "s.smap", "salvaged.smap"]);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(output(&mut stridemap(dir.path(), &["verify", "salvaged.smap"])).status.success());
}

/// Runs in a process that cannot map any file of the store.
pub(crate) fn read_without_mapping(path: &Path) {
    // SAFETY: only this library writes the store.
    let mapped = unsafe { Store::open_mapped(path).unwrap() };
    let sealed = mapped.load("sealed").unwrap();
    assert_eq!(sealed.read::<u8>().unwrap(), bytes(1000, 0).read::<u8>().unwrap());
    assert_eq!(sealed.as_slice::<u8>().unwrap_err().kind(), ErrorKind::NeedsCopy);
    let mutable = mapped.load("mutable").unwrap();
    let mut guard = mutable.lock_exclusive().unwrap();
    guard.fill_(7).unwrap();
    assert_eq!(guard.as_slice_mut::<u8>().unwrap_err().kind(), ErrorKind::NeedsCopy);
    drop(guard);
    assert_eq!(mutable.read::<u8>().unwrap(), [7; 10]);
    let live = mapped.load("live").unwrap();
    let refused = live.as_live::<u8>().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("keep the store on a different one"), "{refused}");
    assert_eq!(live.read::<u8>().unwrap(), [0; 10]);
    mapped.save("next", &bytes(10, 0)).unwrap();
}
