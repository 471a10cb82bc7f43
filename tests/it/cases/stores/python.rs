//! The Python reader, written only from the specification, on the same stores.
//!
//! Skipped, with the reason printed, if python3, numpy or xxhash is missing. `STRIDEMAP_REQUIRE_PYTHON` turns that
//! into a failure.

use std::env;
use std::process::Command;

use super::{copied, expected, stores};

const CHECK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/read_stores.py");

#[test]
fn python_reads_and_refuses_the_same_stores() {
    let found = Command::new("python3").args(["-c", "import numpy, xxhash"]).output();
    if !found.is_ok_and(|output| output.status.success()) {
        println!("skipped: python3 with numpy and xxhash is not there");
        assert!(
            env::var_os("STRIDEMAP_REQUIRE_PYTHON").is_none(),
            "python3 with numpy and xxhash is required"
        );
        return;
    }
    let (mut command, mut copies) = (Command::new("python3"), Vec::new());
    command.args(["-B", CHECK]);
    for kind in ["good", "damaged"] {
        for (_, dir) in stores(kind) {
            // The format does not define which external files a reader may open.
            if expected(&dir).get("load").is_some_and(|said| said["kind"] == "NotAllowed") {
                continue;
            }
            let copy = copied(&dir);
            command.arg(copy.path());
            copies.push(copy);
        }
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    print!("{}", String::from_utf8_lossy(&output.stdout));
}
