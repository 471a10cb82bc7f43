//! Helpers of several test programs. The tests of `interop` use this file too.

use std::env;
use std::process::{Command, Output};

use serde_json::Value;
use stridemap::Scalar;

/// Creates a directory that is deleted at the end of the test.
pub(crate) fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Prints that a test is skipped, and why. Fails if the variable requires the test.
pub(crate) fn skip(variable: &str, why: &str) {
    assert!(env::var_os(variable).is_none(), "{why}, and {variable} is set");
    println!("skipped: {why}");
}

/// Returns the number in an environment variable that scales a test, or the default.
pub(crate) fn scaled(variable: &str, default: usize) -> usize {
    match env::var(variable) {
        Ok(value) => value.parse().unwrap_or_else(|_| panic!("{variable}={value} is not a number")),
        Err(_) => default,
    }
}

/// Decodes the bytes in files that the generators in `tests/data` write.
pub(crate) fn from_base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut bits, mut bit_count) = (Vec::new(), 0u32, 0);
    for digit in text.bytes().filter(|&byte| byte != b'=') {
        bits = bits << 6 | DIGITS.iter().position(|&known| known == digit).unwrap() as u32;
        bit_count += 6;
        if bit_count >= 8 {
            bit_count -= 8;
            bytes.push((bits >> bit_count) as u8);
        }
    }
    bytes
}

/// Returns an element as Python writes it in JSON: text for values that JSON numbers lack, and pairs for complex
/// numbers.
pub(crate) fn as_json(value: Scalar) -> Value {
    let real = |x: f64| match x {
        x if x.is_nan() => "NaN".into(),
        f64::INFINITY => "Infinity".into(),
        f64::NEG_INFINITY => "-Infinity".into(),
        x => Value::from(x),
    };
    match value {
        Scalar::Bool(b) => b.into(),
        Scalar::Int(n) => serde_json::from_str(&n.to_string()).unwrap(),
        Scalar::Float(x) => real(x),
        Scalar::Complex(re, im) => vec![real(re), real(im)].into(),
        other => panic!("{other:?} has no JSON form here"),
    }
}

/// Returns whether Python can import the modules. If not, prints what is skipped.
pub(crate) fn python_has(modules: &str) -> bool {
    let found = Command::new("python3").args(["-c", &format!("import {modules}")]).output();
    let is_available = found.is_ok_and(|output| output.status.success());
    if !is_available {
        println!("skipped: python3 with {modules} is not there");
        assert!(env::var_os("STRIDEMAP_REQUIRE_PYTHON").is_none(), "python3 with {modules} is required");
    }
    is_available
}

pub(crate) fn python(args: &[&str]) -> Output {
    Command::new("python3").arg("-B").args(args).output().unwrap()
}

pub(crate) fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}
