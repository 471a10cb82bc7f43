//! Numbers and text in a pickle, and how they are written as names and attributes. They stay in the pickle and are
//! decoded on demand.

use std::borrow::Cow;

use super::instruction::{Instruction, code, unsigned};

/// The maximum length of an integer used in arithmetic.
const MAX_INTEGER_BYTES: usize = 16;

/// The maximum length of an integer read as text, such as the state of a random generator. Python encodes a longer
/// integer differently.
const MAX_WIDE_BYTES: usize = 255;

/// The maximum number of digits of a number written as text. No number that can be read needs more digits, and a long
/// text would be parsed again on every access.
const MAX_DIGITS: usize = 400;

/// A value that an instruction carries in its argument.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Literal<'a> {
    Bool(bool),
    Int(i128),
    /// A wider integer, as its digits.
    Wide(String),
    Float(f64),
    Text(Cow<'a, str>),
    Bytes(&'a [u8]),
}

impl<'a> Literal<'a> {
    /// Returns the value of an instruction, or `None` if it carries none.
    pub(super) fn of(instruction: &Instruction<'a>) -> Result<Option<Self>, String> {
        let argument = instruction.argument;
        let refused = |why: &str| format!("{:?} {why}", String::from_utf8_lossy(argument));
        Ok(Some(match instruction.code {
            code::BININT1 | code::BININT2 => Literal::Int(unsigned(argument).into()),
            code::BININT | code::LONG1 | code::LONG4 => twos_complement(argument)?,
            code::INT if argument == b"00" => Literal::Bool(false),
            code::INT if argument == b"01" => Literal::Bool(true),
            code::INT | code::LONG => {
                let digits = argument.strip_suffix(b"L").unwrap_or(argument);
                Literal::Int(number(digits).ok_or_else(|| refused("is not an integer of at most 16 bytes"))?)
            }
            code::FLOAT => Literal::Float(number(argument).ok_or_else(|| refused("is not a number"))?),
            code::BINFLOAT => Literal::Float(f64::from_bits(unsigned(argument).swap_bytes())),
            code::BINUNICODE | code::SHORT_BINUNICODE | code::BINUNICODE8 => Literal::Text(
                str::from_utf8(argument).map_err(|e| format!("text that is not UTF-8: {e}"))?.into(),
            ),
            // From Python 2, where bytes and text were one type.
            code::BINSTRING | code::SHORT_BINSTRING => Literal::Text(utf8_or_latin1(argument)),
            code::STRING => {
                let quoted = match argument {
                    [b'\'', quoted @ .., b'\''] | [b'"', quoted @ .., b'"'] => {
                        unescaped(quoted, escaped_byte)
                    }
                    _ => None,
                };
                let text = quoted.ok_or_else(|| refused("is not a Python string literal"))?;
                let bytes: Vec<u8> = text.chars().map(|c| c as u8).collect();
                Literal::Text(utf8_or_latin1(&bytes).into_owned().into())
            }
            code::UNICODE => {
                let text = unescaped(argument, escaped_character);
                Literal::Text(text.ok_or_else(|| refused("has an escape that is not a character"))?.into())
            }
            code::BINBYTES | code::SHORT_BINBYTES | code::BINBYTES8 | code::BYTEARRAY8 => {
                Literal::Bytes(argument)
            }
            _ => return Ok(None),
        }))
    }

    /// Returns the key of a dict as part of a name, as Python's `f"{key}"`, or `None` for bytes. The machine makes
    /// bools a value of their own, so they never come here.
    pub(super) fn key(&self) -> Option<String> {
        Some(match self {
            Literal::Text(text) => text.clone().into_owned(),
            Literal::Int(int) => int.to_string(),
            Literal::Wide(digits) => digits.clone(),
            Literal::Float(float) if float.is_nan() => "nan".to_owned(),
            Literal::Float(float) => {
                // The shortest digits that round-trip. Python writes the exponent with a sign and two digits.
                let text = format!("{float:?}");
                match text.split_once('e').map(|(mantissa, exponent)| (mantissa, exponent.parse::<i32>())) {
                    Some((mantissa, Ok(exponent))) => format!("{mantissa}e{exponent:+03}"),
                    _ => text,
                }
            }
            Literal::Bool(_) | Literal::Bytes(_) => return None,
        })
    }

    /// Returns a value as an attribute: text unchanged, numbers as in Python's `json.dumps`, and `None` for bytes.
    pub(super) fn attribute(&self) -> Option<String> {
        match self {
            Literal::Float(float) if float.is_nan() => Some("NaN".to_owned()),
            Literal::Float(float) if float.is_infinite() => {
                self.key().map(|key| key.replace("inf", "Infinity"))
            }
            _ => self.key(),
        }
    }
}

fn twos_complement(bytes: &[u8]) -> Result<Literal<'static>, String> {
    let is_negative = bytes.last().is_some_and(|&byte| byte >= 0x80);
    if bytes.len() > MAX_WIDE_BYTES {
        let length = bytes.len();
        return Err(format!(
            "an integer of {length} bytes; at most {MAX_WIDE_BYTES} can be read; save it as text"
        ));
    }
    if bytes.len() > MAX_INTEGER_BYTES {
        return Ok(Literal::Wide(digits(bytes, is_negative)));
    }
    let mut wide = [if is_negative { 0xff } else { 0 }; MAX_INTEGER_BYTES];
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
    let first = nines.pop().unwrap_or(0);
    nines.iter().rev().fold(format!("{sign}{first}"), |text, nine| text + &format!("{nine:09}"))
}

