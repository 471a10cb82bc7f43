//! The command line of stridemap, a memory-mapped on-disk tensor store.
//!
//! Data goes to standard output, messages and progress to standard error. The exit code is 0 for success, 1 for a
//! negative answer (see `NEGATIVE`) and 2 for an error. If standard output is closed early, commands that only print
//! end with 0, as ripgrep does; other commands finish and exit as usual.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod args;
mod at;
mod by_storage;
mod care;
mod change;
mod diff;
mod error;
mod expr;
mod held;
mod history;
mod in_place;
mod input;
mod interrupt;
mod look;
mod names;
mod output_file;
mod pieces;
mod plan;
mod plot;
mod proportion;
mod remote;
mod scalar;
mod separator;
mod shell;
mod size;
mod ui;
mod undo;

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};

use crate::args::Command;
use crate::care::{compact, du, salvage, verify};
use crate::change::{append, attr, convert, copy, edit, export, import, mv};
use crate::error::{Error, Result};
use crate::history::{log, prune, restore, tag};
use crate::look::{info, ls, report, show, stats, tree};
use crate::remote::{follow, pull, push};
use crate::shell::generate;
use crate::ui::Stdout;

/// The exit code of a command that ran, but whose answer is no. `verify` and `compact` return it for damage (with
/// `--materialize`, `compact` also for a skipped file), `salvage` for something that is lost or left out, `diff` for a
/// difference, `attr` for a missing attribute, `log` for a generation that cannot be read, and most
/// commands for a prefix, a glob or a filter that matches nothing.
const NEGATIVE: u8 = 1;
const FAILED: u8 = 2;

fn main() -> ExitCode {
    shell::complete();
    raise_open_file_limit();
    survive_file_size_limit();
    let (args, matches) = shell::parse().unwrap_or_else(|e| e.exit());
    match run_interruptible(&args.apply()) {
        Ok(code) => code,
        Err(Error::Output(e)) if e.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(e) => {
            ui::warn(&format!("{e}{}", shell::order_hint(&e, &matches)));
            ExitCode::from(if matches!(e, Error::NoMatch(_)) { NEGATIVE } else { FAILED })
        }
    }
}

/// Runs a command. If a signal interrupted it, says what was done.
fn run_interruptible(command: &Command) -> Result<ExitCode> {
    let ended = interrupt::run(|| run(command));
    match (ended, interrupt::exit_code()) {
        (Some(ended), None) => ended,
        // A signal is the usual end of these.
        (Some(ended), Some(_)) if is_endless(command) => ended,
        (Some(Err(_)), code) if interrupt::has_stopped() => interrupted(command, code),
        // The command had done its work, and said so, before it could notice the signal.
        (Some(ended), Some(code)) => ended.map(|_| ExitCode::from(code)),
        (None, code) => interrupted(command, code),
    }
}

/// Returns whether a command runs until a signal ends it.
fn is_endless(command: &Command) -> bool {
    match command {
        Command::Log(args) => args.is_endless(),
        Command::Follow(_) => true,
        _ => false,
    }
}

/// Says what an interrupted command has done. Returns its exit code.
fn interrupted(command: &Command, code: Option<u8>) -> Result<ExitCode> {
    ui::warn(interrupted_message(command));
    Ok(ExitCode::from(code.unwrap_or(FAILED)))
}

/// Returns the message that says what an interrupted command has done.
fn interrupted_message(command: &Command) -> &'static str {
    match command {
        Command::Import(_) => "import: interrupted; nothing was imported",
        Command::Export(args) if args.is_piped() => "export: interrupted; the output is incomplete",
        Command::Export(_) => "export: interrupted; nothing was written",
        Command::Copy(_) => "copy: interrupted; nothing was copied",
        Command::Convert(_) => "convert: interrupted; nothing was converted",
        Command::Append(_) => "append: interrupted; nothing was appended",
        Command::Compact(_) => "compact: interrupted; what was rewritten until then stays",
        Command::Salvage(_) => "salvage: interrupted; nothing was made",
        Command::Push(_) => remote::push::interrupted_message(),
        Command::Pull(_) => "pull: interrupted; nothing was changed",
        Command::Prune(_) => "prune: interrupted; what was deleted until then stays deleted",
        _ => "interrupted",
    }
}

fn run(command: &Command) -> Result<ExitCode> {
    let mut out = BufWriter::with_capacity(64 * 1024, Stdout::lock(has_effect_or_answer(command)));
    let mut is_positive = true;
    match command {
        Command::Import(args) => import::run(args, &mut out)?,
        Command::Export(args) => export::run(args, &mut out)?,
        Command::Info(args) => info::run(args, &mut out)?,
        Command::Tree(args) => tree::run(args, &mut out)?,
        Command::Report(args) => report::run(args, &mut out)?,
        Command::Diff(args) => is_positive = diff::run(args, &mut out)?,
        Command::Ls(args) => is_positive = ls::run(args, &mut out)?,
        Command::Show(args) => show::run(args, &mut out)?,
        Command::Stats(args) => stats::run(args, &mut out)?,
        Command::Plot(args) => plot::run(args, &mut out)?,
        Command::Copy(args) => copy::run(args, &mut out)?,
        Command::Convert(args) => convert::run(args, &mut out)?,
        Command::View(args) => edit::view(args, &mut out)?,
        Command::Mv(args) => mv::mv(args, &mut out)?,
        Command::Rm(args) => edit::rm(args, &mut out)?,
        Command::Attr(args) => attr::run(args, &mut out)?,
        Command::Tag(args) => tag::run(args, &mut out)?,
        Command::Log(args) => is_positive = log::run(args, &mut out)?,
        Command::Restore(args) => restore::run(args, &mut out)?,
        Command::Prune(args) => prune::run(args, &mut out)?,
        Command::Append(args) => append::run(args, &mut out)?,
        Command::Compact(args) => is_positive = compact::run(args, &mut out)?,
        Command::Du(args) => du::run(args, &mut out)?,
        Command::Verify(args) => is_positive = verify::run(args, &mut out)?,
        Command::Salvage(args) => is_positive = salvage::run(args, &mut out)?,
        Command::Push(args) => push::run(args, &mut out)?,
        Command::Pull(args) => pull::run(args, &mut out)?,
        Command::Follow(args) => follow::run(args, &mut out)?,
        Command::Generate(args) => generate::run(args, &mut out)?,
    }
    out.flush()?;
    Ok(if is_positive { ExitCode::SUCCESS } else { ExitCode::from(NEGATIVE) })
}

/// Returns whether a command has something to do, or to find out, after its output has been closed.
fn has_effect_or_answer(command: &Command) -> bool {
    use Command::{Du, Export, Follow, Info, Log, Ls, Show, Stats, Tag, Tree};
    match command {
        Export(args) => !args.is_piped(),
        Tag(args) => !args.is_list(),
        Info(_) | Ls(_) | Tree(_) | Show(_) | Stats(_) | Du(_) | Log(_) | Follow(_) => false,
        _ => true,
    }
}

/// Raises the soft limit on open files to the hard limit. Every imported file, and every storage that is written or
/// exported, stays open, so a thousand of them can exceed the usual limit. If the limit cannot be raised, a command
/// that needs more files reports an error.
fn raise_open_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Catches the signal for exceeding the file size limit, which would end the process. The write then fails with an
/// error.
fn survive_file_size_limit() {
    let _ = signal_hook::flag::register(Signal::XFSZ.as_raw(), Arc::<AtomicBool>::default());
}
