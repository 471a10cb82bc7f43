//! Results as tables in Markdown.

use comfy_table::{CellAlignment, Table, presets};

use crate::bench::{Measured, MeasuredGoal};
use crate::case::Unit;
use crate::stats::Quartiles;

/// Returns the result of a case, with its goals below.
pub(crate) fn of(case: &Measured) -> String {
    let spread = |it: Quartiles, text: &dyn Fn(f64) -> String| {
        [text(it.median), format!("{} to {}", text(it.low), text(it.high))]
    };
    let rows = case.contenders.iter().map(|contender| {
        let [median, quartiles] = spread(contender.measure, &|value| measure(value, case.unit));
        let [ratio, ratios] = contender.ratio.map_or([const { String::new() }; 2], |it| spread(it, &ratio));
        [contender.label.clone(), median, quartiles, ratio, ratios]
    });
    let header = [&case.name, "median", "quartiles", "ratio", "quartiles"].map(str::to_owned);
    let mut text = match case.contenders.iter().any(|contender| contender.ratio.is_some()) {
        true => markdown(header, rows),
        false => markdown(first_three(header), rows.map(first_three)),
    };
    for it in &case.goals {
        let (limit, reached, verdict) = goal(it, case.unit);
        text.push_str(&format!("\n\nGoal: {limit}. Here: {reached}, {verdict}."));
    }
    text.push('\n');
    text
}

fn first_three([a, b, c, _, _]: [String; 5]) -> [String; 3] {
    [a, b, c]
}

/// Returns the limit, the measure or ratio that was reached, and whether it is within the limit.
pub(crate) fn goal(goal: &MeasuredGoal, unit: Unit) -> (String, String, &'static str) {
    let verdict = if goal.is_met { "met" } else { "not met" };
    match &goal.times {
        Some(peer) => {
            (format!("at most {} x {peer}", goal.most), format!("{} x", ratio(goal.reached)), verdict)
        }
        None => (format!("at most {}", measure(goal.most, unit)), measure(goal.reached, unit), verdict),
    }
}

pub(crate) fn markdown<const N: usize>(
    header: [String; N],
    rows: impl Iterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(header).add_rows(rows);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
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

fn ratio(value: f64) -> String {
    if value < 0.095 { format!("{value:.4}") } else { format!("{value:.2}") }
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
