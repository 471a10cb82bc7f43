//! Elementwise arithmetic, with PyTorch's rules for the dtype of the result.

use num_complex::Complex;
use stridemap_format::DType;

use super::Scalar;
use crate::error::{Error, ErrorKind, Result};

/// An operation on two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Add,
    Sub,
    Mul,
    Div,
}

/// The other operand. For the common dtype, a tensor with dimensions takes precedence over one without, which takes
/// precedence over a number.
#[derive(Clone, Copy, Debug)]
pub(super) enum OtherDType {
    Number(DType),
    ZeroDim(DType),
    WithDims(DType),
}

impl Op {
    fn name(self) -> &'static str {
        match self {
            Op::Add => "add_",
            Op::Sub => "sub_",
            Op::Mul => "mul_",
            Op::Div => "div_",
        }
    }

    /// Returns the dtype in which elements of `own` and `other` are combined. The result is then converted back to
    /// `own`. `is_zero_dim` means that the changed tensor has no dimensions.
    ///
    /// # Errors
    /// `DTypeMismatch` for operations and dtypes that are not supported, and if PyTorch would refuse to convert the
    /// result back to `own`.
    pub(super) fn common_dtype(self, own: DType, is_zero_dim: bool, other: OtherDType) -> Result<DType> {
        let (OtherDType::Number(theirs) | OtherDType::ZeroDim(theirs) | OtherDType::WithDims(theirs)) = other;
        let refuse = |why: String| {
            Err(Error::new(ErrorKind::DTypeMismatch, format!("{} of {own} and {theirs}: {why}", self.name())))
        };
        if self == Op::Sub && (own == DType::Bool || theirs == DType::Bool) {
            return refuse("bools cannot be subtracted; convert with to_dtype".to_owned());
        }
        if let Some(small) = [own, theirs].into_iter().find(|&dtype| class(dtype).is_none()) {
            return refuse(format!("there is no arithmetic on {small}; convert with to_dtype"));
        }
        let promoted = match other {
            OtherDType::ZeroDim(_) if !is_zero_dim => promote_by_class(own, theirs),
            OtherDType::Number(_) => promote_by_class(own, theirs),
            OtherDType::ZeroDim(_) | OtherDType::WithDims(_) => promote(own, theirs),
        };
        let Some(promoted) = promoted else {
            return refuse("they have no common dtype; convert one with to_dtype".to_owned());
        };
        // True division of integers returns floats.
        let common =
            if self == Op::Div && class(promoted) <= Some(Class::Int) { DType::F32 } else { promoted };
        if class(common) > class(own) {
            return refuse(format!(
                "the result is {common}, which cannot be cast back to {own}; save the tensor as {common}, by \
                 to_dtype and save_as"
            ));
        }
        Ok(common)
    }

    /// Combines each element of `lhs` with the one at the same position in `rhs`, or with its only element. `dtype`
    /// must be a result of [`compute_dtype`].
    pub(super) fn apply(self, dtype: DType, lhs: &mut [u8], rhs: &[u8]) {
        match dtype {
            DType::Bool => self.each::<bool, 1>(lhs, rhs),
            DType::U8 => self.each::<u8, 1>(lhs, rhs),
            DType::U16 => self.each::<u16, 2>(lhs, rhs),
            DType::U32 => self.each::<u32, 4>(lhs, rhs),
            DType::U64 => self.each::<u64, 8>(lhs, rhs),
            DType::I8 => self.each::<i8, 1>(lhs, rhs),
            DType::I16 => self.each::<i16, 2>(lhs, rhs),
            DType::I32 => self.each::<i32, 4>(lhs, rhs),
            DType::I64 => self.each::<i64, 8>(lhs, rhs),
            DType::F32 => self.each::<f32, 4>(lhs, rhs),
            DType::F64 => self.each::<f64, 8>(lhs, rhs),
            DType::C64 => self.each::<Complex<f32>, 8>(lhs, rhs),
            _ => self.each::<Complex<f64>, 16>(lhs, rhs),
        }
    }

    fn each<T: Number<W>, const W: usize>(self, lhs: &mut [u8], rhs: &[u8]) {
        match self {
            Op::Add => zip(lhs, rhs, T::plus),
            Op::Sub => zip(lhs, rhs, T::minus),
            Op::Mul => zip(lhs, rhs, T::times),
            Op::Div => zip(lhs, rhs, T::over),
        }
    }
}

/// Returns the dtype in which elements are computed. 16-bit floats are computed as `float32` and then rounded.
pub(super) fn compute_dtype(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        dtype => dtype,
    }
}

/// Returns the dtype of a number before it is combined with a tensor.
pub(super) fn dtype_of(number: Scalar) -> DType {
    match number {
        Scalar::Bool(_) => DType::Bool,
        Scalar::Int(_) => DType::I64,
        Scalar::Float(_) => DType::F32,
        Scalar::Complex(..) => DType::C64,
        Scalar::Pair(..) => DType::F4E2M1FNx2,
    }
}

/// The class of a dtype. Values of a higher class are not converted back to a lower one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Bool,
    Int,
    Float,
    Complex,
}

/// Returns `None` for dtypes without arithmetic.
fn class(dtype: DType) -> Option<Class> {
    match dtype {
        DType::Bool => Some(Class::Bool),
        DType::F16 | DType::BF16 | DType::F32 | DType::F64 => Some(Class::Float),
        DType::C64 | DType::C128 => Some(Class::Complex),
        dtype if dtype.is_floating_point() => None,
        _ => Some(Class::Int),
    }
}

