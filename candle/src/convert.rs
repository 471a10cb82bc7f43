use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, DType, Device, Error, Result, Storage, Tensor, WithDType};
use float8::F8E4M3;
use half::{bf16, f16};
use stridemap::small_float::{F8E4M3FN, F8E8M0FNU};
use stridemap::{Element, ErrorKind};

/// Copies a tensor, of a store or on the heap, into a candle tensor on `device`. Elements are copied once, in
/// row-major order, whatever the strides. The elements of a mutable storage are copied under its shared lock.
///
/// # Errors
/// An error that names the dtype if candle does not have it. Errors of reading: a lock that is held for longer than
/// the store's timeout, a file that cannot be read. Errors of the device.
pub fn to_candle(tensor: &stridemap::Tensor, device: &Device) -> Result<Tensor> {
    use stridemap::DType as D;
    match tensor.dtype() {
        D::U8 => copied::<u8>(tensor, device),
        D::U32 => copied::<u32>(tensor, device),
        D::I16 => copied::<i16>(tensor, device),
        D::I32 => copied::<i32>(tensor, device),
        D::I64 => copied::<i64>(tensor, device),
        D::BF16 => copied::<bf16>(tensor, device),
        D::F16 => copied::<f16>(tensor, device),
        D::F32 => copied::<f32>(tensor, device),
        D::F64 => copied::<f64>(tensor, device),
        // candle has its own types for these two dtypes. Sizes are equal, so the vector is converted in place.
        D::F8E4M3FN => {
            let elements = read::<F8E4M3FN>(tensor)?.into_iter().map(|x| F8E4M3::from_bits(x.to_bits()));
            Tensor::from_vec(elements.collect(), tensor.size(), device)
        }
        D::F8E8M0FNU => {
            let elements = read::<F8E8M0FNU>(tensor)?.into_iter().map(F8E8M0FNU::to_bits).collect();
            let storage = Storage::Cpu(CpuStorage::F8E8M0(elements));
            Tensor::from_storage(storage, tensor.size(), BackpropOp::none(), false).to_device(device)
        }
        other => Err(Error::msg(format_args!(
            "candle has no {other}; convert the tensor by stridemap's to_dtype first"
        ))),
    }
}

/// Copies a candle tensor, on any device, onto the heap: once, in row-major order. The result can be saved like any
/// other tensor.
///
/// # Errors
/// An error that names the dtype for the 4- and 6-bit floats, which stridemap does not have in candle's form. Errors
/// of the device.
pub fn from_candle(tensor: &Tensor) -> Result<stridemap::Tensor> {
    match tensor.dtype() {
        DType::U8 => taken::<u8>(tensor),
        DType::U32 => taken::<u32>(tensor),
        DType::I16 => taken::<i16>(tensor),
        DType::I32 => taken::<i32>(tensor),
        DType::I64 => taken::<i64>(tensor),
        DType::BF16 => taken::<bf16>(tensor),
        DType::F16 => taken::<f16>(tensor),
        DType::F32 => taken::<f32>(tensor),
        DType::F64 => taken::<f64>(tensor),
        DType::F8E4M3 => {
            let elements = elements(tensor, |storage| F8E4M3::cpu_storage_as_slice(storage).ok())?;
            let elements = elements.into_iter().map(|x| F8E4M3FN::from_bits(x.to_bits())).collect();
            on_heap::<F8E4M3FN>(elements, tensor)
        }
        DType::F8E8M0 => {
            let bytes = elements(tensor, |storage| match storage {
                CpuStorage::F8E8M0(bytes) => Some(bytes.as_slice()),
                _ => None,
            })?;
            on_heap(bytes.into_iter().map(F8E8M0FNU::from_bits).collect(), tensor)
        }
        other => {
            let name = other.as_str();
            Err(Error::msg(format_args!(
                "stridemap has no {name} of candle's; convert the tensor by to_dtype first"
            )))
        }
    }
}

fn copied<T: Element + WithDType>(tensor: &stridemap::Tensor, device: &Device) -> Result<Tensor> {
    match tensor.as_slice::<T>() {
        Ok(elements) => Tensor::from_slice(elements, tensor.size(), device),
        Err(_) => Tensor::from_vec(read::<T>(tensor)?, tensor.size(), device),
    }
}

fn read<T: Element>(tensor: &stridemap::Tensor) -> Result<Vec<T>> {
    let elements = match tensor.lock_shared() {
        Ok(guard) => guard.read(),
        Err(e) if e.kind() == ErrorKind::NotMutable => tensor.read(),
        Err(e) => Err(e),
    };
    elements.map_err(Error::wrap)
}

fn taken<T: Element + WithDType>(tensor: &Tensor) -> Result<stridemap::Tensor> {
    on_heap(elements(tensor, |storage| T::cpu_storage_as_slice(storage).ok())?, tensor)
}

fn on_heap<T: Element>(elements: Vec<T>, tensor: &Tensor) -> Result<stridemap::Tensor> {
    stridemap::Tensor::from_vec(elements, tensor.dims()).map_err(Error::wrap)
}

/// Returns the elements in row-major order. `of` returns those of the whole storage.
fn elements<T: Copy>(tensor: &Tensor, of: impl Fn(&CpuStorage) -> Option<&[T]>) -> Result<Vec<T>> {
    let tensor = tensor.to_device(&Device::Cpu)?;
    let (storage, layout) = tensor.storage_and_layout();
    let all = match &*storage {
        Storage::Cpu(storage) => of(storage),
        _ => None,
    };
    let elements = all.and_then(|all| {
        if let Some((start, end)) = layout.contiguous_offsets() {
            return Some(all.get(start..end)?.to_vec());
        }
        // Not `collect`: into an `Option`, it would grow the vector by doubling.
        let mut elements = Vec::with_capacity(tensor.elem_count());
        for at in tensor.strided_index() {
            elements.push(*all.get(at)?);
        }
        Some(elements)
    });
    elements.ok_or_else(|| Error::msg(format_args!("the storage of {tensor:?} is not what its header says")))
}
