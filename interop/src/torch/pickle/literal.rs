//! Numbers and text in a pickle. They stay in the pickle and are decoded on demand.

use std::borrow::Cow;

use super::instruction::{Instruction, code};

/// The bytes of the widest integer used in arithmetic.
const MAX_INTEGER_BYTES: usize = 16;

/// The bytes of the widest integer read as text, such as the state of a random generator. Python encodes longer ones
/// differently.
const MAX_WIDE_BYTES: usize = 255;

/// The most digits of a number. Python writes no number with more. A longer one would be parsed again on every access.
const MAX_DIGITS: usize = 400;

/// A value that an instruction carries in its argument.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) enum Literal<'a> {
    Bool(bool),
    Int(i128),
    /// A wider integer, as its digits.
    Wide(String),
    Float(f64),
    Text(Cow<'a, str>),
    Bytes,
}

/// Returns the value of an instruction, or `None` if it carries none.
pub(super) fn literal<'a>(instruction: &Instruction<'a>) -> Result<Option<Literal<'a>>, String> {
    let argument = instruction.argument;
    let unsigned = || argument.iter().rev().fold(0i128, |high, &byte| high << 8 | i128::from(byte));
    Ok(Some(match instruction.code {
        code::BININT1 | code::BININT2 => Literal::Int(unsigned()),
        code::BININT | code::LONG1 | code::LONG4 => twos_complement(argument)?,
        code::INT if argument == b"00" => Literal::Bool(false),
        code::INT if argument == b"01" => Literal::Bool(true),
        code::INT | code::LONG => Literal::Int(decimal(argument)?),
        code::FLOAT => Literal::Float(number_text(argument)?),
        code::BINFLOAT => {
            let bytes = argument.try_into().map_err(|_| "a float of 8 bytes is truncated")?;
            Literal::Float(f64::from_be_bytes(bytes))
        }
        code::BINUNICODE | code::SHORT_BINUNICODE | code::BINUNICODE8 => Literal::Text(
            std::str::from_utf8(argument).map_err(|e| format!("text that is not UTF-8: {e}"))?.into(),
        ),
        // From Python 2, where bytes and text were one type.
        code::BINSTRING | code::SHORT_BINSTRING => Literal::Text(utf8_or_latin1(Cow::Borrowed(argument))),
        code::STRING => Literal::Text(utf8_or_latin1(Cow::Owned(quoted(argument)?))),
        code::UNICODE => Literal::Text(escaped_unicode(argument)?.into()),
        code::BINBYTES | code::SHORT_BINBYTES | code::BINBYTES8 | code::BYTEARRAY8 => Literal::Bytes,
        _ => return Ok(None),
    }))
}

fn twos_complement(bytes: &[u8]) -> Result<Literal<'static>, String> {
    let is_negative = bytes.last().is_some_and(|&byte| byte >= 0x80);
    if bytes.len() > MAX_WIDE_BYTES {
        return Err(format!(
            "an integer of {} bytes; at most {MAX_WIDE_BYTES} can be read; save it as text",
            bytes.len()
        ));
    }
    if bytes.len() > MAX_INTEGER_BYTES {
        return Ok(Literal::Wide(digits(bytes, is_negative)));
    }
    let mut wide = if is_negative { [0xff; MAX_INTEGER_BYTES] } else { [0; MAX_INTEGER_BYTES] };
    wide.iter_mut().zip(bytes).for_each(|(place, &byte)| *place = byte);
    Ok(Literal::Int(i128::from_le_bytes(wide)))
}

