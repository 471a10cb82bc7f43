//! Conversion of tensors between stridemap and candle.

use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, DType, Device, Error, Result, Storage, Tensor, WithDType};
use float8::F8E4M3;
use half::{bf16, f16};
use stridemap::Element;
use stridemap::small_float::{F8E4M3FN, F8E8M0FNU};

/// Copies a tensor into a candle tensor on `device`. The tensor can be in a store or on the heap, with any strides. Its
/// elements are copied in row-major order, and only once if `device` is the CPU. The elements of a mutable storage are
/// copied under its shared lock.
///
/// # Errors
/// Fails if candle does not have the dtype, if the elements cannot be read (including a lock that is held for longer
/// than the store's lock timeout), or if the device fails.
pub fn to_candle(tensor: &stridemap::Tensor, device: &Device) -> Result<Tensor> {
    use stridemap::DType as D;
    match tensor.dtype() {
        D::U8 => copy_to_candle::<u8>(tensor, device),
        D::U32 => copy_to_candle::<u32>(tensor, device),
        D::I16 => copy_to_candle::<i16>(tensor, device),
        D::I32 => copy_to_candle::<i32>(tensor, device),
        D::I64 => copy_to_candle::<i64>(tensor, device),
        D::BF16 => copy_to_candle::<bf16>(tensor, device),
        D::F16 => copy_to_candle::<f16>(tensor, device),
        D::F32 => copy_to_candle::<f32>(tensor, device),
        D::F64 => copy_to_candle::<f64>(tensor, device),
        // candle has its own types for these two dtypes. The element sizes are equal, so the vector is converted in
        // place.
        D::F8E4M3FN => {
            let elements = read::<F8E4M3FN>(tensor)?.into_iter().map(|x| F8E4M3::from_bits(x.0));
            Tensor::from_vec(elements.collect(), tensor.size(), device)
        }
        D::F8E8M0FNU => {
            let elements = read::<F8E8M0FNU>(tensor)?.into_iter().map(|x| x.0).collect();
            let storage = Storage::Cpu(CpuStorage::F8E8M0(elements));
            Tensor::from_storage(storage, tensor.size(), BackpropOp::none(), false).to_device(device)
        }
        other => Err(Error::msg(format_args!(
            "candle has no {other}; first convert the tensor with stridemap's to_dtype"
        ))),
    }
}

/// Copies a candle tensor on any device to a tensor on the heap. Its elements are copied in row-major order, and only
/// once if the candle tensor is on the CPU. The result can be saved like any other tensor.
///
/// # Errors
/// Fails for the 4- and 6-bit floats, which stridemap does not have in candle's form, or if the device fails.
pub fn from_candle(tensor: &Tensor) -> Result<stridemap::Tensor> {
    match tensor.dtype() {
        DType::U8 => copy_from_candle::<u8>(tensor),
        DType::U32 => copy_from_candle::<u32>(tensor),
        DType::I16 => copy_from_candle::<i16>(tensor),
        DType::I32 => copy_from_candle::<i32>(tensor),
        DType::I64 => copy_from_candle::<i64>(tensor),
        DType::BF16 => copy_from_candle::<bf16>(tensor),
        DType::F16 => copy_from_candle::<f16>(tensor),
        DType::F32 => copy_from_candle::<f32>(tensor),
        DType::F64 => copy_from_candle::<f64>(tensor),
        DType::F8E4M3 => {
            let elements = elements(tensor, |storage| F8E4M3::cpu_storage_as_slice(storage).ok())?;
            let elements = elements.into_iter().map(|x| F8E4M3FN(x.to_bits())).collect();
            heap_tensor::<F8E4M3FN>(elements, tensor)
        }
        DType::F8E8M0 => {
            let bytes = elements(tensor, |storage| match storage {
                CpuStorage::F8E8M0(bytes) => Some(bytes.as_slice()),
                _ => None,
            })?;
            heap_tensor(bytes.into_iter().map(F8E8M0FNU).collect(), tensor)
        }
        other => {
            let name = other.as_str();
            Err(Error::msg(format_args!(
                "stridemap has no {name} dtype; first convert the tensor with candle's to_dtype"
            )))
        }
    }
}

fn copy_to_candle<T: Element + WithDType>(tensor: &stridemap::Tensor, device: &Device) -> Result<Tensor> {
    match tensor.as_slice::<T>() {
        Ok(elements) => Tensor::from_slice(elements, tensor.size(), device),
        Err(_) => Tensor::from_vec(read::<T>(tensor)?, tensor.size(), device),
    }
}

fn read<T: Element>(tensor: &stridemap::Tensor) -> Result<Vec<T>> {
    tensor.read().map_err(Error::wrap)
}

fn copy_from_candle<T: Element + WithDType>(tensor: &Tensor) -> Result<stridemap::Tensor> {
    heap_tensor(elements(tensor, |storage| T::cpu_storage_as_slice(storage).ok())?, tensor)
}

fn heap_tensor<T: Element>(elements: Vec<T>, tensor: &Tensor) -> Result<stridemap::Tensor> {
    stridemap::Tensor::from_vec(elements, tensor.dims()).map_err(Error::wrap)
}

/// Returns the elements in row-major order. `as_slice` returns all elements of a storage.
fn elements<T: Copy>(tensor: &Tensor, as_slice: impl Fn(&CpuStorage) -> Option<&[T]>) -> Result<Vec<T>> {
    let tensor = tensor.to_device(&Device::Cpu)?;
    let (storage, layout) = tensor.storage_and_layout();
    let all = match &*storage {
        Storage::Cpu(storage) => as_slice(storage),
        _ => None,
    };
    let elements = all.and_then(|all| {
        if let Some((start, end)) = layout.contiguous_offsets() {
            return Some(all.get(start..end)?.to_vec());
        }
        // Not `collect`, which for an `Option` would not reserve the capacity.
        let mut elements = Vec::with_capacity(tensor.elem_count());
        for at in tensor.strided_index() {
            elements.push(*all.get(at)?);
        }
        Some(elements)
    });
    elements.ok_or_else(|| Error::msg(format_args!("the storage of {tensor:?} does not match its header")))
}
