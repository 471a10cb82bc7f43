//! Lending tensors to other libraries, and borrowing theirs.

use std::sync::atomic::{AtomicPtr, Ordering};

use dlpark::ffi::{DLDevice, DLDeviceType};
use dlpark::metadata::Dynamic;
use dlpark::{AllocationDeleter, DlpackFlags, Managed, ManagedTensorBase, TensorRef, versioned};
use stridemap_format::{DType, Header};

use super::dtype;
use crate::error::{Error, ErrorKind, FormatContext, Result};
use crate::layout::{self, strides_with_unused_as_one};
use crate::storage::Storage;
use crate::tensor::Tensor;

/// Exchange with other libraries in this process, by DLPack (feature `dlpack`). The types are those of `dlpark` 0.10,
/// which can also put them into Python capsules.
impl Tensor {
    /// Lends the elements to another library without copying them, whatever the strides. The returned value keeps the
    /// storage alive, mapped or on the heap, until the consumer calls the deleter, on any thread. For a consumer that
    /// needs a raw pointer, use [`into_raw`](Managed::into_raw).
    ///
    /// The memory is flagged read-only. NumPy respects the flag, but PyTorch ignores it, so call `clone()` there
    /// before changing anything. Writing to a mapped file ends the process. The older `DLManagedTensor` has no such
    /// flag, and is not supported for lending. PyTorch refuses negative strides. A dimension of size 1 is lent with a
    /// stride of 1, as in PyTorch.
    ///
    /// ```
    /// use stridemap::Tensor;
    ///
    /// let points = Tensor::from_vec(vec![1f32, 4., 2., 1., 3., 5.], &[3, 2])?;
    /// let lent = points.t()?.to_dlpack()?;
    /// assert_eq!(lent.validate()?.shape(), [2, 3]);
    /// assert_eq!(lent.validate()?.strides(), Some(&[1, 2][..]));
    ///
    /// // SAFETY: the elements are those of `points`, to which nobody writes.
    /// let again = unsafe { Tensor::from_dlpack(lent)? };
    /// assert_eq!(again.read::<f32>()?, [1., 2., 3., 4., 1., 5.]);
    /// assert_eq!(again.t()?.as_slice::<f32>()?.as_ptr(), points.as_slice::<f32>()?.as_ptr());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NeedsCopy`] for misaligned elements, for a file that is not mapped, and for mutable and live
    /// storages, whose elements may change: use [`clone_data`](Self::clone_data) and lend the copy;
    /// [`ErrorKind::InvalidArgument`] for bytes that are not valid `bool`s; [`ErrorKind::DTypeMismatch`] for a dtype
    /// that DLPack does not have; [`ErrorKind::LimitExceeded`] for a tensor that DLPack cannot describe.
    pub fn to_dlpack(&self) -> Result<versioned::Dlpack> {
        const OP: &str = "to_dlpack";
        let advised = |e: Error| match e.kind() {
            ErrorKind::NeedsCopy => e.advised("clone_data makes a copy that can be lent"),
            _ => e,
        };
        let run: &[u8] = self.borrow_span(OP).map_err(advised)?;
        if self.dtype() == DType::Bool {
            self.borrow_span::<bool>(OP)?;
        }
        let not_describable = |e: &dyn std::fmt::Display| {
            Error::new(ErrorKind::LimitExceeded, format!("{OP}: {self:?} cannot be described by DLPack: {e}"))
        };
        let stride = strides_with_unused_as_one(self.header());
        let prepared =
            Dynamic::new(self.size(), stride.as_slice()).prepare().map_err(|e| not_describable(&e))?;
        let foreign = dtype::to_dlpack(self.dtype()).ok_or_else(|| {
            Error::new(ErrorKind::DTypeMismatch, format!("{OP}: DLPack has no dtype like {}", self.dtype()))
        })?;
        let mut lent = prepared.initialize(Box::new(self.clone()));
        if self.numel() > 0 {
            let extent = self.header().extent(self.storage().length_bytes());
            let lowest = extent.refused_to(OP)?.start_bytes();
            let first = self.storage_offset() * self.dtype().itemsize() - lowest as usize;
            // Computed from the start of the run: with a negative stride, elements precede the first one.
            let data = run.as_ptr().wrapping_add(first);
            if !data.addr().is_multiple_of(alignment(self.dtype())) {
                let message = format!("{OP}: the elements are not aligned in memory; use clone_data");
                return Err(Error::new(ErrorKind::NeedsCopy, message));
            }
            lent.set_data(data.cast_mut().cast());
        }
        // The pointer is to the first element, because some consumers do not add the offset.
        lent.set_byte_offset(0).set_dtype(foreign).set_device(DLDevice::CPU);
        lent.set_flags(DlpackFlags::READ_ONLY).map_err(|e| not_describable(&e))?;
        #[expect(unsafe_code, reason = "asserts that the descriptor matches the lent memory")]
        // SAFETY: `finish` asks that the descriptor satisfy DLPack's contract:
        // - data: `run` is all bytes that size and stride reach from the first element, and is empty if there are no
        //   elements; the bytes are aligned to their dtype, whose bits `foreign` describes, and are initialised,
        //   because they were a `&[u8]`;
        // - alive: until its deleter is called, which drops a clone of this tensor. The clone keeps the storage
        //   alive, whose bytes do not move until it is dropped. They are not bytes of an unmapped file, nor bytes
        //   under a lock: both return `Err` above. The clone is `Send`;
        // - shape and strides: explicit, and copied into the allocation of the managed tensor;
        // - flags: the bytes are also lent to others as `&[u8]`, so the flags say read-only and not copied.
        Ok(unsafe { lent.finish() })
    }

