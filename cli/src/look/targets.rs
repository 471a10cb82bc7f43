//! What the arguments of `stats` and `plot` select.

use std::collections::BTreeSet;

use stridemap::Tensor;

use crate::error::{Error, Result};
use crate::expr;
use crate::expr::Copies;
use crate::input::Input;
use crate::names::{Named as _, Pattern, pattern, selecting_hint};

/// A tensor or view to read.
pub(crate) struct Target {
    pub(crate) label: String,
    pub(crate) size_bytes: u64,
    /// `None` for the tensor that has the label as its name.
    view: Option<Tensor>,
}

impl Target {
    pub(crate) fn load(&self, input: &Input) -> Result<Tensor> {
        match &self.view {
            Some(view) => Ok(view.clone()),
            None => Ok(input.load(&self.label)?),
        }
    }
}

/// Returns what the arguments select, and whether that is a single tensor or view, given by its name or expression and
/// not by a pattern. `verb` is the command, for errors.
pub(crate) fn targets(verb: &str, select: &[String], input: &Input) -> Result<(Vec<Target>, bool)> {
    let (mut targets, mut listed, mut is_exact) = (Vec::new(), BTreeSet::new(), false);
    let mut add = |targets: &mut Vec<Target>, pattern: Option<&Pattern>| -> Result<bool> {
        let infos = input.sorted(|info| pattern.is_none_or(|pattern| pattern.matches(&info.name)))?;
        let is_any = !infos.is_empty();
        for info in infos.into_iter().filter(|info| listed.insert(info.name.clone())) {
            targets.push(Target { size_bytes: info.header.nbytes() as u64, label: info.name, view: None });
        }
        Ok(is_any)
    };
    for text in select {
        let pattern = pattern(text, input)?;
        if !pattern.is_name() {
            if !add(&mut targets, Some(&pattern))? {
                return Err(Error::NoMatch(format!("{verb}: no tensor matches {text:?}")));
            }
            continue;
        }
        if let Some(why) = selecting_hint(&pattern.text, input)? {
            return Err(Error::Refused(why));
        }
        let (_, view) = expr::view(text, input, Copies::Allowed)?;
        targets.push(Target { label: text.clone(), size_bytes: view.nbytes() as u64, view: Some(view) });
        is_exact = true;
    }
    if select.is_empty() {
        add(&mut targets, None)?;
    }
    let is_one = is_exact && targets.len() == 1;
    Ok((targets, is_one))
}
