//! Rust types for live elements, with atomic operations.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use half::{bf16, f16};
use stridemap_format::DType;

use crate::storage::Atom;
use crate::tensor::Element;

/// An [`Element`] that a [`LiveTensor`](crate::LiveTensor) can hold: the processor can read, write and exchange it in
/// one access. These are the integers of 8 to 64 bits, float16, bfloat16, float32 and float64.
pub trait LiveElement: Element + sealed::Live {}

pub(crate) mod sealed {
    use bytemuck::Pod;

    use crate::storage::Atom;

    /// The operations of the library on live elements, hidden from users.
    pub trait Live: Pod {
        /// The atomic type that stores the element.
        type Atom: Atom;

        /// Reads the element.
        fn load(atom: &Self::Atom) -> Self {
            bytemuck::cast(atom.load())
        }

        /// Writes the element.
        fn store(self, atom: &Self::Atom) {
            atom.store(bytemuck::cast(self));
        }

        /// Replaces `current` with `new`, compared bit for bit. Returns the old element: `Ok` if it was replaced,
        /// otherwise `Err`.
        fn compare_exchange(atom: &Self::Atom, current: Self, new: Self) -> Result<Self, Self> {
            let exchanged = atom.compare_exchange(bytemuck::cast(current), bytemuck::cast(new));
            exchanged.map(bytemuck::cast).map_err(bytemuck::cast)
        }

        /// Adds by the rules of the type, and returns the old element.
        fn fetch_add(atom: &Self::Atom, value: Self) -> Self;
    }
}

/// Whether elements of this dtype can be live, that is, whether it has a [`LiveElement`].
pub(crate) fn can_be_live(dtype: DType) -> bool {
    use DType::{BF16, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
    matches!(dtype, U8 | U16 | U32 | U64 | I8 | I16 | I32 | I64 | F16 | BF16 | F32 | F64)
}

macro_rules! integers {
    ($($type:ty: $atom:ty),*) => {$(
        impl LiveElement for $type {}

        impl sealed::Live for $type {
            type Atom = $atom;

            // Addition is the same on bits, signed or unsigned.
            fn fetch_add(atom: &$atom, value: Self) -> Self {
                bytemuck::cast(Atom::fetch_add(atom, bytemuck::cast(value)))
            }
        }
    )*};
}

macro_rules! floats {
    ($($type:ty: $atom:ty),*) => {$(
        impl LiveElement for $type {}

        impl sealed::Live for $type {
            type Atom = $atom;

            // There is no atomic addition of floats. The sum replaces the element if it still has the old bits. Bits
            // are compared, because a NaN does not equal itself.
            fn fetch_add(atom: &$atom, value: Self) -> Self {
                let mut bits = Atom::load(atom);
                loop {
                    let before = <$type>::from_bits(bits);
                    match Atom::compare_exchange(atom, bits, (before + value).to_bits()) {
                        Ok(_) => return before,
                        Err(found) => bits = found,
                    }
                }
            }
        }
    )*};
}

integers! {
    u8: AtomicU8, u16: AtomicU16, u32: AtomicU32, u64: AtomicU64,
    i8: AtomicU8, i16: AtomicU16, i32: AtomicU32, i64: AtomicU64
}

floats! { f16: AtomicU16, bf16: AtomicU16, f32: AtomicU32, f64: AtomicU64 }
