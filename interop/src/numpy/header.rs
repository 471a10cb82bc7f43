//! The header of an array: a Python dict as text.

// It is parsed here because the available crates do not suit untrusted files: npyz multiplies the shape unchecked,
// and py_literal follows nested literals without bound.

use stridemap::{DType, Header};

pub(super) const MAGIC: [u8; 6] = *b"\x93NUMPY";

/// The number of bytes read first. They include the length of the header. Every file has at least this many.
pub(super) const PREAMBLE_BYTES: usize = 12;

/// The maximum length of a header, which is far more than any plain array needs. NumPy's own limit for untrusted files
/// is 10,000.
pub(super) const MAX_HEADER_BYTES: u64 = 64 << 10;

/// The alignment of elements in written files.
const ALIGNMENT_BYTES: usize = 64;

/// The location of the header's text, and the version of the format.
pub(super) struct Preamble {
    pub(super) start_bytes: u64,
    pub(super) header_bytes: u64,
    is_utf8: bool,
}

impl Preamble {
    pub(super) fn parse(bytes: [u8; PREAMBLE_BYTES]) -> Result<Self, String> {
        let [magic @ .., major, minor, a, b, c, d] = bytes;
        if magic != MAGIC {
            return Err("it is not an npy file".to_owned());
        }
        let (start_bytes, header_bytes) = match (major, minor) {
            (1, 0) => (10, u16::from_le_bytes([a, b]).into()),
            (2 | 3, 0) => (12, u32::from_le_bytes([a, b, c, d]).into()),
            _ => return Err(format!("version {major}.{minor} of the npy format is not supported")),
        };
        if header_bytes > MAX_HEADER_BYTES {
            return Err(format!(
                "the file states a header of {header_bytes} bytes; at most {MAX_HEADER_BYTES} are allowed"
            ));
        }
        Ok(Preamble { start_bytes, header_bytes, is_utf8: major == 3 })
    }

    /// Decodes the text of the header.
    pub(super) fn text(&self, bytes: Vec<u8>) -> Result<String, String> {
        if self.is_utf8 {
            return String::from_utf8(bytes).map_err(|e| format!("the header is not text: {e}"));
        }
        // Latin-1.
        Ok(bytes.into_iter().map(char::from).collect())
    }

    /// Returns the offset of the elements.
    pub(super) fn elements_offset(&self) -> u64 {
        self.start_bytes + self.header_bytes
    }
}

/// Returns the header of an array in column-major order.
pub(super) fn column_major(dtype: DType, size: &[usize]) -> stridemap_format::Result<Header> {
    let reversed: Vec<usize> = size.iter().rev().copied().collect();
    let stride: Vec<isize> = Header::contiguous(dtype, &reversed)?.stride().iter().rev().copied().collect();
    Header::new(dtype, size, stride, 0)
}

/// Builds a header as NumPy does, in version 1.0. With at most 64 dimensions it stays far below 64 KiB.
pub(super) fn header_of(descr: &str, is_fortran_order: bool, size: &[usize]) -> Vec<u8> {
    let sizes: Vec<String> = size.iter().map(ToString::to_string).collect();
    // A Python tuple of one element needs a comma.
    let comma = if sizes.len() == 1 { "," } else { "" };
    let (order, shape) = (if is_fortran_order { "True" } else { "False" }, sizes.join(", "));
    let dict = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({shape}{comma}), }}");

    let preamble_bytes = MAGIC.len() + 4;
    let header_bytes = (preamble_bytes + dict.len() + 1).next_multiple_of(ALIGNMENT_BYTES) - preamble_bytes;
    let header = format!("{dict:<width$}\n", width = header_bytes - 1);
    [MAGIC.as_slice(), &[1, 0], &(header_bytes as u16).to_le_bytes(), header.as_bytes()].concat()
}

/// The descriptor of an array's elements.
pub(super) enum Descriptor<'a> {
    One(&'a str),
    /// Each element is a structure of these fields, one after another.
    Fields(Vec<FieldDescr<'a>>),
}

/// The descriptor of a field. NumPy also writes one for the padding between fields, without a name.
pub(super) struct FieldDescr<'a> {
    pub(super) name: &'a str,
    pub(super) descr: &'a str,
    /// If the field is an array, its sizes; otherwise empty.
    pub(super) size: Vec<usize>,
}

/// The three entries of a header.
pub(super) struct ArrayHeader<'a> {
    pub(super) descr: Descriptor<'a>,
    pub(super) is_fortran_order: bool,
    pub(super) size: Vec<usize>,
}

