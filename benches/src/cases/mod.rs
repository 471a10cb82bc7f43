//! The cases, by subject.

mod commit;
mod load;
mod open;

use crate::Outcome;
use crate::bench::Bench;

pub(crate) fn run(bench: &mut Bench) -> Outcome {
    open::run(bench)?;
    load::run(bench)?;
    commit::run(bench)
}
