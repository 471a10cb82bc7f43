//! Times and durations.

use std::time::{Duration, SystemTime};

use jiff::tz::TimeZone;
use jiff::{Span, SpanRelativeTo, Timestamp};

use crate::ui::width;

/// Formats a time in a fixed form: in UTC, with nanoseconds, as in RFC 3339.
pub(crate) fn utc(time: SystemTime) -> String {
    format!("{:.9}", timestamp(time))
}

/// Formats a time: for people on a terminal, in their time zone, and in the fixed form in a pipe.
pub(crate) fn time_cell(time: SystemTime) -> String {
    match width() {
        Some(_) => timestamp(time).to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string(),
        None => utc(time),
    }
}

/// Every time in a manifest fits.
fn timestamp(time: SystemTime) -> Timestamp {
    Timestamp::try_from(time).unwrap_or_default()
}

/// Parses a duration: 90m, 12h, 7d, "1 week", or 0, which needs no unit.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let expected = |_| "expected a number with a unit, up to weeks: 90m, 12h, 7d, 2w".to_owned();
    let span: Span = text.parse().map_err(expected)?;
    let duration = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(expected)?;
    Duration::try_from(duration).map_err(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_up_to_weeks() {
        for (text, hours) in [("7d", 168), ("12h", 12), ("1 week", 168), ("2w 1h", 337), ("1d12h", 36)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs(hours * 3600)), "{text}");
        }
        assert_eq!(parse_duration("0"), Ok(Duration::ZERO));
        for text in ["", "7", "d", "-1d", "1 month", "1y", "7 x"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn fixed_form_of_a_time_is_utc_with_nanoseconds() {
        let time = SystemTime::UNIX_EPOCH + Duration::new(1_750_000_000, 5_000_000);
        assert_eq!(utc(time), "2025-06-15T15:06:40.005000000Z");
        assert_eq!(utc(SystemTime::UNIX_EPOCH), "1970-01-01T00:00:00.000000000Z");
    }
}
