//! Work that a process of its own does, so that it can be counted, or done by several processes at once.

use std::env::current_exe;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::{Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};
use stridemap::{Durability, Store, StoreOptions, Tensor};

use crate::Outcome;
use crate::files::{map, open_mapped};
use crate::formats::{name, touch};

#[derive(Subcommand)]
pub(crate) enum Job {
    /// Loads tensors, again and again.
    #[command(hide = true, name = "job-load")]
    Load { path: PathBuf, count: usize },
    /// Commits or appends until the time is over, and prints how long each took.
    #[command(hide = true, name = "job-write")]
    Write { kind: Kind, path: PathBuf, number: usize, begin_ms: u64, length_ms: u64, is_synced: u8 },
    /// Opens a store and loads a tensor, and holds its generation until the input ends.
    #[command(hide = true, name = "job-hold")]
    Hold { path: PathBuf },
    /// Reads a tensor or a file, and prints how much memory that takes.
    #[command(hide = true, name = "job-memory")]
    Memory { how: How, path: PathBuf },
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(crate) enum Kind {
    /// Commits views.
    Commit,
    /// Appends rows to one tensor.
    Append,
    /// Loads, commits views, and appends rows to one tensor. The appends are timed.
    Mixed,
}

/// How memory is used.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(crate) enum How {
    /// Loads the tensor "x" of a mapped store.
    Load,
    /// Maps a file.
    Map,
    /// Reads a file into memory.
    Read,
    /// Imports a file into a new store beside it.
    Import,
}

/// The memory of a process, in bytes.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Memory {
    pub(crate) anonymous: f64,
    pub(crate) pss: f64,
    pub(crate) peak: f64,
}

impl Job {
    pub(crate) fn run(&self) -> Outcome {
        match self {
            Job::Load { path, count } => {
                let store = open_mapped(path)?;
                let first = name(0);
                (0..*count).try_for_each(|_| store.load(&first).map(drop))?;
            }
            Job::Write { kind, path, number, begin_ms, length_ms, is_synced } => {
                let durability = if *is_synced == 1 { Durability::Full } else { Durability::Process };
                let store = StoreOptions::new().durability(durability).open(path)?;
                let begin = UNIX_EPOCH + Duration::from_millis(*begin_ms);
                sleep(begin.duration_since(SystemTime::now()).unwrap_or_default());
                let length = Duration::from_millis(*length_ms);
                println!("{}", serde_json::to_string(&write(*kind, &store, *number, length)?)?);
            }
            Job::Hold { path } => {
                let store = open_mapped(path)?;
                let snapshot = store.snapshot();
                let _tensor = snapshot.load(&name(0))?;
                println!();
                io::stdin().read_line(&mut String::new())?;
            }
            Job::Memory { how, path } => println!("{}", serde_json::to_string(&memory(*how, path)?)?),
        }
        Ok(())
    }
}

/// A process that holds a generation of a store. It ends on drop.
pub(crate) struct Reader(Child);

