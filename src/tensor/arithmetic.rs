//! Elementwise arithmetic, with PyTorch's rules for the dtype of the result.

use std::num::Wrapping;
use std::ops::{Add, Div, Mul, Sub};

use bytemuck::Pod;
use num_complex::{Complex, ComplexFloat};
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
            // The sum of bools is `or`, and their product is `and`, as in PyTorch.
            DType::Bool if self == Op::Add => {
                zip::<u8, 1>(lhs, rhs, |a, b| u8::from(a != 0 || b != 0));
            }
            DType::Bool => zip::<u8, 1>(lhs, rhs, |a, b| u8::from(a != 0 && b != 0)),
            // Integers wrap.
            DType::U8 | DType::I8 => self.each::<Wrapping<u8>, 1>(lhs, rhs, undivided),
            DType::U16 | DType::I16 => self.each::<Wrapping<u16>, 2>(lhs, rhs, undivided),
            DType::U32 | DType::I32 => self.each::<Wrapping<u32>, 4>(lhs, rhs, undivided),
            DType::U64 | DType::I64 => self.each::<Wrapping<u64>, 8>(lhs, rhs, undivided),
            DType::F32 => self.each::<f32, 4>(lhs, rhs, f32::div),
            DType::F64 => self.each::<f64, 8>(lhs, rhs, f64::div),
            DType::C64 => self.each::<Complex<f32>, 8>(lhs, rhs, quotient),
            _ => self.each::<Complex<f64>, 16>(lhs, rhs, quotient),
        }
    }

    fn each<T, const W: usize>(self, lhs: &mut [u8], rhs: &[u8], over: impl Fn(T, T) -> T)
    where
        T: Pod + Add<Output = T> + Sub<Output = T> + Mul<Output = T>,
    {
        match self {
            Op::Add => zip::<T, W>(lhs, rhs, T::add),
            Op::Sub => zip::<T, W>(lhs, rhs, T::sub),
            Op::Mul => zip::<T, W>(lhs, rhs, T::mul),
            Op::Div => zip::<T, W>(lhs, rhs, over),
        }
    }
}

/// Integers are never divided, because `common_dtype` converts them to floats.
fn undivided<T>(dividend: T, _divisor: T) -> T {
    dividend
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

fn zip<T: Pod, const W: usize>(lhs: &mut [u8], rhs: &[u8], combine: impl Fn(T, T) -> T) {
    let load = |bytes: [u8; W]| bytemuck::cast::<_, T>(bytes);
    let lhs = lhs.as_chunks_mut::<W>().0;
    match rhs.as_chunks::<W>().0 {
        [only] => {
            let right = load(*only);
            lhs.iter_mut().for_each(|left| *left = bytemuck::cast(combine(load(*left), right)));
        }
        rhs => {
            lhs.iter_mut()
                .zip(rhs)
                .for_each(|(left, right)| *left = bytemuck::cast(combine(load(*left), load(*right))));
        }
    }
}

/// Divides by Smith's method, as PyTorch does: it works even if the squares of the parts overflow.
fn quotient<T: ComplexFloat<Real = T> + PartialOrd>(
    dividend: Complex<T>,
    Complex { re: c, im: d }: Complex<T>,
) -> Complex<T> {
    let Complex { re, im } = dividend;
    if c.is_zero() && d.is_zero() {
        Complex::new(re / c.abs(), im / c.abs())
    } else if c.abs() >= d.abs() {
        let (ratio, scale) = (d / c, T::one() / (c + d * (d / c)));
        Complex::new(re + im * ratio, im - re * ratio) * scale
    } else {
        let (ratio, scale) = (c / d, T::one() / (c * (c / d) + d));
        Complex::new(re * ratio + im, im * ratio - re) * scale
    }
}