/// Returns an integer of any width in decimal.
fn digits(bytes: &[u8], is_negative: bool) -> String {
    /// Nine digits at a time.
    const BASE: u64 = 1_000_000_000;
    let mut nines: Vec<u64> = Vec::new();
    let mut step = |factor: u64, mut carry: u64| {
        for nine in &mut nines {
            let sum = nine.saturating_mul(factor).saturating_add(carry);
            (*nine, carry) = (sum % BASE, sum / BASE);
        }
        if carry > 0 {
            nines.push(carry);
        }
    };
    // A negative number is the inverse of all bits, plus one.
    let flip = if is_negative { 0xff } else { 0 };
    bytes.iter().rev().for_each(|&byte| step(256, u64::from(byte ^ flip)));
    step(1, u64::from(is_negative));
    let sign = if is_negative { "-" } else { "" };
    let mut nines = nines.iter().rev();
    let first = nines.next().copied().unwrap_or(0);
    nines.fold(format!("{sign}{first}"), |text, nine| text + &format!("{nine:09}"))
}

fn decimal(digits: &[u8]) -> Result<i128, String> {
    let digits = digits.strip_suffix(b"L").unwrap_or(digits);
    let parsed = digits_of(digits).and_then(|digits| digits.parse().ok());
    parsed.ok_or_else(|| {
        format!("{:?} is not an integer of {MAX_INTEGER_BYTES} bytes", String::from_utf8_lossy(digits))
    })
}

fn number_text(text: &[u8]) -> Result<f64, String> {
    let parsed = digits_of(text).and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| format!("{:?} is not a number", String::from_utf8_lossy(text)))
}

fn digits_of(line: &[u8]) -> Option<&str> {
    std::str::from_utf8(line).ok().filter(|digits| digits.len() <= MAX_DIGITS)
}

fn utf8_or_latin1(bytes: Cow<'_, [u8]>) -> Cow<'_, str> {
    match bytes {
        Cow::Borrowed(bytes) => {
            std::str::from_utf8(bytes).map_or_else(|_| latin1(bytes).into(), Cow::Borrowed)
        }
        Cow::Owned(bytes) => String::from_utf8(bytes).unwrap_or_else(|e| latin1(e.as_bytes())).into(),
    }
}

fn latin1(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| char::from(byte)).collect()
}

/// Returns the bytes of a Python 2 string literal, given with its quotes.
fn quoted(literal: &[u8]) -> Result<Vec<u8>, String> {
    let wrong = || format!("{:?} is not a Python string literal", String::from_utf8_lossy(literal));
    let (&quote, inner) =
        literal.split_first().filter(|&(&quote, _)| matches!(quote, b'\'' | b'"')).ok_or_else(wrong)?;
    let inner = inner.strip_suffix(&[quote]).ok_or_else(wrong)?;
    let mut bytes = Vec::with_capacity(inner.len());
    let mut rest = inner.iter().copied();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let simple = match rest.next().ok_or_else(wrong)? {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'a' => 0x07,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'v' => 0x0b,
            b'x' => hexadecimal(&mut rest, 2).and_then(|code| u8::try_from(code).ok()).ok_or_else(wrong)?,
            known @ (b'\\' | b'\'' | b'"') => known,
            // Octal escapes, which no pickler has written.
            _ => return Err(wrong()),
        };
        bytes.push(simple);
    }
    Ok(bytes)
}

/// Decodes Latin-1 with `\uXXXX` and `\UXXXXXXXX` escapes for other characters.
fn escaped_unicode(literal: &[u8]) -> Result<String, String> {
    let mut text = String::with_capacity(literal.len());
    let mut rest = literal.iter().copied().peekable();
    while let Some(byte) = rest.next() {
        let digits = match (byte, rest.peek()) {
            (b'\\', Some(b'u')) => 4,
            (b'\\', Some(b'U')) => 8,
            _ => {
                text.push(char::from(byte));
                continue;
            }
        };
        rest.next();
        let character = hexadecimal(&mut rest, digits).and_then(char::from_u32);
        text.push(character.ok_or_else(|| {
            format!("{:?} has an escape that is not a character", String::from_utf8_lossy(literal))
        })?);
    }
    Ok(text)
}