impl Reader {
    /// Returns when the process holds the generation.
    pub(crate) fn start(path: &Path) -> Outcome<Self> {
        let mut command = Command::new(current_exe()?);
        command.arg("job-hold").arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut reader = Reader(command.spawn()?);
        let mut line = String::new();
        let output = reader.0.stdout.take().ok_or("no output")?;
        match BufReader::new(output).read_line(&mut line)? {
            0 => Err("a reader failed".into()),
            _ => Ok(reader),
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Returns the duration of each commit or append in seconds.
fn write(kind: Kind, store: &Store, number: usize, length: Duration) -> Outcome<Vec<f64>> {
    let x = store.load(&name(0))?;
    let row = Tensor::from_vec(vec![number as f32; 128], &[1, 128])?;
    let (mut durations, began) = (Vec::new(), Instant::now());
    while durations.is_empty() || began.elapsed() < length {
        let (end, view) = (1 + durations.len() % 50, format!("view{number}"));
        let mut began = Instant::now();
        if kind != Kind::Append {
            store.save_view(&view, &x.slice(0, 0, end as isize, 1)?)?;
        }
        if kind == Kind::Mixed {
            store.refresh()?;
            touch(&store.load(&view)?.read()?);
            began = Instant::now();
        }
        if kind != Kind::Commit {
            store.append("log", &row)?;
        }
        durations.push(began.elapsed().as_secs_f64());
    }
    Ok(durations)
}

/// Runs writers at the same time, and returns the durations of all their commits or appends.
pub(crate) fn write_at_once(
    kind: Kind,
    path: &Path,
    writers: usize,
    length: Duration,
    is_synced: bool,
) -> Outcome<Vec<f64>> {
    // All have started by then.
    let begin =
        SystemTime::now().duration_since(UNIX_EPOCH)? + Duration::from_millis(100 + 10 * writers as u64);
    let kind = kind.to_possible_value().ok_or("no such kind")?;
    let start = |number: usize| -> Outcome<Child> {
        let mut command = Command::new(current_exe()?);
        command.arg("job-write").arg(kind.get_name()).arg(path);
        command.args(
            [number as u128, begin.as_millis(), length.as_millis(), is_synced.into()]
                .map(|it| it.to_string()),
        );
        Ok(command.stdout(Stdio::piped()).spawn()?)
    };
    let children = (0..writers).map(start).collect::<Outcome<Vec<_>>>()?;
    let mut durations = Vec::new();
    for child in children {
        durations.extend(output::<Vec<f64>>(child)?);
    }
    durations.sort_by(f64::total_cmp);
    Ok(durations)
}

fn output<T: for<'de> Deserialize<'de>>(child: Child) -> Outcome<T> {
    let output = child.wait_with_output()?;
    if !output.status.success() {
        return Err(format!("a process of the benchmark failed ({})", output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn memory(how: How, path: &Path) -> Outcome<Memory> {
    let before = status()?;
    let after = match how {
        How::Load => {
            let x = open_mapped(path)?.load("x")?;
            std::hint::black_box(touch(bytemuck::cast_slice(x.as_slice::<u64>()?)));
            status()?
        }
        How::Map => {
            let map = map(path)?;
            std::hint::black_box(touch(bytemuck::cast_slice(&map)));
            status()?
        }
        How::Read => {
            let bytes = fs::read(path)?;
            std::hint::black_box(&bytes);
            status()?
        }
        How::Import => {
            let store = Store::create(path.with_extension("imported"))?;
            stridemap_interop::import(&store, path, "")?;
            status()?
        }
    };
    Ok(Memory { anonymous: after.anonymous - before.anonymous, ..after })
}

fn status() -> Outcome<Memory> {
    let field = |file: &str, name: &str| -> Outcome<f64> {
        let text = fs::read_to_string(file)?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)).ok_or("no such line")?;
        Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? * 1024.)
    };
    Ok(Memory {
        anonymous: field("/proc/self/smaps_rollup", "Anonymous:")?,
        pss: field("/proc/self/smaps_rollup", "Pss:")?,
        peak: field("/proc/self/status", "VmHWM:")?,
    })
}

pub(crate) fn memory_of(how: How, path: &Path) -> Outcome<Memory> {
    let how = how.to_possible_value().ok_or("no such use")?;
    let mut command = Command::new(current_exe()?);
    output(command.arg("job-memory").arg(how.get_name()).arg(path).stdout(Stdio::piped()).spawn()?)
}

pub(crate) fn has_strace() -> bool {
    Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Returns the number of system calls of a process that loads a tensor `count` times.
pub(crate) fn system_calls(path: &Path, count: usize) -> Outcome<f64> {
    let output = Command::new("strace")
        .args(["-f", "-c", "-U", "calls,name"])
        .arg(current_exe()?)
        .arg("job-load")
        .arg(path)
        .arg(count.to_string())
        .output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    // The last line is the total.
    let total = text.lines().rev().find_map(|line| line.trim().trim_end_matches(" total").parse().ok());
    total.ok_or_else(|| format!("strace: {text}").into())
}
