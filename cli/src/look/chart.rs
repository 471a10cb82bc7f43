//! Numbers and histograms as text.

use anstyle::{AnsiColor, Style};
use indicatif::HumanCount;

use crate::proportion::part_of;
use crate::ui::paint;

/// The number of significant digits to round to.
const DIGITS: i32 = 5;

/// Formats a number with up to five significant digits, or as an integer if its integer part has more digits. Very
/// large and very small numbers have up to five digits and an exponent, as in `1.2346e-12`.
pub(crate) fn short(number: f64) -> String {
    if !number.is_finite() || number == 0. {
        return format!("{number}");
    }
    // Formatting rounds, so 9.99999 has the exponent of 10.
    let scientific = format!("{number:.*e}", DIGITS as usize - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..9).contains(&exponent) {
        let decimals = (DIGITS - 1 - exponent).max(0) as usize;
        trimmed(&format!("{number:.decimals$}")).to_owned()
    } else {
        format!("{}e{exponent}", trimmed(mantissa))
    }
}

fn trimmed(number: &str) -> &str {
    if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number }
}

/// The color of bars.
const BAR: Style = AnsiColor::Blue.on_default();

/// Returns a histogram as one character for each bin. Bins without elements are blank.
pub(crate) fn sparkline(counts: &[u64]) -> String {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = counts.iter().copied().max().unwrap_or_default().max(1);
    let level = |count: u64| match count {
        0 => ' ',
        _ => LEVELS.get(part_of(count - 1, most, LEVELS.len())).copied().unwrap_or_default(),
    };
    counts.iter().map(|&count| level(count)).collect()
}

/// Returns a line for each bin of a histogram: its lower edge, its count and a bar. The last line is the maximum, unless
/// all elements are equal. The lines fit the width, unless the numbers do not.
pub(crate) fn bars(counts: &[u64], (min, max): (f64, f64), width: usize) -> Vec<String> {
    let is_constant = min == max;
    // If all elements are equal, they are in the last bin.
    let counts = if is_constant { counts.last().map_or(counts, std::slice::from_ref) } else { counts };
    let edge = |bin: usize| {
        let part = bin as f64 / counts.len() as f64;
        short(min * (1. - part) + max * part)
    };
    let labels: Vec<String> = (0..counts.len()).map(edge).collect();
    let numbers: Vec<String> = counts.iter().map(|&count| HumanCount(count).to_string()).collect();
    let longest = |texts: &[String]| texts.iter().map(String::len).max().unwrap_or_default();
    let (label_width, number_width) = (longest(&labels), longest(&numbers));
    let room = width.saturating_sub(label_width + number_width + 4).clamp(1, 60);
    let most = counts.iter().copied().max().unwrap_or_default().max(1);
    let line = |((label, number), &count): ((&String, &String), &u64)| {
        let bar = bar(count as f64 / most as f64 * room as f64);
        let bar = if bar.is_empty() { bar } else { format!("  {}", paint(BAR, &bar)) };
        format!("{label:>label_width$}  {number:>number_width$}{bar}")
    };
    let last = (!is_constant).then(|| format!("{:>label_width$}", short(max)));
    labels.iter().zip(&numbers).zip(counts).map(line).chain(last).collect()
}

/// Returns a bar of this length in characters, rounded to eighths. A bar of positive length is never empty.
fn bar(length: f64) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = if length > 0. { (length * 8.).round().max(1.) as usize } else { 0 };
    "█".repeat(eighths / 8) + PARTS.get(eighths % 8).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_five_digits_and_an_exponent_if_they_are_very_large_or_small() {
        for (number, text) in [
            (0., "0"),
            (1., "1"),
            (-0.5, "-0.5"),
            (1.0 / 3.0, "0.33333"),
            (123_456.7, "123457"),
            (999_999.96, "1000000"),
            (0.00012345678, "0.00012346"),
            (0.000_012_5, "1.25e-5"),
            (-1.5e300, "-1.5e300"),
            (1e9, "1e9"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(short(number), text);
        }
    }

    #[test]
    fn sparkline_shows_rare_elements_and_leaves_empty_bins_blank() {
        assert_eq!(sparkline(&[0, 1, 500, 1000]), " ▁▄█");
        assert_eq!(sparkline(&[0, 0]), "  ");
        assert_eq!(sparkline(&[1 << 53, u64::MAX, (1 << 54) + 1]), "▁█▁");
        assert_eq!(sparkline(&[1 << 54]), "█");
    }

    #[test]
    fn bars_are_in_proportion() {
        let lines = bars(&[1000, 250, 0, 1], (-1., 1.), 80);
        let lengths: Vec<usize> = lines.iter().map(|line| line.matches('█').count()).collect();
        assert_eq!(lengths, [60, 15, 0, 0, 0]);
        assert_eq!(lines[3], " 0.5      1  ▏");
        let narrow = bars(&[1000, 250, 0, 1], (-1., 1.), 30);
        assert_eq!(narrow.iter().map(|line| line.chars().count()).max(), Some(30));
    }
}
