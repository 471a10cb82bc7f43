//! Plain values as text: keys as Python's `f"{key}"`, and values as JSON.

use super::pickle::Literal;

/// Returns the key of a dict as part of a name, or `None` if it is not a plain value.
pub(super) fn key(literal: &Literal<'_>) -> Option<String> {
    Some(match literal {
        Literal::Text(text) => text.clone().into_owned(),
        Literal::Int(int) => int.to_string(),
        Literal::Wide(digits) => digits.clone(),
        Literal::Float(float) if float.is_nan() => "nan".to_owned(),
        Literal::Float(float) if float.is_infinite() => if *float > 0. { "inf" } else { "-inf" }.to_owned(),
        Literal::Float(float) => finite(*float),
        Literal::Bool(_) | Literal::Bytes => return None,
    })
}

/// Returns a value as an attribute: text unchanged, numbers as in Python's `json.dumps`, `None` for bytes.
pub(super) fn attribute(literal: &Literal<'_>) -> Option<String> {
    Some(match literal {
        Literal::Float(float) if float.is_nan() => "NaN".to_owned(),
        Literal::Float(float) if float.is_infinite() => {
            if *float > 0. { "Infinity" } else { "-Infinity" }.to_owned()
        }
        other => return key(other),
    })
}

/// Formats like Python's `repr`: the shortest digits that round-trip, with an exponent below 1e-4 and from 1e16.
fn finite(float: f64) -> String {
    let scientific = format!("{float:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if float == 0. || (-4..16).contains(&exponent) {
        let plain = format!("{float}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        for (float, repr) in [
            (0., "0.0"),
            (-0., "-0.0"),
            (5., "5.0"),
            (0.1, "0.1"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (9007199254740993., "9007199254740992.0"),
            (1e16, "1e+16"),
            (-1.25e100, "-1.25e+100"),
            (5e-324, "5e-324"),
        ] {
            assert_eq!(key(&Literal::Float(float)).unwrap(), repr);
            assert_eq!(attribute(&Literal::Float(float)).unwrap(), repr);
        }
        for (float, name, json) in [
            (f64::NAN, "nan", "NaN"),
            (f64::INFINITY, "inf", "Infinity"),
            (-f64::INFINITY, "-inf", "-Infinity"),
        ] {
            assert_eq!(key(&Literal::Float(float)).unwrap(), name);
            assert_eq!(attribute(&Literal::Float(float)).unwrap(), json);
        }
    }
}
