//! URLs in arguments, and how they are printed.

use std::borrow::Cow;
use std::path::Path;

use crate::error::{Error, Result};
use crate::names::{command_line, shell_word};

/// What stands between the scheme of a URL and the rest.
const SEPARATOR: &str = "://";

/// Whether an argument is a URL, and not a path.
pub(crate) fn is_url(argument: &Path) -> bool {
    argument.to_string_lossy().contains(SEPARATOR)
}

/// Splits `URL@TAG`. The tag follows the last @ of the last part of the URL's path. Returns `None` for a path on this
/// machine, and for a URL without a tag.
pub(crate) fn split_url(argument: &Path) -> Option<(&Path, &str)> {
    let text = argument.to_str()?;
    let (scheme, rest) = text.split_once(SEPARATOR)?;
    let last = scheme.len() + SEPARATOR.len() + rest.rfind('/')?;
    let at = last + text.get(last..)?.rfind('@')?;
    Some((Path::new(text.get(..at)?), text.get(at + 1..)?))
}

/// Returns a path as it is, and a URL without what may be secret: a user name, a password, a query, a fragment. If it
/// cannot be told where these are, only the scheme is left.
pub(crate) fn shown(argument: &Path) -> Cow<'_, str> {
    let text = argument.to_string_lossy();
    let Some((scheme, rest)) = text.split_once(SEPARATOR) else { return text };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let host = rest.split('/').next().unwrap_or_default();
    let (name, port) = host.rsplit_once(':').unwrap_or((host, ""));
    let is_plain = |text: &str| text.chars().all(|c| c.is_alphanumeric() || "-._[]:".contains(c));
    let is_host = is_plain(scheme) && is_plain(name) && port.bytes().all(|byte| byte.is_ascii_digit());
    match is_host {
        true => format!("{scheme}{SEPARATOR}{rest}").into(),
        false => "the URL".into(),
    }
}

/// Refuses a URL and the directory of a remote, for a command that needs a store or a file on this machine.
pub(crate) fn check_local(argument: &Path) -> Result<()> {
    if !is_url(argument) {
        return check_no_remote(argument);
    }
    let url = shown(split_url(argument).map_or(argument, |(url, _)| url)).into_owned();
    let why = "this must be a path on this machine: a store at a URL is read in place, and changed by a push";
    let [pull, push] = [("pull", [&*url, "STORE"]), ("push", ["STORE", &*url])]
        .map(|(command, args)| command_line(command, &args));
    Err(Error::Refused(format!("{url}: {why}; pull it, {pull}, change STORE, and push it, {push}")))
}

/// Refuses the directory of a remote, which is named by its URL.
fn check_no_remote(path: &Path) -> Result<()> {
    let is_remote =
        path.join("objects").is_dir() && path.join("FORMAT").is_file() && !path.join("meta").exists();
    if !is_remote {
        return Ok(());
    }
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let escaped = absolute.to_string_lossy().replace('%', "%25").replace('?', "%3F").replace('#', "%23");
    let (path, url) = (path.display(), shell_word(&format!("file://{escaped}")).into_owned());
    Err(Error::Refused(format!(
        "{path}: this is the directory of a remote, not a store; name it by its URL, {url}"
    )))
}

/// Refuses a store and a URL in the wrong order.
#[cfg(feature = "remote")]
pub(super) fn check_order(command: &str, url: &Path, store: &Path) -> Result<()> {
    if is_url(url) || !is_url(store) {
        return Ok(());
    }
    let (path, url) = (url.to_string_lossy(), shown(store));
    let (order, arguments) = match command {
        "push" => ("STORE URL", [&*path, &*url]),
        _ => ("URL STORE", [&*url, &*path]),
    };
    let meant = command_line(command, &arguments);
    Err(Error::Refused(format!("{command}: the arguments are {order}, in this order; did you mean {meant}?")))
}

/// Refuses `URL@TAG`, for a command that is about the newest generation.
#[cfg(feature = "remote")]
pub(super) fn check_untagged_url(argument: &Path) -> Result<()> {
    let Some((url, tag)) = split_url(argument) else { return Ok(()) };
    let (argument, url) = (shown(argument), shown(url));
    let named = if tag.parse::<u64>().is_ok() { "an earlier one" } else { "a tag" };
    let why = format!("this command is about the newest generation, and {tag:?} names {named}");
    let export = command_line("export", &[&argument, "COPY.smap"]);
    Err(Error::Refused(format!("{argument}: {why}; name {url}, or copy that generation: {export}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_follows_the_last_at_of_the_last_part() {
        for (argument, expected) in [
            ("s3://bucket/model.smap@v1", Some(("s3://bucket/model.smap", "v1"))),
            ("s3://bucket/me@home/model.smap", None),
            ("s3://bucket/me@home/model.smap@v1", Some(("s3://bucket/me@home/model.smap", "v1"))),
            ("s3://bucket/a@b@c", Some(("s3://bucket/a@b", "c"))),
            ("s3://bucket/@v1", Some(("s3://bucket/", "v1"))),
            ("s3://bucket/model.smap@", Some(("s3://bucket/model.smap", ""))),
            ("s3://bucket/model.smap", None),
            ("https://user:password@host", None),
            ("https://user:password@host/x", None),
            ("model.smap@v1", None),
        ] {
            let expected = expected.map(|(url, tag)| (Path::new(url), tag));
            assert_eq!(split_url(Path::new(argument)), expected, "{argument}");
        }
    }

    #[test]
    fn secret_parts_of_a_url_are_not_shown() {
        for (argument, expected) in [
            ("s3://bucket/model.smap@v1", "s3://bucket/model.smap@v1"),
            ("http://localhost:9000/x", "http://localhost:9000/x"),
            ("http://[::1]:9000/x", "http://[::1]:9000/x"),
            ("file:///tmp/a b/x", "file:///tmp/a b/x"),
            ("https://host/x?signature=secret", "https://host/x"),
            ("https://host/x#secret", "https://host/x"),
            ("https://host?secret", "https://host"),
            ("https://user:secret@host/x", "the URL"),
            ("https://secret@host/x", "the URL"),
            ("https://user:se/cret@host/x", "the URL"),
            ("https://user:secret", "the URL"),
            ("secret@x://host", "the URL"),
            ("a/path@v1", "a/path@v1"),
        ] {
            assert_eq!(shown(Path::new(argument)), expected, "{argument}");
        }
    }

    #[test]
    fn refused_url_comes_with_the_way_to_change_its_store() {
        assert!(check_local(Path::new("a/b:c@v1")).is_ok());
        let refused = check_local(Path::new("s3://b/m.smap@v1")).unwrap_err().to_string();
        assert!(refused.starts_with("s3://b/m.smap: this must be a path on this machine"), "{refused}");
        assert!(refused.contains("stridemap pull 's3://b/m.smap' STORE"), "{refused}");
        assert!(refused.ends_with("stridemap push STORE 's3://b/m.smap'"), "{refused}");
    }
}
