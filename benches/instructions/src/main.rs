//! Counts the instructions of the main paths with valgrind, and compares them with those in instructions.txt.
//!
//! Counts hardly depend on the load of the machine, so this finds a slower path where durations cannot.

mod paths;

use std::collections::BTreeMap;
use std::env::current_exe;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;

use clap::Parser;
use paths::PATHS;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// The greatest allowed ratio of a count to the kept count. Processors differ in the copying code that libc selects.
const MAX_RATIO: f64 = 1.5;
const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../instructions.txt");

/// Counts the instructions of the main paths, and fails if one needs over 1.5 times those in instructions.txt.
#[derive(Parser)]
struct Args {
    /// Write the counts to instructions.txt instead.
    #[arg(long)]
    write: bool,
    /// Run one path this often. Used by the program itself.
    #[arg(long, hide = true, num_args = 2, value_names = ["PATH", "TIMES"])]
    run: Option<Vec<String>>,
}

fn main() -> Outcome {
    let args = Args::parse();
    if let Some([name, times]) = args.run.as_deref() {
        let (_, run) = PATHS.iter().find(|(path, _)| path == name).ok_or("no such path")?;
        let dir = tempfile::tempdir()?;
        return run(dir.path(), times.parse()?);
    }
    let kept = read(Path::new(KEPT))?;
    let mut counts = String::new();
    let mut slower = Vec::new();
    for (name, _) in PATHS {
        let count = count(name, 2)? - count(name, 1)?;
        counts.push_str(&format!("{name}\t{count}\n"));
        let change = kept.get(*name).map(|&kept| count as f64 / kept as f64);
        let beside = change.map_or("new".to_owned(), |change| format!("{change:.3} x the kept count"));
        println!("{name:30} {count:>12}  {beside}");
        if !args.write && change.is_none_or(|change| change > MAX_RATIO) {
            slower.push(*name);
        }
    }
    if args.write {
        fs::write(KEPT, counts)?;
    }
    if slower.is_empty() {
        return Ok(());
    }
    let slower = slower.join(", ");
    Err(format!(
        "more instructions than instructions.txt allows: {slower}. Profile them, or accept them with --write"
    )
    .into())
}

/// Returns the instructions of a process that runs a path `times` times. What comes before and after, and what only
/// the first time needs, is part of them.
fn count(name: &str, times: u64) -> Outcome<i64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(current_exe()?)
        .args(["--run", name, &times.to_string()])
        .output()
        .map_err(|e| format!("start valgrind: {e}; install it"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let collected = text.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    match collected {
        Some(count) if output.status.success() => Ok(count),
        _ => Err(format!("{name}: {text}").into()),
    }
}

fn read(path: &Path) -> Outcome<BTreeMap<String, i64>> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let entries = text.lines().filter_map(|line| line.split_once('\t'));
    entries.map(|(name, count)| Ok((name.to_owned(), count.parse()?))).collect()
}
