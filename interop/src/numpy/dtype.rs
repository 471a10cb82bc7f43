//! The element types of NumPy headers.

use stridemap::DType;

/// NumPy's `descr` without the byte order.
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

/// Types of the `ml_dtypes` package whose descriptor is unique. The package writes `<` before them, where NumPy writes
/// `|` before untyped bytes.
const UNIQUE: [(&str, DType); 2] = [("<V2", DType::BF16), ("<f1", DType::F8E5M2)];

/// The descriptor that `ml_dtypes` writes for all its other one-byte types, some of which stridemap does not have.
const ONE_BYTE: &str = "V1";

/// The type of elements, and their byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ParsedDescr {
    pub(super) dtype: DType,
    pub(super) is_big_endian: bool,
}

impl ParsedDescr {
    /// Parses a descriptor. `untyped` is the dtype of untyped elements, if the caller knows it.
    pub(super) fn parse(descr: &str, untyped: Option<DType>) -> Result<Self, String> {
        let (order, code) = match descr.chars().next() {
            Some(order @ ('<' | '>' | '=' | '|')) => (order, descr.get(1..).unwrap_or_default()),
            _ => ('=', descr),
        };
        // NumPy also reads the names of types.
        let named =
            descr.parse::<DType>().ok().and_then(|dtype| DTYPES.iter().find(|&&(_, known)| known == dtype));
        let code = match (code, named) {
            ("?", _) => "b1",
            (_, Some(&(code, _))) => code,
            _ => code,
        };
        // NumPy writes `|` for types without a byte order, such as single bytes.
        let plain = |dtype| ParsedDescr { dtype, is_big_endian: false };
        if let Some(&(_, dtype)) = UNIQUE.iter().find(|&&(unique, _)| unique == descr) {
            return Ok(plain(dtype));
        }
        let found = DTYPES.iter().find(|&&(known, _)| known == code).map(|&(_, dtype)| dtype);
        match found {
            Some(dtype) if dtype.itemsize() == 1 => return Ok(plain(dtype)),
            Some(dtype) => return Ok(ParsedDescr { dtype, is_big_endian: order == '>' }),
            None => {}
        }
        if let Some(bytes) = code.strip_prefix('V')
            && let Some(dtype) = untyped.filter(|dtype| dtype.itemsize().to_string() == bytes)
        {
            if dtype == DType::F4E2M1FNx2 {
                return Err(format!(
                    "the elements (descr {descr:?}) are not {dtype}, which packs two into a byte; ml_dtypes stores one \
                     per byte; save packed elements as numpy.uint8, import them, and save a view as {dtype}"
                ));
            }
            return Ok(ParsedDescr { dtype, is_big_endian: order == '>' && dtype.itemsize() > 1 });
        }
        Err(refusal(descr, code))
    }

    /// Returns the length of an element in bytes, or `None` if it is unknown or elements are Python objects.
    pub(super) fn item_bytes(descr: &str) -> Option<u64> {
        if let Ok(ParsedDescr { dtype, .. }) = ParsedDescr::parse(descr, None) {
            return Some(dtype.itemsize() as u64);
        }
        let code = descr.trim_start_matches(['<', '>', '=', '|']);
        let (kind, rest) = code.split_at_checked(1)?;
        // Times have a unit after their length: `M8[ns]`.
        let count = rest.split('[').next().and_then(|count| count.parse::<u64>().ok());
        match kind {
            "?" => Some(1),
            "U" => count?.checked_mul(4),
            "b" | "u" | "i" | "f" | "c" | "V" | "S" | "a" | "M" | "m" => count,
            _ => None,
        }
    }

    /// Returns the descriptor of a type, or `None` if NumPy has none.
    pub(super) fn descr_of(dtype: DType) -> Option<String> {
        if let Some(&(code, _)) = DTYPES.iter().find(|&&(_, known)| known == dtype) {
            let order = if dtype.itemsize() == 1 { '|' } else { '<' };
            return Some(format!("{order}{code}"));
        }
        match dtype {
            // `ml_dtypes` stores one element per byte.
            DType::F4E2M1FNx2 => None,
            DType::BF16 => Some("<V2".to_owned()),
            // `ml_dtypes` writes `<f1` for float8_e5m2, but `numpy.load` refuses it.
            dtype if dtype.itemsize() == 1 => Some(format!("<{ONE_BYTE}")),
            _ => None,
        }
    }
}

fn refusal(descr: &str, code: &str) -> String {
    let what = match code.chars().next() {
        Some('O') => "are Python objects, stored as a pickle, which is code; save arrays of numbers",
        Some('U' | 'S' | 'a') => "are strings, which stridemap does not have",
        Some('M' | 'm') => "are times; save x.view(numpy.int64)",
        Some('V') if code == ONE_BYTE => {
            "are bytes without a type, as ml_dtypes writes float8_e4m3fn and other types; state their type (--untyped, or \
             ForeignOptions::untyped), or save x.view(numpy.uint8)"
        }
        Some('V') if code == "V2" => {
            "are bytes without a type; if they are bfloat16, say so (--untyped, or ForeignOptions::untyped), or save \
             x.view(ml_dtypes.bfloat16)"
        }
        Some('V') => "are bytes without a type; save a view with a type",
        _ => "are of a type that stridemap does not have",
    };
    format!("the elements (descr {descr:?}) {what}")
}
