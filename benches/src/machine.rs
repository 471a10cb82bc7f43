//! The machine that the measures are from, and the versions of the libraries.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::{Outcome, processors};

/// Fails if the directory is in memory, where files are faster than on any disk.
pub(crate) fn check_disk(dir: &Path) -> Outcome {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    let kind = rustix::fs::statfs(dir)?.f_type as u64;
    if [TMPFS, RAMFS].contains(&kind) {
        return Err(
            format!("{} is in memory, not on a disk: choose another with --dir", dir.display()).into()
        );
    }
    Ok(())
}

/// Returns the load of the machine over the last minute, and over the last five.
pub(crate) fn load() -> Outcome<String> {
    let text = fs::read_to_string("/proc/loadavg")?;
    Ok(text.split(' ').take(2).collect::<Vec<_>>().join(", "))
}

/// Returns facts about the machine and the build. `load` is that of the start of the run.
pub(crate) fn describe(load: &str) -> Outcome<Vec<(&'static str, String)>> {
    let processor = field("/proc/cpuinfo", "model name")?;
    let memory: f64 = field("/proc/meminfo", "MemTotal")?.trim_end_matches(" kB").parse()?;
    let kernel = rustix::system::uname();
    Ok(vec![
        ("date", jiff::Zoned::now().date().to_string()),
        ("processors", format!("{} of {processor}", processors::count())),
        ("memory", format!("{:.0} GiB", memory / 1024. / 1024.)),
        ("system", format!("{} {}", kernel.sysname().to_string_lossy(), kernel.release().to_string_lossy())),
        ("load average before", load.to_owned()),
        ("stridemap", format!("{} at {}", env!("CARGO_PKG_VERSION"), commit())),
        ("compiler", output("rustc", &["--version"])),
    ])
}

fn field(file: &str, name: &str) -> Outcome<String> {
    let text = fs::read_to_string(file)?;
    let line = text.lines().find(|line| line.starts_with(name)).ok_or("no such line")?;
    Ok(line.split_once(':').map_or("", |(_, value)| value).trim().to_owned())
}

fn commit() -> String {
    output("git", &["describe", "--always", "--dirty"])
}

/// Returns the output of a program, or "unknown".
fn output(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let text = output.map(|it| String::from_utf8_lossy(&it.stdout).trim().to_owned()).unwrap_or_default();
    if text.is_empty() { "unknown".to_owned() } else { text }
}

/// Returns the version of a package in Cargo.lock.
pub(crate) fn locked_version(package: &str) -> Option<String> {
    let lock = include_str!("../../Cargo.lock");
    let (_, rest) = lock.split_once(&format!("name = \"{package}\"\nversion = \""))?;
    Some(rest.split_once('"')?.0.to_owned())
}

/// Returns the number of page faults of this process that needed no read from a disk.
pub(crate) fn page_faults() -> Outcome<f64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The name of the program, in parentheses, can contain spaces.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    Ok(fields.split_whitespace().nth(7).ok_or("/proc/self/stat is too short")?.parse()?)
}
