use std::env;

/// A directory that goes when the test ends.
pub(crate) fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// The value of an environment variable that scales a test, or what it is by default.
pub(crate) fn scaled(variable: &str, default: usize) -> usize {
    match env::var(variable) {
        Ok(value) => value.parse().unwrap_or_else(|_| panic!("{variable}={value} is not a number")),
        Err(_) => default,
    }
}
