//! Values of the metadata, as the texts of attributes and as bytes of a file.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::fmt::Write as _;

use serde_json::value::RawValue;

use super::types::{Shape, ValueType};

/// What an attribute begins with that is JSON and not a text.
pub(super) const JSON: &str = "json:";

/// The types that a value without a stated type can have. The first that can hold it is used.
const ASSUMED: [ValueType; 8] = [
    ValueType::Bool,
    ValueType::Text,
    ValueType::U32,
    ValueType::I32,
    ValueType::U64,
    ValueType::I64,
    ValueType::F32,
    ValueType::F64,
];

/// Returns a value of the metadata as an attribute. The bytes are those in the file: of the value, or of all values of an
/// array.
pub(super) fn to_attribute(shape: Shape, bytes: &[u8]) -> Result<String, String> {
    let mut text = JSON.to_owned();
    match shape {
        Shape::One(of) => drop(push_json(&mut text, of, bytes)?),
        Shape::List(of) => {
            text.push('[');
            let mut rest = bytes;
            while !rest.is_empty() {
                if rest.len() < bytes.len() {
                    text.push(',');
                }
                rest = push_json(&mut text, of, rest)?;
            }
            text.push(']');
        }
    }
    Ok(text)
}

/// Appends the first value of `bytes` as JSON. Returns the other bytes.
fn push_json<'b>(text: &mut String, of: ValueType, bytes: &'b [u8]) -> Result<&'b [u8], String> {
    macro_rules! number {
        ($type:ty) => {{
            let (first, rest) = bytes.split_first_chunk().ok_or("a value is truncated")?;
            (<$type>::from_le_bytes(*first), rest)
        }};
    }
    macro_rules! whole {
        ($type:ty) => {{
            let (number, rest) = number!($type);
            write!(text, "{number}").map_err(|e| e.to_string())?;
            rest
        }};
    }
    Ok(match of {
        ValueType::U8 => whole!(u8),
        ValueType::I8 => whole!(i8),
        ValueType::U16 => whole!(u16),
        ValueType::I16 => whole!(i16),
        ValueType::U32 => whole!(u32),
        ValueType::I32 => whole!(i32),
        ValueType::U64 => whole!(u64),
        ValueType::I64 => whole!(i64),
        ValueType::F32 => {
            let (number, rest) = number!(f32);
            // The shortest text from which a float32 is read back to the bit.
            push_float(text, format_args!("{number:?}"), f64::from(number));
            rest
        }
        ValueType::F64 => {
            let (number, rest) = number!(f64);
            push_float(text, format_args!("{number:?}"), number);
            rest
        }
        ValueType::Bool => {
            let (number, rest) = number!(u8);
            text.push_str(match number {
                0 => "false",
                1 => "true",
                _ => return Err(format!("a bool is {number}, which is neither 0 nor 1")),
            });
            rest
        }
        ValueType::Text => {
            let (length, rest) = number!(u64);
            let length = usize::try_from(length).ok().filter(|&length| length <= rest.len());
            let (value, rest) = rest.split_at(length.ok_or("a text is truncated")?);
            let value = str::from_utf8(value).map_err(|_| "a text is not UTF-8")?;
            text.push_str(&serde_json::to_string(value).map_err(|e| e.to_string())?);
            rest
        }
        ValueType::Array => return Err("an array of arrays".to_owned()),
    })
}

/// Appends a float. JSON has no numbers that are not finite.
fn push_float(text: &mut String, number: std::fmt::Arguments<'_>, value: f64) {
    let sign = if value.is_sign_negative() { "-" } else { "" };
    let written = match value {
        _ if value.is_nan() => write!(text, "\"{sign}nan\""),
        _ if value.is_infinite() => write!(text, "\"{sign}inf\""),
        _ => text.write_fmt(number),
    };
    debug_assert!(written.is_ok(), "writing to a text does not fail");
}

/// An attribute as a value of a file.
pub(super) struct Encoded {
    pub(super) shape: Shape,
    /// The number of values, which is 1 unless it is an array.
    pub(super) count: usize,
    /// The bytes of the value, or of all values of an array.
    pub(super) bytes: Vec<u8>,
}

impl Encoded {
    /// Converts an attribute. It has the stated type, or if that cannot hold it, the first that can. JSON that GGUF does
    /// not have, such as an object, is a text with its mark.
    pub(super) fn of(attribute: &str, stated: Option<Shape>) -> Self {
        let json = attribute.strip_prefix(JSON).filter(|_| stated != Some(Shape::One(ValueType::Text)));
        json.and_then(|json| Encoded::of_json(json, stated)).unwrap_or_else(|| {
            let mut bytes = Vec::new();
            push_text(&mut bytes, attribute);
            Encoded { shape: Shape::One(ValueType::Text), count: 1, bytes }
        })
    }