fn hexadecimal(digits: &mut impl Iterator<Item = u8>, count: usize) -> Option<u32> {
    (0..count).try_fold(0u32, |high, _| Some(high << 4 | char::from(digits.next()?).to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pickle: &[u8]) -> Result<Option<Literal<'_>>, String> {
        literal(&Instruction::read(pickle, 0, pickle.len()).unwrap())
    }

    #[test]
    fn every_way_to_write_a_number_is_read() {
        for (pickle, number) in [
            (&b"K\xff"[..], 255),
            (b"M\xff\xff", 65535),
            (b"J\xff\xff\xff\xff", -1),
            (b"I-12\n", -12),
            (b"L170141183460469231731687303715884105727L\n", i128::MAX),
            (b"\x8a\x00", 0),
            (b"\x8a\x01\x80", -128),
            (b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00", u64::MAX.into()),
            (b"\x8b\x02\x00\x00\x00\x00\x80", -32768),
        ] {
            assert_eq!(read(pickle), Ok(Some(Literal::Int(number))), "{pickle:?}");
        }
        assert_eq!(read(b"G\x3f\xe0\0\0\0\0\0\0"), Ok(Some(Literal::Float(0.5))));
        assert_eq!(read(b"F-1e-3\n"), Ok(Some(Literal::Float(-1e-3))));
        assert_eq!(read(b"I01\n"), Ok(Some(Literal::Bool(true))));
        assert_eq!(read(b"N"), Ok(None));
        for wrong in [&b"I\n"[..], b"F.\n", b"L1x\n", b"I170141183460469231731687303715884105728\n"] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
        for (bytes, digits) in [
            // 2^128, 2^135 - 1 and their negatives, as Python prints them, and zero with more bytes than it needs.
            ([&[0; 16][..], &[1]].concat(), "340282366920938463463374607431768211456"),
            ([&[0xff; 16][..], &[0x7f]].concat(), "43556142965880123323311949751266331066367"),
            ([&[0; 16][..], &[0xff]].concat(), "-340282366920938463463374607431768211456"),
            ([&[1][..], &[0; 15], &[0x80]].concat(), "-43556142965880123323311949751266331066367"),
            (vec![0; 17], "0"),
        ] {
            let pickle = [&[0x8a, 17], &bytes[..]].concat();
            assert_eq!(read(&pickle), Ok(Some(Literal::Wide(digits.to_owned()))));
        }
        let wide = [&b"\x8b\x00\x01\0\0"[..], &[1; 256]].concat();
        assert_eq!(
            read(&wide),
            Err("an integer of 256 bytes; at most 255 can be read; save it as text".to_owned())
        );
    }

    #[test]
    fn every_way_to_write_text_is_read() {
        for (pickle, text) in [
            (&b"X\x03\0\0\0a\xc3\xa9"[..], "aé"),
            (b"\x8c\x03a\xc3\xa9", "aé"),
            (b"\x8d\x01\0\0\0\0\0\0\0.", "."),
            (b"U\x03a\xc3\xa9", "aé"),
            (b"T\x02\0\0\0a\xe9", "aé"),
            (b"S'a\\xe9\\n\\'\"'\n", "aé\n'\""),
            (b"S\"it's\"\n", "it's"),
            (b"V\xe9\\u20ac\\U0001f600\\\n", "é€😀\\"),
        ] {
            assert_eq!(read(pickle), Ok(Some(Literal::Text(text.into()))), "{pickle:?}");
        }
        for wrong in [
            &b"X\x01\0\0\0\xe9"[..],
            b"S'a\n",
            b"Sa\n",
            b"S'\n",
            b"S'\\x4'\n",
            b"S'\\7'\n",
            b"V\\ud800\n",
            b"V\\u12\n",
        ] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn bytes_are_known_as_bytes() {
        for bytes in [&b"C\x01a"[..], b"B\x01\0\0\0a", b"\x8e\x01\0\0\0\0\0\0\0a", b"\x96\0\0\0\0\0\0\0\0"] {
            assert_eq!(read(bytes), Ok(Some(Literal::Bytes)));
        }
    }
}
