//! The examples, run as a user would: each starts its own processes and checks what they came to.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::SystemTime;
use std::{env, fs};

/// The example of this name, built from the source as it is.
///
/// Cargo builds the examples beside the tests, but not when it was asked for some tests only: then it is asked for them
/// here, for the same profile and target directory.
fn example(name: &str) -> PathBuf {
    static BUILT: Mutex<()> = Mutex::new(());
    // <target>/<profile>/deps/it-<hash>
    let test = env::current_exe().unwrap();
    let profile_dir = test.ancestors().nth(2).unwrap();
    let example = profile_dir.join("examples").join(name);
    let _built = BUILT.lock().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = ["Cargo.lock", "src", "format/src", "examples"].map(|part| changed(&source.join(part)));
    let built = fs::metadata(&example).and_then(|built| built.modified());
    if !built.is_ok_and(|built| sources.iter().all(|changed| *changed <= built)) {
        let profile = match profile_dir.file_name().unwrap().to_str().unwrap() {
            "debug" => "dev",
            profile => profile,
        };
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "stridemap", "--example", name, "--profile", profile]);
        cargo.arg("--target-dir").arg(profile_dir.parent().unwrap()).current_dir(source);
        assert!(cargo.status().unwrap().success(), "{cargo:?}");
    }
    example
}

/// When a file, or the last of those in a directory, was changed.
fn changed(path: &Path) -> SystemTime {
    if path.is_dir() {
        let inside = fs::read_dir(path).unwrap().map(|entry| changed(&entry.unwrap().path()));
        return inside.max().unwrap_or(SystemTime::UNIX_EPOCH);
    }
    fs::metadata(path).and_then(|file| file.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Runs an example that succeeds; gives what it says.
fn run(name: &str) -> String {
    let example: &Path = &example(name);
    let output = Command::new(example).output().unwrap_or_else(|e| panic!("{}: {e}", example.display()));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    print!("{said}");
    said
}

#[test]
fn quickstart_reads_its_views_in_a_second_process() {
    assert!(run("quickstart").contains("over 24 bytes of data"));
}

#[test]
fn hogwild_finds_the_truth_without_locks() {
    let said = run("hogwild");
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("4 processes: loss"), "{said}");
}

#[test]
fn replay_buffer_gives_whole_transitions() {
    let said = run("replay_buffer");
    assert!(said.contains("the ring holds the last 256 of 90000"), "{said}");
}

#[test]
fn tied_weights_are_one_storage_in_every_process() {
    let said = run("tied_weights");
    assert!(said.contains("with the head, both ways:    1296640 bytes of data"), "{said}");
    assert!(said.ends_with("the first process sees the change in the embedding: [7, 0] is 0.25\n"), "{said}");
}

#[test]
fn consumers_of_shared_batches_see_all_rows() {
    let said = run("share_between_processes");
    assert_eq!(said.matches("consumer saw all 10240 rows").count(), 3, "{said}");
}