    /// Creates a tensor over elements in memory that another library lends, without copying them, whatever the
    /// strides. The lender's deleter is called when the last tensor on the storage is dropped, on any thread, or when
    /// this returns an error.
    ///
    /// Only CPU memory is supported. Tensors of PyTorch, NumPy and others are passed in through
    /// [`Managed::from_raw`], from the pointer in the capsule that `__dlpack__` returns.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// let x = Tensor::from_vec(vec![1i64, 2], &[2])?;
    /// // SAFETY: the elements are those of `x`, which nothing writes.
    /// let y = unsafe { Tensor::from_dlpack(x.to_dlpack()?)? };
    /// assert_eq!(y.read::<i64>()?, [1, 2]);
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Safety
    /// - The descriptor must be correct: the memory from the lowest to the highest element that size, strides and
    ///   offset reach must be in one allocation, and initialised. This must hold until the deleter is called or,
    ///   without a deleter, until the last tensor on the storage is dropped.
    /// - Until then nothing may write to any byte of that run, including bytes between the elements: neither the
    ///   lender, nor another library that borrows it.
    /// - The deleter must be callable on any thread.
    ///
    /// # Errors
    /// By [`ErrorKind`]: `DTypeMismatch` for elements without a [`DType`]; `InvalidArgument` for device memory, and
    /// for a descriptor that contradicts itself; `LimitExceeded` for more than 64 dimensions, and for sizes that
    /// exceed the address space.
    #[expect(unsafe_code, reason = "states what DLPack's lender promises")]
    pub unsafe fn from_dlpack<M: ManagedTensorBase + 'static>(lent: Managed<M>) -> Result<Tensor> {
        let (header, run) = {
            let descriptor = lent.validate().map_err(|e| refused(ErrorKind::InvalidArgument, e))?;
            let is_padded = lent.flags().contains(DlpackFlags::IS_SUBBYTE_TYPE_PADDED);
            header_of(&descriptor, dtype_of(&descriptor, is_padded)?)?
        };
        let storage = match run {
            None => Storage::on_heap([]),
            Some((start, length_bytes)) => Storage::on_heap(Lent {
                start: AtomicPtr::new(start.cast_mut()),
                length_bytes,
                _deleter: lent.into_deleter(),
            }),
        };
        Tensor::new(storage, header).refused_to("from_dlpack")
    }
}

/// The bytes that another library lends, from the lowest to the highest element. Only [`Tensor::from_dlpack`] creates
/// this value, under its contract.
struct Lent {
    /// Atomic only to be `Sync`; it never changes.
    start: AtomicPtr<u8>,
    length_bytes: usize,
    _deleter: AllocationDeleter,
}

impl AsRef<[u8]> for Lent {
    #[expect(unsafe_code, reason = "reads what another library lends")]
    fn as_ref(&self) -> &[u8] {
        // SAFETY: by the contract of `from_dlpack`, which is the only function that makes a `Lent`, and has checked
        // that the length fits:
        // - in bounds, in one allocation, initialised: the run is what the lender's descriptor reaches;
        // - alive: the deleter is called when `self` is dropped, and `self` is borrowed for as long as the slice;
        // - no concurrent write: nothing writes to any byte of the run until then, and here it is only read;
        // - aligned, not null: they are bytes, and `header_of` has refused null.
        unsafe { std::slice::from_raw_parts(self.start.load(Ordering::Relaxed), self.length_bytes) }
    }
}

