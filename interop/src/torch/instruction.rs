//! One instruction of a pickle: its code and its argument. Nothing is interpreted here.

macro_rules! codes {
    ($($name:ident = $code:literal),*) => { $(pub(in crate::torch) const $name: u8 = $code;)* };
}

/// The codes of instructions, with the names of Python's `pickletools`.
pub(super) mod code {
    codes! {
        MARK = b'(', STOP = b'.', POP = b'0', POP_MARK = b'1', DUP = b'2', FLOAT = b'F', INT = b'I', BININT = b'J',
        BININT1 = b'K', LONG = b'L', BININT2 = b'M', NONE = b'N', PERSID = b'P', BINPERSID = b'Q', REDUCE = b'R',
        STRING = b'S', BINSTRING = b'T', SHORT_BINSTRING = b'U', UNICODE = b'V', BINUNICODE = b'X', APPEND = b'a',
        BUILD = b'b', GLOBAL = b'c', DICT = b'd', APPENDS = b'e', GET = b'g', BINGET = b'h', INST = b'i',
        LONG_BINGET = b'j', LIST = b'l', OBJ = b'o', PUT = b'p', BINPUT = b'q', LONG_BINPUT = b'r', SETITEM = b's',
        TUPLE = b't', SETITEMS = b'u', EMPTY_DICT = b'}', EMPTY_LIST = b']', EMPTY_TUPLE = b')', BINFLOAT = b'G',
        PROTO = 0x80, NEWOBJ = 0x81, EXT1 = 0x82, EXT2 = 0x83, EXT4 = 0x84, TUPLE1 = 0x85, TUPLE2 = 0x86,
        TUPLE3 = 0x87, NEWTRUE = 0x88, NEWFALSE = 0x89, LONG1 = 0x8a, LONG4 = 0x8b, BINBYTES = b'B',
        SHORT_BINBYTES = b'C', SHORT_BINUNICODE = 0x8c, BINUNICODE8 = 0x8d, BINBYTES8 = 0x8e, EMPTY_SET = 0x8f,
        ADDITEMS = 0x90, FROZENSET = 0x91, NEWOBJ_EX = 0x92, STACK_GLOBAL = 0x93, MEMOIZE = 0x94, FRAME = 0x95,
        BYTEARRAY8 = 0x96, NEXT_BUFFER = 0x97, READONLY_BUFFER = 0x98
    }
}

/// An instruction and its argument: a fixed number of bytes, the bytes after a count, or lines without the last line
/// feed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instruction<'a> {
    pub(super) code: u8,
    pub(super) argument: &'a [u8],
    /// The offset of the next instruction.
    pub(super) end: usize,
}

/// Why an instruction cannot be read.
#[derive(Debug)]
pub(super) enum ReadError {
    /// The bytes end within the instruction.
    Truncated,
    Invalid(String),
}

