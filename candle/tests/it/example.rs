//! The example program.

use std::env;
use std::path::Path;

#[allow(dead_code, unreachable_pub, reason = "its main, for the command line")]
#[path = "../../examples/silero.rs"]
mod silero;

#[test]
fn small_network_computes_the_same_bits_from_every_store() {
    let report = silero::run(None).unwrap();
    assert!(report.contains("256 outputs each, and the bits are the same"), "{report}");
}

#[test]
fn real_model_computes_the_same_bits_from_every_store() {
    // CI sets this variable.
    let Some(model) = env::var_os("STRIDEMAP_MODEL") else { return };
    let report = silero::run(Some(Path::new(&model))).unwrap();
    assert!(report.contains("31 outputs each, and the bits are the same"), "{report}");
}

#[test]
fn file_that_is_not_a_model_is_an_error() {
    let error = silero::run(Some(Path::new("Cargo.toml"))).unwrap_err();
    assert!(!error.to_string().is_empty());
}
