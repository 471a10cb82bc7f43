//! The cases, by subject.

mod append;
mod commit;
mod compact;
mod copy;
mod gather;
mod guard;
mod history;
mod interop;
mod load;
mod memory;
mod model;
mod open;
mod remote;
mod save;
mod scaling;
mod scan;
mod statistics;
mod writers;

use crate::Outcome;
use crate::bench::Bench;

pub(crate) fn run(bench: &mut Bench) -> Outcome {
    let subjects = [
        open::run,
        load::run,
        model::run,
        save::run,
        commit::run,
        history::run,
        append::run,
        writers::run,
        copy::run,
        gather::run,
        guard::run,
        scan::run,
        statistics::run,
        interop::run,
        compact::run,
        memory::run,
        scaling::run,
        remote::run,
    ];
    subjects.into_iter().try_for_each(|run| run(bench))
}
