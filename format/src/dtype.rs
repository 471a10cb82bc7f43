//! The element types, with their codes, names and sizes.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::{Error, Result, Rule};

macro_rules! dtypes {
    ($($variant:ident = $code:literal, $name:literal, $itemsize:literal, $doc:literal;)*) => {
        /// The type of a tensor's elements, as in PyTorch.
        ///
        /// The codes are part of the format; the meaning of a code never changes.
        ///
        /// ```
        /// # use stridemap_format::DType;
        /// let dtype: DType = "bfloat16".parse()?;
        /// assert_eq!((dtype.name(), dtype.itemsize(), dtype.code()), ("bfloat16", 2, 10));
        /// assert!(dtype.is_floating_point() && DType::C64.is_complex());
        /// # Ok::<(), stridemap_format::Error>(())
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum DType {
            $(#[doc = $doc] $variant = $code,)*
        }

        impl DType {
            /// All dtypes, in ascending order of code.
            pub const ALL: &[DType] = &[$(DType::$variant,)*];

            /// Returns PyTorch's name without `torch.`, such as `float32`, `int64` or `bfloat16`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(DType::$variant => $name,)* }
            }

            /// Returns the size of one element in bytes.
            #[must_use]
            pub const fn itemsize(self) -> usize {
                match self { $(DType::$variant => $itemsize,)* }
            }
        }
    };
}

dtypes! {
    Bool = 0, "bool", 1, "One byte, 0 or 1.";
    U8 = 1, "uint8", 1, "Unsigned, 8 bits.";
    U16 = 2, "uint16", 2, "Unsigned, 16 bits.";
    U32 = 3, "uint32", 4, "Unsigned, 32 bits.";
    U64 = 4, "uint64", 8, "Unsigned, 64 bits.";
    I8 = 5, "int8", 1, "Signed, 8 bits.";
    I16 = 6, "int16", 2, "Signed, 16 bits.";
    I32 = 7, "int32", 4, "Signed, 32 bits.";
    I64 = 8, "int64", 8, "Signed, 64 bits.";
    F16 = 9, "float16", 2, "IEEE 754 half precision.";
    BF16 = 10, "bfloat16", 2, "The upper half of a float32.";
    F32 = 11, "float32", 4, "IEEE 754 single precision.";
    F64 = 12, "float64", 8, "IEEE 754 double precision.";
    C64 = 13, "complex64", 8, "Two float32: real, imaginary.";
    C128 = 14, "complex128", 16, "Two float64: real, imaginary.";
    F8E4M3FN = 15, "float8_e4m3fn", 1, "8 bits: 4 exponent, 3 mantissa; no infinity.";
    F8E5M2 = 16, "float8_e5m2", 1, "8 bits: 5 exponent, 2 mantissa.";
    F8E4M3FNUZ = 17, "float8_e4m3fnuz", 1, "8 bits: 4 exponent, 3 mantissa; no infinity, no negative zero.";
    F8E5M2FNUZ = 18, "float8_e5m2fnuz", 1, "8 bits: 5 exponent, 2 mantissa; no infinity, no negative zero.";
    F8E8M0FNU = 19, "float8_e8m0fnu", 1, "8 bits, all exponent: a scale.";
    F4E2M1FNx2 = 20, "float4_e2m1fn_x2", 1, "Two 4-bit floats in a byte, the first in the low half.";
}

impl DType {
    /// Returns the code of this dtype on disk.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the dtype with this code.
    ///
    /// # Errors
    /// [`Rule::DType`] for a code that this version does not know.
    pub(crate) fn from_code(code: u8) -> Result<Self> {
        DType::ALL
            .get(usize::from(code))
            .copied()
            .ok_or_else(|| Error::new(Rule::DType, format!("unknown dtype code {code}")))
    }

    /// Returns whether elements are complex numbers.
    #[must_use]
    pub const fn is_complex(self) -> bool {
        matches!(self, DType::C64 | DType::C128)
    }

    /// Returns whether elements are real floating-point numbers of any width.
    #[must_use]
    pub const fn is_floating_point(self) -> bool {
        matches!(self, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
            || self.code() >= DType::F8E4M3FN.code()
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// As its name.
impl Serialize for DType {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl FromStr for DType {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = DType::ALL.iter().find(|dtype| dtype.name() == name).copied();
        found.ok_or_else(|| Error::new(Rule::DType, format!("unknown dtype {name:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_convert_back_to_their_dtype() {
        for (position, &dtype) in DType::ALL.iter().enumerate() {
            assert_eq!(usize::from(dtype.code()), position);
            assert_eq!(DType::from_code(dtype.code()).unwrap(), dtype);
            assert_eq!(dtype.name().parse::<DType>().unwrap(), dtype);
        }
        assert_eq!(DType::from_code(21).unwrap_err().rule(), Rule::DType);
        assert!("float31".parse::<DType>().is_err());
    }
}