fn refused(kind: ErrorKind, what: impl std::fmt::Display) -> Error {
    Error::new(kind, format!("from_dlpack: {what}"))
}

fn dtype_of(descriptor: &TensorRef<'_>, is_padded: bool) -> Result<DType> {
    let device = descriptor.device();
    if device.device_type != DLDeviceType::CPU {
        let (kind, number) = (device.device_type.0, device.device_id);
        let what = format!(
            "the elements are on device {number} of kind {kind}, not in CPU memory; copy them to the CPU"
        );
        return Err(refused(ErrorKind::InvalidArgument, what));
    }
    let foreign = descriptor.dtype();
    match dtype::from_dlpack(foreign) {
        Some(DType::F4E2M1FNx2) if is_padded => Err(refused(
            ErrorKind::DTypeMismatch,
            "each float4 has a byte of its own, but two must share one",
        )),
        Some(dtype) => Ok(dtype),
        None => {
            let what = format!(
                "no dtype corresponds to {}; convert the elements in that library",
                dtype::name(foreign)
            );
            Err(refused(ErrorKind::DTypeMismatch, what))
        }
    }
}

/// Returns the run of memory from the lowest to the highest element, as its start and its length in bytes, and the
/// header over it. If there are no elements, there is no run.
fn header_of(descriptor: &TensorRef<'_>, dtype: DType) -> Result<(Header, Option<(*const u8, usize)>)> {
    let too_far = || refused(ErrorKind::LimitExceeded, "sizes and strides reach beyond the address space");
    let size = descriptor.shape().iter().map(|&n| usize::try_from(n)).collect::<Result<Vec<_>, _>>();
    let size = size.map_err(|_| too_far())?;
    if descriptor.num_elements() == 0 {
        return Ok((layout::contiguous(dtype, &size)?, None));
    }
    let stride = descriptor.strides_or_compact().map_err(|e| refused(ErrorKind::InvalidArgument, e))?;
    let stride: Vec<isize> = stride.iter().map(|&step| step as isize).collect();
    // With the right offset below.
    let header = Header::new(dtype, size, stride, 0).refused_to("from_dlpack")?;
    let reaches = header.dims().map(|(n, step)| (n as i128 - 1) * step as i128);
    let (mut lowest, mut highest) = (0i128, 0i128);
    for reach in reaches {
        lowest = lowest.checked_add(reach.min(0)).ok_or_else(too_far)?;
        highest = highest.checked_add(reach.max(0)).ok_or_else(too_far)?;
    }
    let bytes = |elems: Option<i128>| {
        let bytes = elems.and_then(|elems| elems.checked_mul(dtype.itemsize() as i128));
        bytes.and_then(|bytes| isize::try_from(bytes).ok()).ok_or_else(too_far)
    };
    let (before_bytes, after_bytes) = (bytes(lowest.checked_neg())?, bytes(highest.checked_add(1))?);
    let length_bytes = before_bytes.checked_add(after_bytes).ok_or_else(too_far)?;
    if descriptor.data_ptr().is_null() {
        return Err(refused(ErrorKind::InvalidArgument, "the pointer to the elements is null"));
    }
    let data = descriptor.data_ptr().cast::<u8>();
    let offset_bytes = usize::try_from(descriptor.byte_offset()).map_err(|_| too_far())?;
    let start =
        data.addr().checked_add(offset_bytes).and_then(|first| first.checked_add_signed(-before_bytes));
    let end = start.filter(|&start| start > 0).and_then(|start| start.checked_add_signed(length_bytes));
    end.ok_or_else(too_far)?;
    let start = data.wrapping_add(offset_bytes).wrapping_offset(-before_bytes);
    let header = header.with_storage_offset(before_bytes as usize / dtype.itemsize());
    Ok((header, Some((start, length_bytes as usize))))
}

/// Returns the alignment of an element, in bytes.
fn alignment(dtype: DType) -> usize {
    match dtype {
        DType::C64 | DType::C128 => dtype.itemsize() / 2,
        _ => dtype.itemsize(),
    }
}
