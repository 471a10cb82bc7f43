//! The Python reader, written only from the specification, on the same stores.
//!
//! Skipped, with the reason printed, if python3, numpy or xxhash is missing. `STRIDEMAP_REQUIRE_PYTHON` turns that
//! into a failure.

use super::{copied, expected, stores};
use crate::support::{python, python_has, stdout};

const CHECK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/read_stores.py");

#[test]
fn python_reads_and_refuses_the_same_stores() {
    if !python_has("numpy, xxhash") {
        return;
    }
    let dirs = ["good", "damaged"].into_iter().flat_map(stores).map(|(_, dir)| dir);
    // The format does not define which external files a reader may open.
    let readable = dirs.filter(|dir| expected(dir)["load"]["kind"] != "NotAllowed");
    let copies: Vec<_> = readable.map(|dir| copied(&dir)).collect();
    let paths = copies.iter().map(|copy| copy.path().to_str().unwrap());
    let args: Vec<&str> = [CHECK].into_iter().chain(paths).collect();
    print!("{}", stdout(&python(&args)));
}
