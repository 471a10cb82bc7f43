//! Patterns that select tensors by name.

use globset::{GlobBuilder, GlobMatcher};

use crate::error::{Error, Result};

/// What an argument selects: one name, a glob such as `encoder.*.weight`, or a prefix such as `encoder.`. In a glob, `*`
/// matches any characters, `.` and `/` included.
pub(crate) struct Pattern {
    pub(crate) text: String,
    kind: Kind,
}

enum Kind {
    Name,
    Glob(GlobMatcher),
    Prefix,
}

impl Pattern {
    /// Parses a pattern. A text that contains `*` or `?` is a glob, and one that ends with `.` or `/` is a prefix, unless
    /// a tensor has that name. Brackets alone do not make a glob: the name `x[0]` must not select `x0`.
    pub(crate) fn parse(text: String, is_name: bool) -> Result<Self> {
        let kind = if is_name {
            Kind::Name
        } else if text.contains(['*', '?']) {
            let glob = GlobBuilder::new(&text).literal_separator(false).build();
            let refused =
                |e: globset::Error| Error::Refused(format!("the glob {text:?} is not valid: {}", e.kind()));
            Kind::Glob(glob.map_err(refused)?.compile_matcher())
        } else if text.ends_with(['.', '/']) {
            Kind::Prefix
        } else {
            Kind::Name
        };
        Ok(Pattern { text, kind })
    }

    pub(crate) fn is_name(&self) -> bool {
        matches!(self.kind, Kind::Name)
    }

    pub(crate) fn is_prefix(&self) -> bool {
        matches!(self.kind, Kind::Prefix)
    }

    pub(crate) fn matches(&self, name: &str) -> bool {
        match &self.kind {
            Kind::Name => name == self.text,
            Kind::Glob(glob) => glob.is_match(name),
            Kind::Prefix => name.starts_with(&self.text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, names: [&str; 2], others: [&str; 2]) {
        let pattern = Pattern::parse(pattern.to_owned(), pattern == "a*[0]").unwrap();
        assert!(names.iter().all(|name| pattern.matches(name)), "{names:?}");
        assert!(!others.iter().any(|name| pattern.matches(name)), "{others:?}");
    }

    #[test]
    fn pattern_is_a_name_a_glob_or_a_prefix() {
        check("*.weight", ["a.weight", "a/b.c.weight"], ["weight", "a.weight.x"]);
        check("layer.?.{w,b}", ["layer.1.w", "layer.2.b"], ["layer.10.w", "layer.1.x"]);
        check("layer.", ["layer.", "layer.1.w"], ["layer", "a.layer.1"]);
        // The name of a tensor.
        check("a*[0]", ["a*[0]"; 2], ["a0", "a*[0].grad"]);
        // No star, and no dot at the end.
        check("a[", ["a["; 2], ["a", "a[0]"]);
        let refused = Pattern::parse("a[*".to_owned(), false).err().unwrap().to_string();
        assert_eq!(refused, "the glob \"a[*\" is not valid: unclosed character class; missing ']'");
    }
}
