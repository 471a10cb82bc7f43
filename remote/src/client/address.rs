//! The URL of a remote.

use std::path::{Path, PathBuf};

use stridemap::{Error, ErrorKind, Result};
use url::Url;

/// Where a remote is, checked. It holds no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// The URL without a trailing slash.
    pub(super) location: String,
    pub(super) place: Place,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    S3 { bucket: String, path: String },
    Google { bucket: String, path: String },
    Azure { container: String, path: String },
    Http { base: String },
    File { root: PathBuf },
    Memory { name: String, path: String },
}

const EXAMPLES: &str = "write s3://bucket/path, gs://bucket/path, az://container/path, https://host/path, \
                        file:///absolute/path or memory://name/path";

impl Address {
    /// # Errors
    ///
    /// [`InvalidArgument`](ErrorKind::InvalidArgument). The message has no more of the URL than its scheme and host, because
    /// what follows may be a signature.
    pub(super) fn parse(url: &str) -> Result<Self> {
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(refused("a remote", format!("the URL has no scheme; {EXAMPLES}")));
        };
        let scheme = scheme.to_ascii_lowercase();
        if !matches!(scheme.as_str(), "s3" | "gs" | "az" | "http" | "https" | "file" | "memory") {
            let shown: String = scheme.chars().filter(char::is_ascii_alphanumeric).take(20).collect();
            return Err(refused(&format!("{shown}://"), format!("the scheme is unknown; {EXAMPLES}")));
        }
        let scheme_only = format!("{scheme}://");
        if rest.contains(['?', '#']) {
            let hint = "a remote's URL has no query and no fragment; credentials come from the environment";
            return Err(refused(&scheme_only, hint));
        }
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        if host.contains('@') {
            let hint =
                "a remote's URL has no user name and no password; credentials come from the environment";
            return Err(refused(&scheme_only, hint));
        }
        if rest.chars().any(char::is_control) {
            return Err(refused(&scheme_only, "the URL has control characters"));
        }
        match scheme.as_str() {
            "file" => Self::file(host, path),
            "http" | "https" => Self::http(&scheme, rest),
            _ => Self::bucket(&scheme, host, path),
        }
    }

    fn bucket(scheme: &str, host: &str, path: &str) -> Result<Self> {
        let example = match scheme {
            "az" => "az://container/path",
            "memory" => "memory://name/path",
            _ => "bucket/path after the scheme, as in s3://bucket/path",
        };
        if host.is_empty() {
            return Err(refused(
                &format!("{scheme}://"),
                format!("the URL names no bucket; write {example}"),
            ));
        }
        if !host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) {
            let hint = "the name of a bucket has letters, digits, '-', '_' and '.', without a port";
            return Err(refused(&format!("{scheme}://"), hint));
        }
        let path = path.trim_matches('/');
        let location = [scheme, "://", host, if path.is_empty() { "" } else { "/" }, path].concat();
        check_segments(path).map_err(|hint| refused(&location, hint))?;
        let (name, path) = (host.to_owned(), path.to_owned());
        let place = match scheme {
            "s3" => Place::S3 { bucket: name, path },
            "gs" => Place::Google { bucket: name, path },
            "az" => Place::Azure { container: name, path },
            _ => Place::Memory { name, path },
        };
        Ok(Address { location, place })
    }

    fn http(scheme: &str, rest: &str) -> Result<Self> {
        let location = format!("{scheme}://{}", rest.trim_end_matches('/'));
        let url = Url::parse(&location)
            .map_err(|e| refused(&format!("{scheme}://"), format!("{e}; write https://host/path")))?;
        check_segments(url.path().trim_matches('/')).map_err(|hint| refused(&location, hint))?;
        Ok(Address { location, place: Place::Http { base: url.into() } })
    }

    fn file(host: &str, path: &str) -> Result<Self> {
        let example = "write file:///absolute/path, with three slashes";
        if !matches!(host, "" | "localhost") {
            return Err(refused("file://", format!("the path is not absolute; {example}")));
        }
        let root = Url::parse(&format!("file:///{path}"))
            .ok()
            .and_then(|url| url.to_file_path().ok())
            .filter(|root| root != Path::new("/"))
            .ok_or_else(|| refused("file://", format!("the path is not valid; {example}")))?;
        let location = format!("file:///{}", path.trim_matches('/'));
        Ok(Address { location, place: Place::File { root } })
    }
}

fn check_segments(path: &str) -> std::result::Result<(), &'static str> {
    if path.is_empty() {
        return Ok(());
    }
    match path.split('/').any(|segment| matches!(segment, "" | "." | "..")) {
        true => Err("the path has an empty part, \".\" or \"..\""),
        false => Ok(()),
    }
}

fn refused(shown: &str, hint: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("open {shown}: {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scheme_is_parsed_and_a_trailing_slash_means_nothing() {
        for url in ["s3://b/a/c", "s3://b/a/c/", "S3://b/a/c//"] {
            let address = Address::parse(url).unwrap();
            assert_eq!(address.location, "s3://b/a/c");
            assert_eq!(address.place, Place::S3 { bucket: "b".into(), path: "a/c".into() });
        }
        assert_eq!(Address::parse("gs://b").unwrap().location, "gs://b");
        assert_eq!(
            Address::parse("az://c/x").unwrap().place,
            Place::Azure { container: "c".into(), path: "x".into() }
        );
        assert_eq!(
            Address::parse("memory://m/x y").unwrap().place,
            Place::Memory { name: "m".into(), path: "x y".into() }
        );
        assert_eq!(
            Address::parse("file:///tmp/a%20b/").unwrap().place,
            Place::File { root: PathBuf::from("/tmp/a b") }
        );
        assert_eq!(Address::parse("file://localhost/tmp/x").unwrap().location, "file:///tmp/x");
        assert_eq!(
            Address::parse("https://h:8080/x/").unwrap().place,
            Place::Http { base: "https://h:8080/x".into() }
        );
    }

    #[test]
    fn a_url_that_is_not_of_a_remote_is_refused_with_an_example_and_without_what_it_hides() {
        for url in [
            "model.smap",
            "/tmp/model",
            "ftp://h/s3cret-part",
            "s3://",
            "s3:///s3cret-part",
            "s3://b/p?sig=s3cret-part",
            "s3://b/p#s3cret-part",
            "s3://user:s3cret-part@b/p",
            "https://user:s3cret-part@h/p",
            "https://h/p?X-Amz-Signature=s3cret-part",
            "file://relative/s3cret-part",
            "file:///",
            "file:",
            "s3://b/a/../s3cret",
            "s3://b/a//c",
            "memory://",
            "https://",
        ] {
            let error = Address::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{url}");
            assert!(!error.to_string().contains("s3cret-part"), "{error}");
        }
        assert!(Address::parse("x").unwrap_err().to_string().contains("s3://bucket/path"));
        assert!(Address::parse("file://a/b").unwrap_err().to_string().contains("file:///absolute/path"));
    }
}
