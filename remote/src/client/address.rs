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

const EXAMPLES: &str = "write s3://bucket/path, gs://bucket/path, az://container/path, https://host/path \
                        or file:///absolute/path";

impl Address {
    /// # Errors
    ///
    /// [`InvalidArgument`](ErrorKind::InvalidArgument). The message has the URL without what may be secret: see [`shown`].
    pub(super) fn parse(url: &str) -> Result<Self> {
        let refused = |hint: &str| Err(refused(&shown(url), hint));
        let Some((scheme, rest)) = url.split_once("://") else {
            return refused(&format!("this is not a URL; {EXAMPLES}"));
        };
        let scheme = scheme.to_ascii_lowercase();
        if !matches!(scheme.as_str(), "s3" | "gs" | "az" | "http" | "https" | "file" | "memory") {
            return refused(&format!("the scheme is unknown; {EXAMPLES}"));
        }
        if rest.contains(['?', '#']) {
            return refused(
                "a remote's URL has no query and no fragment; credentials come from the environment",
            );
        }
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        if host.contains('@') {
            return refused(
                "a remote's URL has no user name and no password; credentials come from the environment",
            );
        }
        if rest.chars().any(char::is_control) {
            return refused("the URL has control characters");
        }
        let parsed = match scheme.as_str() {
            "file" => Self::file(host, path),
            "http" | "https" => Self::http(&scheme, rest),
            _ => Self::bucket(&scheme, host, path),
        };
        parsed.or_else(|hint| refused(&hint))
    }

    /// The error is what is wrong, and what to write.
    fn bucket(scheme: &str, host: &str, path: &str) -> Parsed {
        let example = match scheme {
            "az" => "az://container/path",
            "memory" => "memory://name/path",
            _ => "bucket/path after the scheme, as in s3://bucket/path",
        };
        if host.is_empty() {
            return Err(format!("the URL names no bucket; write {example}"));
        }
        if !host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) {
            let hint = "the name of a bucket has letters, digits, '-', '_' and '.', without a port";
            return Err(hint.to_owned());
        }
        let path = path.trim_end_matches('/');
        check_segments(path)?;
        let location = [scheme, "://", host, if path.is_empty() { "" } else { "/" }, path].concat();
        let (name, path) = (host.to_owned(), path.to_owned());
        let place = match scheme {
            "s3" => Place::S3 { bucket: name, path },
            "gs" => Place::Google { bucket: name, path },
            "az" => Place::Azure { container: name, path },
            _ => Place::Memory { name, path },
        };
        Ok(Address { location, place })
    }

    fn http(scheme: &str, rest: &str) -> Parsed {
        let location = format!("{scheme}://{}", rest.trim_end_matches('/'));
        let url = Url::parse(&location).map_err(|e| format!("{e}; write https://host/path"))?;
        let (_, path) = rest.trim_end_matches('/').split_once('/').unwrap_or((rest, ""));
        check_segments(path)?;
        Ok(Address { location, place: Place::Http { base: url.into() } })
    }

    /// In the path of a directory, several slashes are as one, so that each directory has one location.
    fn file(host: &str, path: &str) -> Parsed {
        let example = "write file:///absolute/path, with three slashes";
        if !matches!(host, "" | "localhost") {
            return Err(format!("the path is not absolute; {example}"));
        }
        let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
        let path = segments.join("/");
        check_segments(&path)?;
        let location = format!("file:///{path}");
        let root = Url::parse(&location)
            .ok()
            .and_then(|url| url.to_file_path().ok())
            .filter(|root| root != Path::new("/"))
            .ok_or_else(|| format!("the path is not valid; {example}"))?;
        Ok(Address { location, place: Place::File { root } })
    }
}

type Parsed = std::result::Result<Address, String>;

fn check_segments(path: &str) -> std::result::Result<(), String> {
    if path.is_empty() {
        return Ok(());
    }
    match path.split('/').find(|segment| matches!(*segment, "" | "." | "..")) {
        Some("") => Err("the path has two slashes in a row; write one".to_owned()),
        Some(segment) => Err(format!("the path has the part {segment:?}; write it without")),
        None => Ok(()),
    }
}

/// Returns a URL that is not valid for a message: without its query and fragment, and without all that follows the scheme if
/// there may be a user name or a password.
fn shown(url: &str) -> String {
    let plain: String =
        url.chars().take_while(|c| !matches!(c, '?' | '#')).filter(|c| !c.is_control()).collect();
    let (scheme, rest) = plain.split_once("://").unwrap_or(("", &plain));
    let host = rest.split('/').next().unwrap_or_default();
    let port = host.rsplit_once(':').map_or("", |(_, port)| port);
    if !scheme.contains('@') && !rest.contains('@') && port.bytes().all(|byte| byte.is_ascii_digit()) {
        return plain;
    }
    match scheme.is_empty() || !scheme.chars().all(char::is_alphanumeric) {
        true => "the URL".to_owned(),
        false => format!("{scheme}://"),
    }
}

fn refused(shown: &str, hint: &str) -> Error {
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
        for url in ["file://localhost/tmp/x", "file:////tmp//x//"] {
            let address = Address::parse(url).unwrap();
            assert_eq!(address.location, "file:///tmp/x");
            assert_eq!(address.place, Place::File { root: PathBuf::from("/tmp/x") });
        }
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
            "ftp://h/p?s3cret-part",
            "ftp://user:s3cret-part@h",
            "ftp://user:pa/s3cret-part@h",
            "ftp://user:s3cret-part",
            "s3cret-part@host://x",
            "user:s3cret-part@host/x",
            "s3://",
            "s3:///part",
            "s3://b/\u{1b}p",
            "s3://b/p?sig=s3cret-part",
            "s3://b/p#s3cret-part",
            "s3://user:s3cret-part@b/p",
            "https://user:s3cret-part@h/p",
            "https://h/p?X-Amz-Signature=s3cret-part",
            "file://relative/part",
            "file:///a/../b",
            "file:///",
            "file:",
            "s3://b/a/../s3cret",
            "s3://b/a//c",
            "s3://b//a",
            "https://h//a",
            "memory://",
            "https://",
        ] {
            let error = Address::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{url}");
            assert!(!error.to_string().contains("s3cret-part"), "{error}");
        }
        for url in ["ftp://h/x", "s3:///x", "s3://b//x", "file://x/y", "x.smap", "https://h:1/a/../b"] {
            let said = Address::parse(url).unwrap_err().to_string();
            assert!(said.starts_with(&format!("open {url}: ")), "{said}");
        }
        assert!(Address::parse("x").unwrap_err().to_string().contains("s3://bucket/path"));
        assert!(Address::parse("file://a/b").unwrap_err().to_string().contains("file:///absolute/path"));
    }
}
