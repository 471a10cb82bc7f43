//! In-place operations under an exclusive guard: `fill_`, `copy_`, `add_` and others.

use std::iter;

use stridemap_format::DType;

use super::arithmetic::{Op, OtherDType, compute_dtype, dtype_of};
use super::cast::convert;
use super::stream::{PIECE_BYTES, for_each_piece, order_axes_like};
use super::{ExclusiveGuard, Scalar, Tensor, copy};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::layout;
use crate::storage::resize_discarding;

/// The number of elements computed at a time if all are in memory. They fit in the second-level cache.
const CACHED_ELEMS: usize = 16 << 10;

/// The operand of an in-place change: another tensor, or one number for all elements.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Operand<'a> {
    /// The elements of a tensor, broadcast.
    Tensor(&'a Tensor),
    /// A number. Only its kind (bool, integer, float or complex) affects the dtype of the result.
    Number(Scalar),
}

impl<'a> From<&'a Tensor> for Operand<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Operand::Tensor(tensor)
    }
}

impl<T: Into<Scalar>> From<T> for Operand<'_> {
    fn from(number: T) -> Self {
        Operand::Number(number.into())
    }
}

/// In-place changes of every element.
///
/// Errors common to these methods, by [`ErrorKind`](crate::ErrorKind): `SizeMismatch` if an operand does not broadcast
/// to this size, or if aligned dimensions have different names, `DTypeMismatch`, `Unsupported` if several indices refer
/// to one element, `OutOfRange` for a number that `fill_` cannot convert to the dtype (arithmetic wraps or returns
/// infinity), `Io`.
///
/// An operand on the same storage is read before the change. An operand on another mutable storage is read under its
/// shared lock, so `Busy` is possible too: two threads that each hold an exclusive guard, and read the other's tensor as
/// an operand, wait for each other until one of them fails.
impl ExclusiveGuard<'_> {
    /// Sets every element to a number, converted to the dtype.
    ///
    /// ```
    /// # use stridemap::{StorageKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.write(|txn| txn.save_as("x", &[1i16, 2, 3], StorageKind::Mutable))?;
    /// let x = store.load("x")?;
    /// x.narrow(0, 1, 2)?.lock_exclusive()?.fill_(7)?;
    /// assert_eq!(x.read::<i16>()?, [1, 7, 7]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `OutOfRange` for a number that the dtype cannot hold; `DTypeMismatch` for a number in place of a
    /// `float4_e2m1fn_x2` pair, or the reverse; `Unsupported`; `Io`.
    pub fn fill_(&mut self, value: impl Into<Scalar>) -> Result<&mut Self> {
        self.change(|guard| {
            let element = value.into().encode(guard.dtype()).context("fill_")?;
            let run = element.split_at(guard.dtype().itemsize()).0.repeat(256);
            guard.rewrite("fill_", OldElements::Ignored, &[], |out, _| {
                out.chunks_mut(run.len()).for_each(|out| out.copy_from_slice(run.split_at(out.len()).0));
                Ok(())
            })
        })
    }

    /// Copies `source` to the elements, broadcast to this size and converted to the dtype as by
    /// [`to_dtype`](Tensor::to_dtype).
    ///
    /// ```
    /// # use stridemap::{StorageKind, Store, Tensor};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.write(|txn| txn.save_as("x", &[[0f64; 2]; 3], StorageKind::Mutable))?;
    /// let row = Tensor::from_vec(vec![1i32, 2], &[2])?;
    /// let x = store.load("x")?;
    /// x.lock_exclusive()?.copy_(&row)?; // broadcast, and converted to float64
    /// assert_eq!(x.read::<f64>()?, [1., 2., 1., 2., 1., 2.]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `SizeMismatch`; `DTypeMismatch` if the dtypes cannot be converted; `Unsupported`; `Io`.
    pub fn copy_(&mut self, source: &Tensor) -> Result<&mut Self> {
        self.change(|guard| {
            let (from, to) = (source.dtype(), guard.dtype());
            // Converting no elements checks that the conversion exists, before anything is written.
            convert(from, &[], to, &mut []).context("copy_")?;
            let source = guard.operand(source)?;
            let source = guard.broadcast_operand("copy_", &source)?;
            let mut buffer = Vec::new();
            guard.rewrite("copy_", OldElements::Ignored, &[source], |out, operands| {
                operands.iter().try_for_each(|source| load_into(source, to, &mut buffer, out))
            })
        })
    }

    /// Adds `other`. The sum is computed in the dtype to which PyTorch promotes both operands, and converted back to
    /// this one. Integers wrap. 16-bit floats are computed in `float32`, but a single number is first rounded to 16
    /// bits. The sum of bools is `or`.
    ///
    /// ```
    /// # use stridemap::{StorageKind, Store, Tensor};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.write(|txn| txn.save_as("x", &Tensor::from_vec(vec![1i64, 2, 3, 4], &[2, 2])?, StorageKind::Mutable))?;
    /// let row = Tensor::from_vec(vec![10i64, 20], &[2])?;
    /// let x = store.load("x")?;
    /// x.lock_exclusive()?.add_(&row)?.add_(100)?;
    /// assert_eq!(x.read::<i64>()?, [111, 122, 113, 124]);
    /// assert_eq!(
    ///     x.lock_exclusive()?.add_(1.5).unwrap_err().to_string(),
    ///     "add_ of int64 and float32: the result is float32, which cannot be cast back to \
    ///      int64; save the tensor as float32, by to_dtype and save_as"
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `SizeMismatch`; `Unsupported`; `Io`; `DTypeMismatch` if the result is of a higher kind
    /// than this dtype (in the order bool, integer, float, complex), if two integers have no common dtype, and for
    /// floats of 8 bits and below.
    pub fn add_<'o>(&mut self, other: impl Into<Operand<'o>>) -> Result<&mut Self> {
        self.change(|guard| guard.compute("add_", Op::Add, other.into()))
    }

    /// Subtracts `other`, by the rules of [`add_`](Self::add_).
    ///
    /// ```
    /// # use stridemap::{StorageKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.write(|txn| txn.save_as("x", &[5u8, 1], StorageKind::Mutable))?;
    /// let x = store.load("x")?;
    /// x.lock_exclusive()?.sub_(2)?;
    /// assert_eq!(x.read::<u8>()?, [3, 255]); // integers wrap
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `SizeMismatch`, `Unsupported` and `Io`, as for [`add_`](Self::add_); `DTypeMismatch` for bools.
    pub fn sub_<'o>(&mut self, other: impl Into<Operand<'o>>) -> Result<&mut Self> {
        self.change(|guard| guard.compute("sub_", Op::Sub, other.into()))
    }

    /// Multiplies by `other`, by the rules of [`add_`](Self::add_), except that a single number is not rounded to 16
    /// bits first. The product of bools is `and`.
    ///
    /// ```
    /// # use stridemap::{StorageKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.write(|txn| txn.save_as("x", &[[1f32, 2.], [3., 4.]], StorageKind::Mutable))?;
    /// let x = store.load("x")?;
    /// x.lock_exclusive()?.mul_(&x.select(0, 0)?)?; // by the first row, which is read before it changes
    /// assert_eq!(x.read::<f32>()?, [1., 4., 3., 8.]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `SizeMismatch`, `Unsupported`, `Io` and `DTypeMismatch`, as for [`add_`](Self::add_).
    pub fn mul_<'o>(&mut self, other: impl Into<Operand<'o>>) -> Result<&mut Self> {
        self.change(|guard| guard.compute("mul_", Op::Mul, other.into()))
    }

    /// Divides by `other`, by the rules of [`add_`](Self::add_), except that a single number is not rounded to 16 bits
    /// first.
    ///
    /// ```
    /// # use stridemap::{StorageKind, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.write(|txn| txn.save_as("x", &[1f32, 2., 4.], StorageKind::Mutable))?;
    /// let x = store.load("x")?;
    /// x.lock_exclusive()?.div_(2)?;
    /// assert_eq!(x.read::<f32>()?, [0.5, 1., 2.]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `SizeMismatch`, `Unsupported` and `Io`, as for [`add_`](Self::add_); `DTypeMismatch` for integers and bools,
    /// whose quotients are floats.
    pub fn div_<'o>(&mut self, other: impl Into<Operand<'o>>) -> Result<&mut Self> {
        self.change(|guard| guard.compute("div_", Op::Div, other.into()))
    }

    fn compute(&mut self, op_name: &str, op: Op, other: Operand<'_>) -> Result<()> {
        let other_kind = match other {
            Operand::Number(number) => OtherDType::Number(dtype_of(number)),
            Operand::Tensor(tensor) if tensor.ndim() == 0 => OtherDType::ZeroDim(tensor.dtype()),
            Operand::Tensor(tensor) => OtherDType::WithDims(tensor.dtype()),
        };
        let own = self.dtype();
        let common = op.common_dtype(own, self.ndim() == 0, other_kind)?;
        let wide = compute_dtype(common);
        // PyTorch rounds a single number to a 16-bit dtype before addition, but not before multiplication.
        let number_dtype = if matches!(op, Op::Add | Op::Sub) { common } else { wide };
        let steady;
        let (operand, mut right) = match other {
            Operand::Number(number) => {
                let (element, mut right) = (number.cast(number_dtype)?, vec![0; wide.itemsize()]);
                convert(number_dtype, element.split_at(number_dtype.itemsize()).0, wide, &mut right)?;
                (None, right)
            }
            Operand::Tensor(tensor) => {
                steady = self.operand(tensor)?;
                let operand = self.broadcast_operand(op_name, &steady)?;
                // A single element is treated like a number: it is read once, not for each piece.
                match tensor.numel() {
                    1 => (None, steady.to_dtype(number_dtype)?.to_dtype(wide)?.to_bytes()?),
                    _ => (Some(operand), Vec::new()),
                }
            }
        };
        let (mut left, mut buffer, mut narrow) = (Vec::new(), Vec::new(), Vec::new());
        self.rewrite(op_name, OldElements::Needed, operand.as_slice(), |elements, operands| {
            let borrowed = operands.first().filter(|operand| operand.dtype() == wide);
            let borrowed = borrowed.map(Tensor::borrow_bytes).transpose()?.flatten();
            if let (Some(operand), None) = (operands.first(), borrowed) {
                resize_discarding(&mut right, operand.numel() * wide.itemsize())?;
                if common == wide {
                    load_into(operand, wide, &mut buffer, &mut right)?;
                } else {
                    resize_discarding(&mut narrow, operand.numel() * common.itemsize())?;
                    load_into(operand, common, &mut buffer, &mut narrow)?;
                    convert(common, &narrow, wide, &mut right)?;
                }
            }
            let right = borrowed.unwrap_or(&right);
            if own == wide {
                op.apply(wide, elements, right);
                return Ok(());
            }
            resize_discarding(&mut left, elements.len() / own.itemsize() * wide.itemsize())?;
            convert(own, elements, wide, &mut left)?;
            op.apply(wide, &mut left, right);
            convert(wide, &left, own, elements)
        })
    }

    /// Broadcasts `operand` to this size. Copies it first if it overlaps the elements that will change,
    /// unless it has the same dtype and layout: each element is then read before it changes.
    fn broadcast_operand(&self, op: &str, operand: &Tensor) -> Result<Tensor> {
        layout::check_names_match(self.header(), op, operand.header())?;
        let is_same = operand.header() == self.header();
        let operand =
            if !is_same && self.overlaps(operand) { operand.clone_data()? } else { operand.clone() };
        operand.expand(self.size()).map_err(|e| match e.kind() {
            ErrorKind::SizeMismatch => {
                let why = format!("{op}: {} does not broadcast to {}", operand.header(), self.header());
                Error::new(ErrorKind::SizeMismatch, why)
            }
            _ => e.context(op),
        })
    }

    /// Lets `body` write all elements piece by piece, with the matching pieces of the operands.
    fn rewrite(
        &mut self,
        op: &str,
        old_elements: OldElements,
        operands: &[Tensor],
        mut body: impl FnMut(&mut [u8], &[Tensor]) -> Result<()>,
    ) -> Result<()> {
        self.check_writable(op)?;
        if self.numel() == 0 {
            return Ok(());
        }
        let (tensor, storage) = self.parts();
        let views: Vec<Tensor> =
            iter::once(tensor).chain(operands).map(order_axes_like(tensor)).collect::<Result<_>>()?;
        let is_in_memory = operands.iter().all(|operand| operand.storage().borrow().is_some());
        let limit = if old_elements == OldElements::Needed && is_in_memory && storage.bytes_mut()?.is_some() {
            CACHED_ELEMS
        } else {
            PIECE_BYTES / views.iter().map(|view| view.dtype().itemsize()).fold(1, usize::max)
        };
        let (mut buffer, mut has_changed) = (Vec::new(), false);
        let done = for_each_piece(&views, limit, &mut |pieces| {
            let Some((piece, operands)) = pieces.split_first() else { return Ok(()) };
            if piece.is_contiguous()
                && let Some(bytes) = storage.bytes_mut()?
            {
                let done = body(bytes.get_mut(piece.byte_span(op)?).unwrap_or_default(), operands);
                // If the old elements are needed, what can fail comes before the first write.
                has_changed |= done.is_ok() || old_elements == OldElements::Ignored;
                return done;
            }
            resize_discarding(&mut buffer, piece.nbytes())?;
            if old_elements == OldElements::Needed {
                copy::gather_from(storage.bytes()?, piece, &mut buffer)?;
            }
            body(&mut buffer, operands)?;
            has_changed = true;
            copy::scatter(&buffer, piece, storage)
        });
        let is_all = tensor.is_contiguous() && tensor.nbytes() as u64 == tensor.storage().length_bytes();
        match done {
            Err(_) if has_changed => storage.note_half_changed(),
            // All elements have new values, which do not depend on those of before.
            Ok(()) if is_all && old_elements == OldElements::Ignored => storage.note_replaced(),
            _ => {}
        }
        done
    }
}

/// What an operation does with the elements that it replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OldElements {
    /// It reads them, so they must be in the buffer.
    Needed,
    /// It ignores them, so the buffer may contain anything.
    Ignored,
}

/// Reads the elements of a view and converts them to `dtype`.
fn load_into(view: &Tensor, dtype: DType, buffer: &mut Vec<u8>, out: &mut [u8]) -> Result<()> {
    if view.dtype() == dtype {
        return copy::gather(view, out);
    }
    resize_discarding(buffer, view.nbytes())?;
    copy::gather(view, buffer)?;
    convert(view.dtype(), buffer, dtype, out)
}
