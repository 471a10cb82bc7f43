//! Results as text.

use comfy_table::{CellAlignment, Table, presets};

use crate::bench::Measured;
use crate::case::Unit;
use crate::stats::Quartiles;

/// Returns the result of a case as a table in Markdown, with its goals below.
pub(crate) fn of(case: &Measured) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header([case.name.as_str(), "median", "quartiles", "stridemap / this", "quartiles"]);
    for contender in &case.contenders {
        let Quartiles { low, median, high } = contender.measure;
        let [ratio, spread] = contender.ratio.map_or([String::new(), String::new()], |it| {
            [format!("{:.2}", it.median), format!("{:.2} to {:.2}", it.low, it.high)]
        });
        let spread_of_measure = format!("{} to {}", measure(low, case.unit), measure(high, case.unit));
        table.add_row([
            contender.label.clone(),
            measure(median, case.unit),
            spread_of_measure,
            ratio,
            spread,
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = table.to_string();
    for goal in &case.goals {
        let reached = if goal.goal.contains(" x ") {
            format!("{:.2} x", goal.reached)
        } else {
            measure(goal.reached, case.unit)
        };
        let verdict = if goal.is_met { "met" } else { "not met" };
        text.push_str(&format!("\nGoal: {}; here {reached}: {verdict}.", goal.goal));
    }
    text.push('\n');
    text
}

/// Returns a measure with its unit, in three digits or so.
pub(crate) fn measure(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Seconds => scaled(value * 1e9, &["ns", "us", "ms", "s"], 1000.),
        Unit::Bytes => scaled(value, &["B", "KiB", "MiB", "GiB"], 1024.),
        Unit::Calls => format!("{value:.2}"),
        Unit::PerSecond => format!("{value:.0}/s"),
    }
}

fn scaled(mut value: f64, names: &[&str], step: f64) -> String {
    let mut names = names.iter();
    let mut name = names.next();
    while value >= step {
        let Some(next) = names.next() else { break };
        (name, value) = (Some(next), value / step);
    }
    let digits = if value < 10. {
        2
    } else if value < 100. {
        1
    } else {
        0
    };
    format!("{value:.digits$} {}", name.unwrap_or(&""))
}