/// Returns `preferred`. If `other` is of a higher class, returns the common dtype of both.
fn promote_by_class(preferred: DType, other: DType) -> Option<DType> {
    if class(other) <= class(preferred) { Some(preferred) } else { promote(preferred, other) }
}

/// Returns PyTorch's common dtype of both. An unsigned integer wider than 8 bits has one only with itself and with
/// floats.
fn promote(a: DType, b: DType) -> Option<DType> {
    let (low, high) = if class(a) <= class(b) { (a, b) } else { (b, a) };
    let is_wide_unsigned = |dtype| matches!(dtype, DType::U16 | DType::U32 | DType::U64);
    if a == b {
        return Some(a);
    }
    if is_wide_unsigned(a) || is_wide_unsigned(b) {
        return (class(high) == Some(Class::Float)).then_some(high);
    }
    match class(high)? {
        Class::Complex if [a, b].contains(&DType::C128) || low == DType::F64 => Some(DType::C128),
        Class::Complex => Some(DType::C64),
        _ if class(low) < class(high) => Some(high),
        Class::Float if a.itemsize() == b.itemsize() => Some(DType::F32),
        Class::Int if [a, b].contains(&DType::U8) && [a, b].contains(&DType::I8) => Some(DType::I16),
        _ => Some(if a.itemsize() > b.itemsize() { a } else { b }),
    }
}

fn zip<T: Number<W>, const W: usize>(lhs: &mut [u8], rhs: &[u8], combine: impl Fn(T, T) -> T) {
    let lhs = lhs.as_chunks_mut::<W>().0;
    match rhs.as_chunks::<W>().0 {
        [only] => {
            let right = T::load(*only);
            lhs.iter_mut().for_each(|left| *left = combine(T::load(*left), right).store());
        }
        rhs => {
            lhs.iter_mut()
                .zip(rhs)
                .for_each(|(left, right)| *left = combine(T::load(*left), T::load(*right)).store());
        }
    }
}

trait Number<const W: usize>: Copy {
    fn load(bytes: [u8; W]) -> Self;
    fn store(self) -> [u8; W];
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn over(self, other: Self) -> Self;
}

macro_rules! numbers {
    ($($type:ty, $width:literal: |$a:ident, $b:ident| $plus:expr, $minus:expr, $times:expr, $over:expr;)*) => {$(
        impl Number<$width> for $type {
            fn load(bytes: [u8; $width]) -> Self {
                <$type>::from_le_bytes(bytes)
            }
            fn store(self) -> [u8; $width] {
                self.to_le_bytes()
            }
            fn plus(self, $b: Self) -> Self {
                let $a = self;
                $plus
            }
            fn minus(self, $b: Self) -> Self {
                let $a = self;
                $minus
            }
            fn times(self, $b: Self) -> Self {
                let $a = self;
                $times
            }
            fn over(self, $b: Self) -> Self {
                let $a = self;
                $over
            }
        }
    )*};
}

/// Integers wrap. They are never divided, because `common_dtype` converts them to floats.
macro_rules! integers {
    ($($type:ty, $width:literal;)*) => {
        numbers! {$(
            $type, $width: |a, b| a.wrapping_add(b), a.wrapping_sub(b), a.wrapping_mul(b), a.checked_div(b).unwrap_or(0);
        )*}
    };
}

integers! { u8, 1; u16, 2; u32, 4; u64, 8; i8, 1; i16, 2; i32, 4; i64, 8; }

numbers! {
    f32, 4: |a, b| a + b, a - b, a * b, a / b;
    f64, 8: |a, b| a + b, a - b, a * b, a / b;
}

macro_rules! complex {
    ($($part:ty, $width:literal;)*) => {$(
        impl Number<$width> for Complex<$part> {
            fn load(bytes: [u8; $width]) -> Self {
                let [re, im]: [[u8; $width / 2]; 2] = bytemuck::cast(bytes);
                Complex::new(<$part>::from_le_bytes(re), <$part>::from_le_bytes(im))
            }
            fn store(self) -> [u8; $width] {
                bytemuck::cast([self.re.to_le_bytes(), self.im.to_le_bytes()])
            }
            fn plus(self, other: Self) -> Self {
                self + other
            }
            fn minus(self, other: Self) -> Self {
                self - other
            }
            fn times(self, other: Self) -> Self {
                self * other
            }
            /// Smith's method, as in PyTorch: it works even if the squares of the parts overflow.
            fn over(self, other: Self) -> Self {
                let Complex { re: c, im: d } = other;
                if c == 0. && d == 0. {
                    Complex::new(self.re / c.abs(), self.im / c.abs())
                } else if c.abs() >= d.abs() {
                    let (ratio, scale) = (d / c, 1. / (c + d * (d / c)));
                    Complex::new(self.re + self.im * ratio, self.im - self.re * ratio) * scale
                } else {
                    let (ratio, scale) = (c / d, 1. / (c * (c / d) + d));
                    Complex::new(self.re * ratio + self.im, self.im * ratio - self.re) * scale
                }
            }
        }
    )*};
}

complex! { f32, 8; f64, 16; }

/// The sum of bools is `or`, and their product is `and`, as in PyTorch.
impl Number<1> for bool {
    fn load([byte]: [u8; 1]) -> Self {
        byte != 0
    }
    fn store(self) -> [u8; 1] {
        [self.into()]
    }
    fn plus(self, other: Self) -> Self {
        self | other
    }
    fn minus(self, other: Self) -> Self {
        self ^ other
    }
    fn times(self, other: Self) -> Self {
        self & other
    }
    fn over(self, other: Self) -> Self {
        self & other
    }
}
