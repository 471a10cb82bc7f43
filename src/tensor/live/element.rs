use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use half::{bf16, f16};
use stridemap_format::DType;

use crate::storage::Atom;
use crate::tensor::Element;

/// An [`Element`] that a [`LiveTensor`](crate::LiveTensor) can hold: one that the processor reads, writes and exchanges
/// whole. These are the integers of 8 to 64 bits, float16, bfloat16, float32 and float64.
pub trait LiveElement: Element + sealed::Live {}

pub(crate) mod sealed {
    use crate::storage::Atom;

    /// What the library does with live elements, kept out of users' sight.
    pub trait Live: Copy {
        /// The element where it stands.
        type Atom: Atom;
        /// The element's bits.
        fn to_bits(self) -> <Self::Atom as Atom>::Bits;
        /// The element of these bits.
        fn from_bits(bits: <Self::Atom as Atom>::Bits) -> Self;

        /// The element that stands there.
        fn load(atom: &Self::Atom) -> Self {
            Self::from_bits(atom.load())
        }

        /// Puts the element there.
        fn store(self, atom: &Self::Atom) {
            atom.store(self.to_bits());
        }

        /// Replaces `current` by `new`, bit for bit; gives what was there, as an error unless it was `current`.
        fn compare_exchange(atom: &Self::Atom, current: Self, new: Self) -> Result<Self, Self> {
            let exchanged = atom.compare_exchange(current.to_bits(), new.to_bits());
            exchanged.map(Self::from_bits).map_err(Self::from_bits)
        }

        /// Adds, as the type adds; gives what was there before.
        fn fetch_add(atom: &Self::Atom, value: Self) -> Self;
    }
}

/// Whether elements of this dtype can be live: there is a [`LiveElement`] of it.
pub(crate) fn is_live(dtype: DType) -> bool {
    use DType::{BF16, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
    matches!(dtype, U8 | U16 | U32 | U64 | I8 | I16 | I32 | I64 | F16 | BF16 | F32 | F64)
}

macro_rules! integers {
    ($($type:ty: $atom:ty),*) => {$(
        impl LiveElement for $type {}

        impl sealed::Live for $type {
            type Atom = $atom;

            fn to_bits(self) -> <$atom as Atom>::Bits {
                bytemuck::cast(self)
            }

            fn from_bits(bits: <$atom as Atom>::Bits) -> Self {
                bytemuck::cast(bits)
            }

            // The same bits with a sign and without.
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

            fn to_bits(self) -> <$atom as Atom>::Bits {
                self.to_bits()
            }

            fn from_bits(bits: <$atom as Atom>::Bits) -> Self {
                <$type>::from_bits(bits)
            }

            // No processor adds floats in place: the sum is put where the summand still stands, bit for bit, so that a NaN,
            // which equals nothing, is replaced all the same.
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
