//! RESULTS.md: the results of a run, with the machine, the versions and plots.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::Outcome;
use crate::bench::Measured;
use crate::plot::PLOTS;
use crate::{machine, table};

/// Writes RESULTS.md and the plots. NOTES.md, written by hand, is copied into it.
pub(crate) fn write(dir: &Path, results: &[Measured], setting: &str) -> Outcome {
    let mut text = format!("# Results\n\nWritten by `stridemap-bench --report`. Do not edit.\n\n{setting}\n");
    text.push_str("## Goals\n\n");
    text.push_str(&goals(results));
    if let Ok(notes) = fs::read_to_string(dir.join("NOTES.md")) {
        write!(text, "\n{}", notes.replacen("# ", "## ", 1))?;
    }
    let plots = dir.join("plots");
    fs::create_dir_all(&plots)?;
    text.push_str("\n## Plots\n");
    for plot in PLOTS {
        if plot.write(&plots, results)? {
            write!(text, "\n![{}](plots/{})\n", plot.title, plot.file)?;
        }
    }
    let mut subject = "";
    for case in results {
        let (of_case, _) = case.name.split_once('/').unwrap_or((&case.name, ""));
        if of_case != subject {
            subject = of_case;
            write!(text, "\n## {subject}\n")?;
        }
        write!(text, "\n{}", table::of(case))?;
    }
    Ok(fs::write(dir.join("RESULTS.md"), text)?)
}

/// Returns a table of all goals.
fn goals(results: &[Measured]) -> String {
    let rows = results.iter().flat_map(|case| {
        let row = |goal| {
            let (limit, reached, verdict) = table::goal(goal, case.unit);
            [case.name.clone(), limit, reached, verdict.to_owned()]
        };
        case.goals.iter().map(row)
    });
    format!("{}\n", table::markdown(["case", "goal", "here", ""].map(str::to_owned), rows))
}

/// Returns the machine, the date and the versions of everything that ran, as Markdown.
pub(crate) fn setting(
    is_quick: bool,
    load: &str,
    python: impl IntoIterator<Item = (String, String)>,
) -> Outcome<String> {
    let mut text = String::new();
    if is_quick {
        text.push_str("A quick run: smaller data, and fewer rounds.\n\n");
    }
    for (what, value) in machine::describe(load)? {
        writeln!(text, "- {what}: {value}")?;
    }
    let peers =
        ["safetensors", "memmap2", "ztensor", "ndarray-npy", "zarrs", "hdf5-metno", "heed", "candle-core"];
    let versions = peers.iter().filter_map(|name| Some((name.to_string(), machine::locked_version(name)?)));
    let versions: Vec<String> =
        versions.chain(python).map(|(name, version)| format!("{name} {version}")).collect();
    writeln!(text, "- beside it: {}", versions.join(", "))?;
    text.push_str(
        "\nA measure is the median over the rounds, with its quartiles. In every round each contender runs once. The \
         ratio is\nthe measure of stridemap divided by that of the contender, in the same round: below 1, stridemap \
         is faster.\n",
    );
    Ok(text)
}