fn number<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    str::from_utf8(text).ok().filter(|text| text.len() <= MAX_DIGITS)?.parse().ok()
}

fn utf8_or_latin1(bytes: &[u8]) -> Cow<'_, str> {
    str::from_utf8(bytes).map_or_else(|_| bytes.iter().map(|&byte| char::from(byte)).collect(), Cow::Borrowed)
}

/// Decodes Latin-1 with escapes. `escaped` takes the rest of an escape, and returns its character.
fn unescaped(mut rest: &[u8], escaped: impl Fn(&mut &[u8]) -> Option<char>) -> Option<String> {
    let mut text = String::with_capacity(rest.len());
    while let Some(byte) = rest.split_off_first() {
        text.push(if *byte == b'\\' { escaped(&mut rest)? } else { char::from(*byte) });
    }
    Some(text)
}

/// Returns a character of a Python 2 string literal. Its octal escapes, which no pickler has written, are refused.
fn escaped_byte(rest: &mut &[u8]) -> Option<char> {
    Some(match rest.split_off_first()? {
        b'n' => '\n',
        b't' => '\t',
        b'r' => '\r',
        b'a' => '\x07',
        b'b' => '\x08',
        b'f' => '\x0c',
        b'v' => '\x0b',
        b'x' => hexadecimal(rest, 2)?,
        &known @ (b'\\' | b'\'' | b'"') => char::from(known),
        _ => return None,
    })
}

/// Returns the character of `\uXXXX` or `\UXXXXXXXX`. A backslash before any other character is literal.
fn escaped_character(rest: &mut &[u8]) -> Option<char> {
    let digit_count = match rest.first() {
        Some(b'u') => 4,
        Some(b'U') => 8,
        _ => return Some('\\'),
    };
    rest.split_off_first();
    hexadecimal(rest, digit_count)
}

fn hexadecimal(rest: &mut &[u8], digit_count: usize) -> Option<char> {
    let digits = rest.split_off(..digit_count)?;
    let step = |high: u32, &digit: &u8| Some(high << 4 | char::from(digit).to_digit(16)?);
    char::from_u32(digits.iter().try_fold(0, step)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pickle: &[u8]) -> Result<Option<Literal<'_>>, String> {
        Literal::of(&Instruction::read(pickle, 0, pickle.len()).unwrap())
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
    fn byte_strings_are_recognized() {
        for bytes in [&b"C\x01a"[..], b"B\x01\0\0\0a", b"\x8e\x01\0\0\0\0\0\0\0a", b"\x96\x01\0\0\0\0\0\0\0a"]
        {
            assert_eq!(read(bytes), Ok(Some(Literal::Bytes(b"a"))));
        }
    }

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
            assert_eq!(Literal::Float(float).key().unwrap(), repr);
            assert_eq!(Literal::Float(float).attribute().unwrap(), repr);
        }
        for (float, name, json) in [
            (f64::NAN, "nan", "NaN"),
            (f64::INFINITY, "inf", "Infinity"),
            (-f64::INFINITY, "-inf", "-Infinity"),
        ] {
            assert_eq!(Literal::Float(float).key().unwrap(), name);
            assert_eq!(Literal::Float(float).attribute().unwrap(), json);
        }
    }
}