    fn of_json(json: &str, stated: Option<Shape>) -> Option<Self> {
        let json = json.trim();
        if !json.starts_with('[') {
            let stated = stated.and_then(|stated| match stated {
                Shape::One(of) => Some(of),
                Shape::List(_) => None,
            });
            let (of, bytes) = stated.into_iter().chain(ASSUMED).find_map(|of| encode(of, [json]))?;
            return Some(Encoded { shape: Shape::One(of), count: 1, bytes });
        }
        let items: Vec<&RawValue> = serde_json::from_str(json).ok()?;
        let stated = stated.and_then(|stated| match stated {
            Shape::List(of) => Some(of),
            Shape::One(_) => None,
        });
        let assumed = ASSUMED.into_iter().filter(|&of| !items.is_empty() || of == ValueType::Text);
        let texts = || items.iter().map(|item| item.get());
        let (of, bytes) = stated.into_iter().chain(assumed).find_map(|of| encode(of, texts()))?;
        Some(Encoded { shape: Shape::List(of), count: items.len(), bytes })
    }
}

/// Returns values of JSON as values of a type, if all of them can be that.
fn encode<'t>(of: ValueType, values: impl IntoIterator<Item = &'t str>) -> Option<(ValueType, Vec<u8>)> {
    let mut bytes = Vec::new();
    values.into_iter().try_for_each(|value| push_value(&mut bytes, of, value))?;
    Some((of, bytes))
}

fn push_value(bytes: &mut Vec<u8>, of: ValueType, json: &str) -> Option<()> {
    macro_rules! number {
        ($type:ty) => {
            bytes.extend(json.parse::<$type>().ok()?.to_le_bytes())
        };
    }
    macro_rules! float {
        ($type:ty) => {{
            let special = json.strip_prefix('"').and_then(|json| json.strip_suffix('"'));
            let number = special.unwrap_or(json).parse::<$type>().ok()?;
            // "inf" is in quotes, and 1e999 is too large.
            (number.is_finite() == special.is_none()).then(|| bytes.extend(number.to_le_bytes()))?;
        }};
    }
    match of {
        ValueType::U8 => number!(u8),
        ValueType::I8 => number!(i8),
        ValueType::U16 => number!(u16),
        ValueType::I16 => number!(i16),
        ValueType::U32 => number!(u32),
        ValueType::I32 => number!(i32),
        ValueType::U64 => number!(u64),
        ValueType::I64 => number!(i64),
        ValueType::F32 => float!(f32),
        ValueType::F64 => float!(f64),
        ValueType::Bool => bytes.push(u8::from(json.parse::<bool>().ok()?)),
        ValueType::Text => push_text(bytes, &serde_json::from_str::<String>(json).ok()?),
        ValueType::Array => return None,
    }
    Some(())
}

/// Appends a text after its length.
pub(super) fn push_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// Returns the number of values in the bytes of an array, or `None` if they are not whole values.
pub(super) fn count_values(of: ValueType, bytes: &[u8]) -> Option<u64> {
    if let Some(size_bytes) = of.size_bytes() {
        let count = bytes.len().checked_div(size_bytes)?;
        return (count.checked_mul(size_bytes)? == bytes.len()).then_some(count as u64);
    }
    let (mut count, mut rest) = (0u64, bytes);
    while !rest.is_empty() {
        rest = after_value(of, rest)?;
        count = count.checked_add(1)?;
    }
    Some(count)
}

/// Returns the bytes after the first value of an array of texts or of arrays.
fn after_value(of: ValueType, bytes: &[u8]) -> Option<&[u8]> {
    if of == ValueType::Array {
        let (code, rest) = bytes.split_first_chunk()?;
        let (count, mut rest) = rest.split_first_chunk()?;
        let of = ValueType::of_code(u32::from_le_bytes(*code))?;
        let count = u64::from_le_bytes(*count);
        if let Some(size_bytes) = of.size_bytes() {
            return rest.get(usize::try_from(count).ok()?.checked_mul(size_bytes)?..);
        }
        if of == ValueType::Array {
            return None;
        }
        for _ in 0..count {
            rest = after_value(of, rest)?;
        }
        return Some(rest);
    }
    let (length, rest) = bytes.split_first_chunk()?;
    rest.get(usize::try_from(u64::from_le_bytes(*length)).ok()?..)
}
