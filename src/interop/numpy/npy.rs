//! Files of numpy's `.npy` format: one array each.
//!
//! ```
//! use stridemap::interop::{ForeignFile, npy};
//! use stridemap::{OnExisting, Store, Tensor};
//!
//! # let dir = tempfile::tempdir()?;
//! # let dir = dir.path();
//! let points = Tensor::from_vec(vec![1f32, 4., 2., 1., 3., 5.], &[3, 2])?;
//! npy::write(dir.join("points_t.npy"), &points.t()?, OnExisting::Refuse, &mut |_| ())?;
//!
//! let store = Store::create(dir.join("points.smap"))?;
//! store.import(dir.join("points_t.npy"), "")?;
//! assert_eq!(store.load("points_t")?.read::<f32>()?, [1., 2., 3., 4., 1., 5.]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

// The header is parsed here because the crates for it multiply the shape unchecked (npyz) and follow nested literals
// without bound (py_literal); and files are not trusted.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use stridemap_format::{DType, check_numel};

use crate::commit::OnExisting;
use crate::error::{Error, ErrorKind, Result};
use crate::interop::FileFormat;
use crate::interop::contents::{Contents, ForeignStorage, ForeignTensor};
use crate::interop::file::{self, RawFile};
use crate::layout::Layout;
use crate::tensor::Tensor;

const MAGIC: [u8; 6] = *b"\x93NUMPY";

/// Far more than any header of a plain array takes.
const MAX_HEADER_BYTES: u64 = 64 << 10;

/// Elements that are written begin at a multiple of this.
const ALIGNMENT_BYTES: usize = 64;

/// The end of numpy's `descr`, after the byte order.
const DTYPES: [(&str, DType); 14] = [
    ("b1", DType::Bool),
    ("u1", DType::U8),
    ("u2", DType::U16),
    ("u4", DType::U32),
    ("u8", DType::U64),
    ("i1", DType::I8),
    ("i2", DType::I16),
    ("i4", DType::I32),
    ("i8", DType::I64),
    ("f2", DType::F16),
    ("f4", DType::F32),
    ("f8", DType::F64),
    ("c8", DType::C64),
    ("c16", DType::C128),
];

/// Reads the header of a file with one array, and checks it against the file.
pub(in crate::interop) fn read(file: &Arc<RawFile>) -> Result<Contents> {
    let [magic @ .., major, minor, a, b, c, d] = file.preamble::<12>()?;
    if magic != MAGIC {
        return Err(file.bad("it does not begin as an npy file"));
    }
    let (start_bytes, header_bytes) = match (major, minor) {
        (1, 0) => (10, u16::from_le_bytes([a, b]).into()),
        (2 | 3, 0) => (12, u32::from_le_bytes([a, b, c, d]).into()),
        _ => return Err(file.bad(format!("version {major}.{minor} of the npy format is not known"))),
    };
    let header = file.header(start_bytes, header_bytes, MAX_HEADER_BYTES)?;
    let Header { dtype, is_fortran_order, size } = Header::parse(&header).map_err(|e| file.bad(e))?;
    let numel = check_numel(size.iter().map(|&n| n as u64)).ok();
    let length_bytes = numel.and_then(|numel| numel.checked_mul(dtype.itemsize() as u64));
    let length_bytes = length_bytes.ok_or_else(|| file.bad(format!("shape {size:?} is too large")))?;
    let offset_bytes = start_bytes + header_bytes;
    file.check_rest(offset_bytes, length_bytes)?;
    let layout = if is_fortran_order { Layout::column_major(&size) } else { Layout::contiguous(&size) };
    let layout = layout.map_err(|e| file.bad(&e).with_source(e))?;
    Ok(Contents {
        format: FileFormat::Npy,
        storages: vec![ForeignStorage { file: Arc::clone(file), offset_bytes, length_bytes }],
        tensors: vec![ForeignTensor { name: file.stem()?, dtype, layout, storage: 0 }],
        attributes: BTreeMap::new(),
        keeps_storages: false,
    })
}

