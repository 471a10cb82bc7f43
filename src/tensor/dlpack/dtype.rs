//! Conversion between this crate's dtypes and DLPack's.

use dlpark::ffi::{DLDataType, DLDataTypeCode as Code};
use stridemap_format::DType;

/// The codes are those of DLPack. Packed floats are described as in PyTorch: two lanes of four bits per element.
const DTYPES: [(DType, DLDataType); 21] = [
    (DType::Bool, DLDataType::BOOL),
    (DType::U8, DLDataType::U8),
    (DType::U16, DLDataType::U16),
    (DType::U32, DLDataType::U32),
    (DType::U64, DLDataType::U64),
    (DType::I8, DLDataType::I8),
    (DType::I16, DLDataType::I16),
    (DType::I32, DLDataType::I32),
    (DType::I64, DLDataType::I64),
    (DType::F16, DLDataType::scalar(Code::FLOAT, 16)),
    (DType::BF16, DLDataType::scalar(Code::BFLOAT, 16)),
    (DType::F32, DLDataType::F32),
    (DType::F64, DLDataType::F64),
    (DType::C64, DLDataType::C64),
    (DType::C128, DLDataType::C128),
    (DType::F8E4M3FN, DLDataType::F8E4M3FN),
    (DType::F8E5M2, DLDataType::F8E5M2),
    (DType::F8E4M3FNUZ, DLDataType::F8E4M3FNUZ),
    (DType::F8E5M2FNUZ, DLDataType::F8E5M2FNUZ),
    (DType::F8E8M0FNU, DLDataType::F8E8M0FNU),
    (DType::F4E2M1FNx2, DLDataType::new(Code::FLOAT4_E2M1FN, 4, 2)),
];

/// Returns the DLPack type of a dtype. It is never `None`, because the table contains every dtype.
pub(super) fn to_dlpack(dtype: DType) -> Option<DLDataType> {
    DTYPES.iter().find(|(own, _)| *own == dtype).map(|(_, foreign)| *foreign)
}

pub(super) fn from_dlpack(dtype: DLDataType) -> Option<DType> {
    DTYPES.iter().find(|(_, foreign)| foreign.matches(dtype)).map(|(own, _)| *own)
}

/// Describes a DLPack type for error messages: "float of 32 bits and 4 lanes".
pub(super) fn name(dtype: DLDataType) -> String {
    const NAMES: [&str; 18] = [
        "int",
        "uint",
        "float",
        "opaque handle",
        "bfloat",
        "complex",
        "bool",
        "float8_e3m4",
        "float8_e4m3",
        "float8_e4m3b11fnuz",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "float6_e2m3fn",
        "float6_e3m2fn",
        "float4_e2m1fn",
    ];
    let DLDataType { code, bits, lanes } = dtype;
    let known = NAMES.get(usize::from(code.0)).map(|&name| name.to_owned());
    format!("{} of {bits} bits and {lanes} lanes", known.unwrap_or_else(|| format!("code {}", code.0)))
}