impl<'a> ArrayHeader<'a> {
    /// Parses a Python dict with exactly three keys, in any order.
    pub(super) fn parse(text: &'a str) -> Result<Self, String> {
        let mut parser = Parser { text, rest: text };
        let (mut descr, mut is_fortran_order, mut size) = (None, None, None);
        parser.expect("{")?;
        while !parser.eat("}") {
            let key = parser.string()?;
            parser.expect(":")?;
            let is_new = match key {
                "descr" => descr.replace(parser.descr()?).is_none(),
                "fortran_order" => is_fortran_order.replace(parser.boolean()?).is_none(),
                "shape" => size.replace(parser.sizes()?).is_none(),
                _ => return Err(format!("the header has an unknown key {key:?}")),
            };
            if !is_new {
                return Err(format!("the header has {key:?} twice"));
            }
            if !parser.eat(",") {
                parser.expect("}")?;
                break;
            }
        }
        if !parser.rest.trim_ascii().is_empty() {
            return Err(parser.expected("the end"));
        }
        let missing = |key| format!("the header has no {key:?}");
        Ok(ArrayHeader {
            descr: descr.ok_or_else(|| missing("descr"))?,
            is_fortran_order: is_fortran_order.ok_or_else(|| missing("fortran_order"))?,
            size: size.ok_or_else(|| missing("shape"))?,
        })
    }
}

/// Parses the subset of Python's literals that headers use. The subset does not nest, so nothing recurses.
struct Parser<'a> {
    text: &'a str,
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn expected(&self, what: &str) -> String {
        format!("byte {} of the header: expected {what}", self.text.len() - self.rest.len())
    }

    fn eat(&mut self, token: &str) -> bool {
        self.rest = self.rest.trim_ascii_start();
        let rest = self.rest.strip_prefix(token);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        if self.eat(token) { Ok(()) } else { Err(self.expected(&format!("{token:?}"))) }
    }

    fn string(&mut self) -> Result<&'a str, String> {
        // Python 2 wrote text with a `u`.
        let quotes = [("'", "'"), ("\"", "\""), ("u'", "'"), ("u\"", "\"")];
        let quote = quotes.into_iter().find(|(start, _)| self.eat(start)).map(|(_, quote)| quote);
        let (string, rest) =
            quote.and_then(|quote| self.rest.split_once(quote)).ok_or_else(|| self.expected("a string"))?;
        self.rest = rest;
        Ok(string)
    }

    fn boolean(&mut self) -> Result<bool, String> {
        if self.eat("True") {
            return Ok(true);
        }
        self.expect("False").map(|()| false)
    }

    fn sizes(&mut self) -> Result<Vec<usize>, String> {
        let mut sizes = Vec::new();
        self.expect("(")?;
        while !self.eat(")") {
            let digits_end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
            let (digits, rest) = self.rest.split_at(digits_end);
            sizes.push(digits.parse().map_err(|_| self.expected("a size"))?);
            // Python 2 wrote long integers with an `L`.
            self.rest = rest.strip_prefix('L').unwrap_or(rest);
            if sizes.len() == 1 {
                // Without the comma it would be a number in parentheses.
                self.expect(",")?;
            } else if !self.eat(",") {
                self.expect(")")?;
                break;
            }
        }
        Ok(sizes)
    }

    fn descr(&mut self) -> Result<Descriptor<'a>, String> {
        if !self.eat("[") {
            return self.string().map(Descriptor::One);
        }
        let mut fields = Vec::new();
        while !self.eat("]") {
            fields.push(self.field()?);
            if !self.eat(",") {
                self.expect("]")?;
                break;
            }
        }
        Ok(Descriptor::Fields(fields))
    }

    /// Parses a name or a pair of title and name, a descriptor, and the sizes of an array if the field is one.
    fn field(&mut self) -> Result<FieldDescr<'a>, String> {
        self.expect("(")?;
        let name = if self.eat("(") {
            self.string()?;
            self.expect(",")?;
            let name = self.string()?;
            self.expect(")")?;
            name
        } else {
            self.string()?
        };
        if name.contains('\\') {
            return Err(format!("the field {name:?} has a backslash in its name; rename the field"));
        }
        self.expect(",")?;
        if self.eat("[") {
            return Err(format!("the field {name:?} is a structure itself; save its fields separately"));
        }
        let descr = self.string()?;
        let size = if self.eat(",") { self.sizes()? } else { Vec::new() };
        self.expect(")")?;
        Ok(FieldDescr { name, descr, size })
    }
}
