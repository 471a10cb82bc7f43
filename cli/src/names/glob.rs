//! Patterns that select tensors by name.

use globset::{GlobBuilder, GlobMatcher};

use crate::error::{Error, Result};

/// A glob such as `encoder.*.weight`, or a prefix. `*` matches any characters, `.` and `/` included.
pub(crate) struct Pattern {
    pub(crate) text: String,
    /// `None` for a prefix.
    glob: Option<GlobMatcher>,
}

impl Pattern {
    /// Parses a pattern. A text that contains `*` or `?` is a glob, unless a tensor has that name. Brackets alone do
    /// not make a glob: the name `x[0]` must not select `x0`.
    pub(crate) fn parse(text: String, is_name: bool) -> Result<Self> {
        let is_glob = text.contains(['*', '?']) && !is_name;
        let glob = is_glob.then(|| GlobBuilder::new(&text).literal_separator(false).build()).transpose();
        let glob =
            glob.map_err(|e| Error::Refused(format!("the glob {text:?} is not valid: {}", e.kind())))?;
        Ok(Pattern { glob: glob.map(|glob| glob.compile_matcher()), text })
    }

    pub(crate) fn is_glob(&self) -> bool {
        self.glob.is_some()
    }

    pub(crate) fn matches(&self, name: &str) -> bool {
        match &self.glob {
            Some(glob) => glob.is_match(name),
            None => name.starts_with(&self.text),
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
    fn pattern_is_a_glob_or_a_prefix() {
        check("*.weight", ["a.weight", "a/b.c.weight"], ["weight", "a.weight.x"]);
        check("layer.?.{w,b}", ["layer.1.w", "layer.2.b"], ["layer.10.w", "layer.1.x"]);
        check("layer.", ["layer.", "layer.1.w"], ["layer", "a.layer.1"]);
        // The name of a tensor.
        check("a*[0]", ["a*[0]", "a*[0].grad"], ["a0", "ab0"]);
        // No star.
        check("a[", ["a[", "a[0]"], ["a", "b["]);
        let refused = Pattern::parse("a[*".to_owned(), false).err().unwrap().to_string();
        assert_eq!(refused, "the glob \"a[*\" is not valid: unclosed character class; missing ']'");
    }
}