impl<'a> Instruction<'a> {
    /// Reads the instruction at `at`, which must end by `limit`.
    pub(super) fn read(bytes: &'a [u8], at: usize, limit: usize) -> Result<Self, ReadError> {
        let (&code, rest) = bytes.get(at..).and_then(<[u8]>::split_first).ok_or(ReadError::Truncated)?;
        let line = |from: usize| {
            let length = rest.get(from..).and_then(|rest| rest.iter().position(|&byte| byte == b'\n'));
            length.map(|length| from.saturating_add(length)).ok_or(ReadError::Truncated)
        };
        let counted = |width| match rest.get(..width) {
            Some(count) => Ok((width, usize::try_from(unsigned(count)).unwrap_or(usize::MAX), 0)),
            None => Err(ReadError::Truncated),
        };
        // The numbers of bytes before, in and after the argument.
        let (before, length, after) = match code {
            code::BININT1 | code::PROTO | code::BINGET | code::BINPUT | code::EXT1 => (0, 1, 0),
            code::BININT2 | code::EXT2 => (0, 2, 0),
            code::BININT | code::LONG_BINGET | code::LONG_BINPUT | code::EXT4 => (0, 4, 0),
            code::BINFLOAT | code::FRAME => (0, 8, 0),
            code::LONG1 | code::SHORT_BINSTRING | code::SHORT_BINBYTES | code::SHORT_BINUNICODE => {
                counted(1)?
            }
            code::LONG4 | code::BINSTRING | code::BINBYTES | code::BINUNICODE => counted(4)?,
            code::BINUNICODE8 | code::BINBYTES8 | code::BYTEARRAY8 => counted(8)?,
            code::FLOAT | code::INT | code::LONG | code::PERSID => (0, line(0)?, 1),
            code::STRING | code::UNICODE | code::GET | code::PUT => (0, line(0)?, 1),
            code::GLOBAL | code::INST => (0, line(line(0)?.saturating_add(1))?, 1),
            b'(' | b'.' | b'0'..=b'2' | b'N' | b'Q' | b'R' | b'a' | b'b' | b'd' | b'e' | b'l' | b'o' => {
                (0, 0, 0)
            }
            b's'..=b'u' | b'}' | b']' | b')' | 0x80..=0x98 => (0, 0, 0),
            _ => return Err(ReadError::Invalid(format!("{code:#04x} is not a pickle instruction"))),
        };
        let start = at.saturating_add(1).saturating_add(before);
        let end = start.saturating_add(length);
        if end > limit {
            let left = limit.saturating_sub(start);
            return Err(ReadError::Invalid(format!("an argument of {length} bytes, but {left} are left")));
        }
        let argument = bytes.get(start..end).ok_or(ReadError::Truncated)?;
        Ok(Instruction { code, argument, end: end.saturating_add(after) })
    }
}

/// Returns the number in little-endian bytes.
pub(super) fn unsigned(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |high, &byte| high << 8 | u64::from(byte))
}

/// Returns the length of the pickle at the start of `bytes`, including its STOP, or `None` if `bytes` end before it.
/// `limit` is the maximum length of the pickle.
pub(super) fn pickle_length(bytes: &[u8], limit: usize) -> Result<Option<usize>, String> {
    let mut at = 0;
    loop {
        match Instruction::read(bytes, at, limit) {
            Ok(instruction) if instruction.code == code::STOP => return Ok(Some(instruction.end)),
            Ok(instruction) => at = instruction.end,
            Err(ReadError::Truncated) => return Ok(None),
            Err(ReadError::Invalid(what)) => return Err(at_byte(at, what)),
        }
    }
}

pub(super) fn at_byte(at: usize, what: impl std::fmt::Display) -> String {
    format!("at byte {at} of the pickle: {what}")
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
    fn lengths_past_the_file_are_refused_at_once() {
        for (pickle, said) in [
            (&b"X\xff\xff\xff\xff"[..], "an argument of 4294967295 bytes, but 95 are left"),
            (b"\x8b\xff\xff\xff\x7f", "2147483647 bytes, but 95 are left"),
            (b"\x8d\xff\xff\xff\xff\xff\xff\xff\xff", "18446744073709551615 bytes, but 91 are left"),
            (b"N\xff", "0xff is not a pickle instruction"),
        ] {
            assert!(pickle_length(pickle, 100).unwrap_err().ends_with(said), "{said}");
        }
    }

    #[test]
    fn only_codes_of_protocols_0_to_5_are_instructions() {
        // The keys of pickletools.code2op.
        let known = b"IJKMLSTUBCVXNFG]ael})tdus012(.cgpbioRhjqrPQ";
        for code in 0..=255 {
            let pickle = [&[code][..], &[b'\n'; 20]].concat();
            let is_known = known.contains(&code) || (0x80..=0x98).contains(&code);
            let read = Instruction::read(&pickle, 0, usize::MAX / 2);
            let is_refused = matches!(&read, Err(ReadError::Invalid(what)) if what.ends_with("is not a pickle instruction"));
            assert_eq!(is_refused, !is_known, "{code:#x}: {read:?}");
        }
    }
}
