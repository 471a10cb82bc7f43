//! One instruction of a pickle: its position and its argument. Nothing is interpreted here.

/// The codes of instructions, with the names of Python's `pickletools`.
pub(super) mod code {
    macro_rules! codes {
        ($($name:ident = $code:literal $shape:ident;)*) => {
            $(pub(in super::super) const $name: u8 = $code;)*

            /// Returns the name of a code and the shape of its argument, or `None` for an unknown code.
            pub(in super::super) fn known(code: u8) -> Option<(&'static str, super::Shape)> {
                match code {
                    $($code => Some((stringify!($name), super::Shape::$shape)),)*
                    _ => None,
                }
            }
        };
    }

    codes! {
        MARK = b'(' Nothing;
        STOP = b'.' Nothing;
        POP = b'0' Nothing;
        POP_MARK = b'1' Nothing;
        DUP = b'2' Nothing;
        FLOAT = b'F' Line;
        INT = b'I' Line;
        BININT = b'J' Four;
        BININT1 = b'K' One;
        LONG = b'L' Line;
        BININT2 = b'M' Two;
        NONE = b'N' Nothing;
        PERSID = b'P' Line;
        BINPERSID = b'Q' Nothing;
        REDUCE = b'R' Nothing;
        STRING = b'S' Line;
        BINSTRING = b'T' Counted4;
        SHORT_BINSTRING = b'U' Counted1;
        UNICODE = b'V' Line;
        BINUNICODE = b'X' Counted4;
        APPEND = b'a' Nothing;
        BUILD = b'b' Nothing;
        GLOBAL = b'c' TwoLines;
        DICT = b'd' Nothing;
        APPENDS = b'e' Nothing;
        GET = b'g' Line;
        BINGET = b'h' One;
        INST = b'i' TwoLines;
        LONG_BINGET = b'j' Four;
        LIST = b'l' Nothing;
        OBJ = b'o' Nothing;
        PUT = b'p' Line;
        BINPUT = b'q' One;
        LONG_BINPUT = b'r' Four;
        SETITEM = b's' Nothing;
        TUPLE = b't' Nothing;
        SETITEMS = b'u' Nothing;
        EMPTY_DICT = b'}' Nothing;
        EMPTY_LIST = b']' Nothing;
        EMPTY_TUPLE = b')' Nothing;
        BINFLOAT = b'G' Eight;
        PROTO = 0x80 One;
        NEWOBJ = 0x81 Nothing;
        EXT1 = 0x82 One;
        EXT2 = 0x83 Two;
        EXT4 = 0x84 Four;
        TUPLE1 = 0x85 Nothing;
        TUPLE2 = 0x86 Nothing;
        TUPLE3 = 0x87 Nothing;
        NEWTRUE = 0x88 Nothing;
        NEWFALSE = 0x89 Nothing;
        LONG1 = 0x8a Counted1;
        LONG4 = 0x8b Counted4;
        BINBYTES = b'B' Counted4;
        SHORT_BINBYTES = b'C' Counted1;
        SHORT_BINUNICODE = 0x8c Counted1;
        BINUNICODE8 = 0x8d Counted8;
        BINBYTES8 = 0x8e Counted8;
        EMPTY_SET = 0x8f Nothing;
        ADDITEMS = 0x90 Nothing;
        FROZENSET = 0x91 Nothing;
        NEWOBJ_EX = 0x92 Nothing;
        STACK_GLOBAL = 0x93 Nothing;
        MEMOIZE = 0x94 Nothing;
        FRAME = 0x95 Eight;
        BYTEARRAY8 = 0x96 Counted8;
        NEXT_BUFFER = 0x97 Nothing;
        READONLY_BUFFER = 0x98 Nothing;
    }
}

/// The shape of an instruction's argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Nothing,
    One,
    Two,
    Four,
    Eight,
    /// A count in this many bytes, then that many bytes.
    Counted1,
    Counted4,
    Counted8,
    /// Text up to a line feed.
    Line,
    TwoLines,
}

/// An instruction and its argument: the bytes after a count, or lines without the last line feed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instruction<'a> {
    pub(super) code: u8,
    pub(super) name: &'static str,
    pub(super) argument: &'a [u8],
    /// The offset of the next instruction.
    pub(super) end: usize,
}

/// Why an instruction cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// The bytes end within it.
    Cut,
    Wrong(String),
}

