//! The examples, run as a user would: each starts its own processes and checks what they came to.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

/// Builds the examples, unless that is done, and gives the one of this name.
///
/// Cargo builds them beside the tests, but not when it was asked for some tests only; so it is asked again, for the same
/// profile and target directory.
fn example(name: &str) -> PathBuf {
    static BUILT: Once = Once::new();
    // <target>/<profile>/deps/it-<hash>
    let test = env::current_exe().unwrap();
    let profile_dir = test.ancestors().nth(2).unwrap();
    BUILT.call_once(|| {
        let profile = match profile_dir.file_name().unwrap().to_str().unwrap() {
            "debug" => "dev",
            profile => profile,
        };
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--examples", "--package", "stridemap", "--profile", profile]);
        cargo.arg("--target-dir").arg(profile_dir.parent().unwrap());
        cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
        assert!(cargo.status().unwrap().success(), "{cargo:?}");
    });
    profile_dir.join("examples").join(name)
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
