//! `--tag`: tags the state before a change.

use stridemap::{ErrorKind, Transaction};

use crate::error::{Error, Result};
use crate::names::shell_word;
use crate::ui::message;

#[derive(clap::Args)]
pub(crate) struct Before {
    /// Tag the state before the change, in the same commit, so that restore can bring it back
    #[arg(long, value_name = "TAG")]
    pub(crate) tag: Option<String>,
}

impl Before {
    /// Tags the generation before the change, if a tag was given. To be called before [`Transaction::on_existing`],
    /// because `--force` does not replace this tag.
    pub(crate) fn apply(&self, txn: &mut Transaction<'_>) -> Result<()> {
        let Some(name) = &self.tag else { return Ok(()) };
        txn.tag_previous(name).map_err(|e| match e.kind() {
            ErrorKind::NameExists => {
                Error::Refused(format!("--tag {}: the tag exists; choose a different name", shell_word(name)))
            }
            _ => e.into(),
        })
    }

    /// Says which tag was made, for a command that says nothing without one.
    pub(crate) fn report(&self, did: &str, generation: u64) {
        if self.tag.is_some() {
            message(&format!("{did}{}: generation {generation}", self.described(generation)));
        }
    }

    /// Returns the end of the sentence that describes the change, which has published `generation`.
    pub(crate) fn described(&self, generation: u64) -> String {
        let before = generation.saturating_sub(1);
        let tagged = |name: &String| format!(", with generation {before} tagged {}", shell_word(name));
        self.tag.as_ref().map(tagged).unwrap_or_default()
    }
}
