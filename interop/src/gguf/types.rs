//! The types of tensors and of metadata.

use stridemap::DType;

/// The type of the elements of a tensor, in blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct TensorType {
    pub(super) code: u32,
    pub(super) name: &'static str,
    /// The number of elements in a block.
    pub(super) block_elems: usize,
    /// The number of bytes of a block.
    pub(super) block_bytes: usize,
    /// The dtype of the elements. Without one, the blocks are bytes.
    pub(super) dtype: Option<DType>,
}

const fn plain(code: u32, name: &'static str, dtype: DType) -> TensorType {
    TensorType { code, name, block_elems: 1, block_bytes: dtype.itemsize(), dtype: Some(dtype) }
}

const fn blocks(code: u32, name: &'static str, block_elems: usize, block_bytes: usize) -> TensorType {
    TensorType { code, name, block_elems, block_bytes, dtype: None }
}

/// The types of ggml that the `gguf` package of Python knows, with its names.
const TENSOR_TYPES: [TensorType; 34] = [
    plain(0, "F32", DType::F32),
    plain(1, "F16", DType::F16),
    blocks(2, "Q4_0", 32, 18),
    blocks(3, "Q4_1", 32, 20),
    blocks(6, "Q5_0", 32, 22),
    blocks(7, "Q5_1", 32, 24),
    blocks(8, "Q8_0", 32, 34),
    blocks(9, "Q8_1", 32, 40),
    blocks(10, "Q2_K", 256, 84),
    blocks(11, "Q3_K", 256, 110),
    blocks(12, "Q4_K", 256, 144),
    blocks(13, "Q5_K", 256, 176),
    blocks(14, "Q6_K", 256, 210),
    blocks(15, "Q8_K", 256, 292),
    blocks(16, "IQ2_XXS", 256, 66),
    blocks(17, "IQ2_XS", 256, 74),
    blocks(18, "IQ3_XXS", 256, 98),
    blocks(19, "IQ1_S", 256, 50),
    blocks(20, "IQ4_NL", 32, 18),
    blocks(21, "IQ3_S", 256, 110),
    blocks(22, "IQ2_S", 256, 82),
    blocks(23, "IQ4_XS", 256, 136),
    plain(24, "I8", DType::I8),
    plain(25, "I16", DType::I16),
    plain(26, "I32", DType::I32),
    plain(27, "I64", DType::I64),
    plain(28, "F64", DType::F64),
    blocks(29, "IQ1_M", 256, 56),
    plain(30, "BF16", DType::BF16),
    blocks(34, "TQ1_0", 256, 54),
    blocks(35, "TQ2_0", 256, 66),
    blocks(39, "MXFP4", 32, 17),
    blocks(40, "NVFP4", 64, 36),
    blocks(41, "Q1_0", 128, 18),
];

impl TensorType {
    pub(super) fn of_code(code: u32) -> Option<TensorType> {
        TENSOR_TYPES.into_iter().find(|known| known.code == code)
    }

    /// Returns the type of elements of a dtype.
    pub(super) fn of_dtype(dtype: DType) -> Option<TensorType> {
        TENSOR_TYPES.into_iter().find(|known| known.dtype == Some(dtype))
    }

    /// Returns the type of blocks with this name.
    pub(super) fn of_blocks(name: &str) -> Option<TensorType> {
        TENSOR_TYPES.into_iter().find(|known| known.dtype.is_none() && known.name == name)
    }
}

/// The type of a value of the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    Array,
    U64,
    I64,
    F64,
}

/// The types of values, each at the place of its code, with its name, the name of an array of it, and the number of bytes
/// of a value. The last is 0 if it differs between values.
const VALUE_TYPES: [(ValueType, &str, &str, usize); 13] = [
    (ValueType::U8, "uint8", "[uint8]", 1),
    (ValueType::I8, "int8", "[int8]", 1),
    (ValueType::U16, "uint16", "[uint16]", 2),
    (ValueType::I16, "int16", "[int16]", 2),
    (ValueType::U32, "uint32", "[uint32]", 4),
    (ValueType::I32, "int32", "[int32]", 4),
    (ValueType::F32, "float32", "[float32]", 4),
    (ValueType::Bool, "bool", "[bool]", 1),
    (ValueType::Text, "string", "[string]", 0),
    (ValueType::Array, "array", "[array]", 0),
    (ValueType::U64, "uint64", "[uint64]", 8),
    (ValueType::I64, "int64", "[int64]", 8),
    (ValueType::F64, "float64", "[float64]", 8),
];

impl ValueType {
    pub(super) fn of_code(code: u32) -> Option<Self> {
        Some(VALUE_TYPES.get(usize::try_from(code).ok()?)?.0)
    }

    pub(super) fn code(self) -> u32 {
        self as u32
    }

    fn row(self) -> (ValueType, &'static str, &'static str, usize) {
        VALUE_TYPES.get(self as usize).copied().unwrap_or((self, "", "", 0))
    }

    /// Returns the number of bytes of a value, or `None` if it differs between values.
    pub(super) fn size_bytes(self) -> Option<usize> {
        Some(self.row().3).filter(|&bytes| bytes > 0)
    }
}

/// The type of a whole value: of one value, or of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    One(ValueType),
    List(ValueType),
}

impl Shape {
    pub(super) fn name(self) -> &'static str {
        match self {
            Shape::One(of) => of.row().1,
            Shape::List(of) => of.row().2,
        }
    }

    pub(super) fn of_name(name: &str) -> Option<Self> {
        VALUE_TYPES.iter().find_map(|&(of, one, list, _)| match name {
            _ if name == one => Some(Shape::One(of)),
            _ if name == list => Some(Shape::List(of)),
            _ => None,
        })
    }
}