/// Writes a tensor as a `.npy` file, in C order.
///
/// A view is written in its logical order. The file is written beside its place and then named, so `path` never holds
/// a part of it; a symbolic link is replaced, not followed. When it returns, the file is durable. `progress` is called
/// with the bytes of elements written since the last call.
///
/// # Errors
/// [`ErrorKind::BadFile`], before anything is written, for a dtype that numpy lacks: `bfloat16`, the 8-bit and 4-bit
/// floats. [`ErrorKind::AlreadyExists`] after [`OnExisting::Refuse`], and for what is not a file.
/// [`ErrorKind::ReadOnly`]. [`ErrorKind::Io`], and those of reading the elements.
pub fn write(
    path: impl AsRef<Path>,
    tensor: &Tensor,
    on_existing: OnExisting,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    let path = path.as_ref();
    let code = DTYPES.iter().find(|&&(_, dtype)| dtype == tensor.dtype()).map(|&(code, _)| code);
    let code = code.ok_or_else(|| {
        Error::new(
            ErrorKind::BadFile,
            format!("export {}: npy cannot hold {}", path.display(), tensor.dtype()),
        )
    })?;
    file::write(path, &header_of(tensor, code), [tensor], on_existing, progress)
}

/// The header as numpy writes it, its version 1.0: the sizes of 64 dimensions at most leave it far below 64 KiB.
fn header_of(tensor: &Tensor, code: &str) -> Vec<u8> {
    let order = if tensor.dtype().itemsize() == 1 { '|' } else { '<' };
    let sizes: Vec<String> = tensor.size().iter().map(ToString::to_string).collect();
    // A Python tuple of one element needs its comma.
    let comma = if sizes.len() == 1 { "," } else { "" };
    let shape = sizes.join(", ");
    let dict = format!("{{'descr': '{order}{code}', 'fortran_order': False, 'shape': ({shape}{comma}), }}");

    let preamble_bytes = MAGIC.len() + 4;
    let header_bytes = (preamble_bytes + dict.len() + 1).next_multiple_of(ALIGNMENT_BYTES) - preamble_bytes;
    let header = format!("{dict:<width$}\n", width = header_bytes - 1);
    [MAGIC.as_slice(), &[1, 0], &(header_bytes as u16).to_le_bytes(), header.as_bytes()].concat()
}

struct Header {
    dtype: DType,
    is_fortran_order: bool,
    size: Vec<usize>,
}

impl Header {
    /// Parses a Python dict of exactly the three keys, in any order.
    fn parse(header: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(header).map_err(|e| format!("the header is not text: {e}"))?;
        let mut parser = Parser { text, rest: text };
        let (mut dtype, mut is_fortran_order, mut size) = (None, None, None);
        parser.expect("{")?;
        while !parser.eat("}") {
            let key = parser.string()?;
            parser.expect(":")?;
            let is_new = match key {
                "descr" => dtype.replace(parser.dtype()?).is_none(),
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
        Ok(Header {
            dtype: dtype.ok_or_else(|| missing("descr"))?,
            is_fortran_order: is_fortran_order.ok_or_else(|| missing("fortran_order"))?,
            size: size.ok_or_else(|| missing("shape"))?,
        })
    }
}

/// What of Python's literals a header is made of. Nothing nests, so nothing recurs.
struct Parser<'a> {
    text: &'a str,
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn expected(&self, what: &str) -> String {
        format!("byte {} of the header: {what} expected", self.text.len() - self.rest.len())
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
        let quote = ["'", "\""].into_iter().find(|quote| self.eat(quote));
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
            self.rest = rest;
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

    fn dtype(&mut self) -> Result<DType, String> {
        let descr = self.string().map_err(|e| format!("{e}; structured arrays cannot be imported"))?;
        if descr.starts_with('>') {
            return Err(format!("the elements are big-endian, by descr {descr:?}; convert them with astype"));
        }
        // `=` is this machine's order.
        let code = descr.strip_prefix(['<', '=', '|']).unwrap_or_default();
        if code.starts_with('O') {
            return Err(format!(
                "the elements are Python objects, by descr {descr:?}: a pickle, which is code"
            ));
        }
        let found = DTYPES.iter().find(|&&(known, _)| known == code).map(|&(_, dtype)| dtype);
        // `|` says that there is no order, which is so for single bytes only.
        let is_ordered = |dtype: &DType| dtype.itemsize() == 1 || !descr.starts_with('|');
        found.filter(is_ordered).ok_or_else(|| format!("nothing here holds elements of descr {descr:?}"))
    }
}