impl<'a> Instruction<'a> {
    /// Reads the instruction at `at`, which must end by `limit`.
    pub(super) fn read(bytes: &'a [u8], at: usize, limit: usize) -> Result<Self, Missing> {
        let (&code, rest) = bytes.get(at..).and_then(<[u8]>::split_first).ok_or(Missing::Cut)?;
        let (name, shape) = code::known(code)
            .ok_or_else(|| Missing::Wrong(format!("{code:#04x} is not a pickle instruction")))?;
        let start = at.saturating_add(1);
        let (skipped, length) = match shape {
            Shape::Nothing => (0, 0),
            Shape::One => (0, 1),
            Shape::Two => (0, 2),
            Shape::Four => (0, 4),
            Shape::Eight => (0, 8),
            Shape::Counted1 => (1, count(rest, 1)?),
            Shape::Counted4 => (4, count(rest, 4)?),
            Shape::Counted8 => (8, count(rest, 8)?),
            Shape::Line => (0, line(rest)?),
            Shape::TwoLines => {
                let first = line(rest)?.saturating_add(1);
                (0, first.saturating_add(line(rest.get(first..).unwrap_or_default())?))
            }
        };
        let argument_start = start.saturating_add(skipped);
        let argument_end = argument_start.saturating_add(length);
        if argument_end > limit {
            let left = limit.saturating_sub(argument_start);
            return Err(Missing::Wrong(format!("{name} has {length} bytes, but {left} are left")));
        }
        let argument = bytes.get(argument_start..argument_end).ok_or(Missing::Cut)?;
        let line_feed = usize::from(matches!(shape, Shape::Line | Shape::TwoLines));
        Ok(Instruction { code, name, argument, end: argument_end.saturating_add(line_feed) })
    }
}

fn line(rest: &[u8]) -> Result<usize, Missing> {
    rest.iter().position(|&byte| byte == b'\n').ok_or(Missing::Cut)
}

fn count(rest: &[u8], width: usize) -> Result<usize, Missing> {
    let bytes = rest.get(..width).ok_or(Missing::Cut)?;
    let count = bytes.iter().rev().fold(0u64, |high, &byte| high << 8 | u64::from(byte));
    Ok(usize::try_from(count).unwrap_or(usize::MAX))
}

/// Returns the length of the pickle at the start of `bytes`, including its STOP, or `None` if `bytes` end before it.
/// `limit` is its maximum length.
pub(in super::super) fn pickle_length(bytes: &[u8], limit: usize) -> Result<Option<usize>, String> {
    let mut at = 0;
    loop {
        match Instruction::read(bytes, at, limit) {
            Ok(instruction) if instruction.code == code::STOP => return Ok(Some(instruction.end)),
            Ok(instruction) => at = instruction.end,
            Err(Missing::Cut) => return Ok(None),
            Err(Missing::Wrong(what)) => return Err(at_byte(at, what)),
        }
    }
}

pub(super) fn at_byte(at: usize, what: impl std::fmt::Display) -> String {
    format!("the pickle at byte {at}: {what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pickle_ends_at_its_stop_and_not_at_a_stop_within_text() {
        let pickle = b"\x80\x02X\x02\x00\x00\x00..q\x00cos.path\nsystem.\n0N.trailing";
        assert_eq!(pickle_length(pickle, pickle.len()), Ok(Some(pickle.len() - 8)));
        for cut in 0..pickle.len() - 8 {
            assert_eq!(pickle_length(&pickle[..cut], pickle.len()), Ok(None), "{cut}");
        }
    }

    #[test]
    fn lengths_past_the_file_are_refused_before_they_are_waited_for() {
        for (pickle, said) in [
            (&b"X\xff\xff\xff\xff"[..], "BINUNICODE has 4294967295 bytes, but 95 are left"),
            (b"\x8b\xff\xff\xff\x7f", "LONG4 has 2147483647 bytes, but 95 are left"),
            (
                b"\x8d\xff\xff\xff\xff\xff\xff\xff\xff",
                "BINUNICODE8 has 18446744073709551615 bytes, but 91 are left",
            ),
            (b"N\xff", "0xff is not a pickle instruction"),
        ] {
            assert!(pickle_length(pickle, 100).unwrap_err().ends_with(said), "{said}");
        }
    }
}
