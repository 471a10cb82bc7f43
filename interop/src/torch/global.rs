//! The few Python names that a checkpoint of tensors needs. What any other name stands for cannot be read.

use stridemap::DType;

/// The meaning of a Python name. Nothing is called: a name is only a pattern to match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Global {
    OrderedDict,
    Size,
    Device,
    DType(DType),
    /// The type of a storage's elements; `None` for untyped bytes.
    Storage(Option<DType>),
    RebuildTensor,
    RebuildTensorV2,
    RebuildTensorV3,
    RebuildParameter,
    RebuildParameterWithState,
    /// Rebuilds a tensor with one of the functions above, and sets its class and its attributes.
    RebuildFromType,
    /// `Tensor`, and the classes that mark one as a parameter or a buffer.
    TensorClass,
    /// The type of a storage of quantized elements, by the size of an element.
    QuantizedStorage(u8),
    /// A dict that makes an item on demand: its argument is a function.
    DefaultDict,
    /// A dict of counts: its argument is a dict.
    Counter,
    /// An object whose attributes are all that it is.
    Namespace,
    Set,
    /// Bytes, or a bytearray.
    Bytes,
    /// Python's way to write bytes in the protocols up to 2: as text of which each character is a byte.
    Encode,
}

const NAMES: [(&str, &str, Global); 42] = [
    ("collections", "OrderedDict", Global::OrderedDict),
    ("collections", "defaultdict", Global::DefaultDict),
    ("collections", "Counter", Global::Counter),
    ("argparse", "Namespace", Global::Namespace),
    ("types", "SimpleNamespace", Global::Namespace),
    ("builtins", "set", Global::Set),
    ("builtins", "frozenset", Global::Set),
    ("builtins", "bytes", Global::Bytes),
    ("builtins", "bytearray", Global::Bytes),
    ("_codecs", "encode", Global::Encode),
    ("torch._tensor", "_rebuild_from_type", Global::RebuildFromType),
    ("torch._tensor", "_rebuild_from_type_v2", Global::RebuildFromType),
    ("torch", "Tensor", Global::TensorClass),
    ("torch.nn.parameter", "Parameter", Global::TensorClass),
    ("torch.nn.parameter", "Buffer", Global::TensorClass),
    ("torch.nn", "Parameter", Global::TensorClass),
    ("torch", "QInt8Storage", Global::QuantizedStorage(1)),
    ("torch", "QUInt8Storage", Global::QuantizedStorage(1)),
    ("torch", "QInt32Storage", Global::QuantizedStorage(4)),
    ("torch", "QUInt4x2Storage", Global::QuantizedStorage(1)),
    ("torch", "QUInt2x4Storage", Global::QuantizedStorage(1)),
    ("torch", "Size", Global::Size),
    ("torch", "device", Global::Device),
    ("torch._utils", "_rebuild_tensor", Global::RebuildTensor),
    ("torch._utils", "_rebuild_tensor_v2", Global::RebuildTensorV2),
    ("torch._utils", "_rebuild_tensor_v3", Global::RebuildTensorV3),
    ("torch._utils", "_rebuild_parameter", Global::RebuildParameter),
    ("torch._utils", "_rebuild_parameter_with_state", Global::RebuildParameterWithState),
    ("torch", "DoubleStorage", Global::Storage(Some(DType::F64))),
    ("torch", "FloatStorage", Global::Storage(Some(DType::F32))),
    ("torch", "HalfStorage", Global::Storage(Some(DType::F16))),
    ("torch", "BFloat16Storage", Global::Storage(Some(DType::BF16))),
    ("torch", "LongStorage", Global::Storage(Some(DType::I64))),
    ("torch", "IntStorage", Global::Storage(Some(DType::I32))),
    ("torch", "ShortStorage", Global::Storage(Some(DType::I16))),
    ("torch", "CharStorage", Global::Storage(Some(DType::I8))),
    ("torch", "ByteStorage", Global::Storage(Some(DType::U8))),
    ("torch", "BoolStorage", Global::Storage(Some(DType::Bool))),
    ("torch", "ComplexDoubleStorage", Global::Storage(Some(DType::C128))),
    ("torch", "ComplexFloatStorage", Global::Storage(Some(DType::C64))),
    ("torch.storage", "UntypedStorage", Global::Storage(None)),
    ("torch", "UntypedStorage", Global::Storage(None)),
];

const NUMPY_NUMBER: &str = "a NumPy number; save the result of its item()";
const NUMPY_ARRAY: &str = "a NumPy array; save torch.from_numpy(x)";

/// PyTorch's element types that stridemap does not have.
const OTHER_DTYPES: &str = "complex32 qint8 quint8 qint32 quint4x2 quint2x4 bits1x8 bits2x4 bits4x2 bits8 bits16 \
                            uint1 uint2 uint3 uint4 uint5 uint6 uint7 int1 int2 int3 int4 int5 int6 int7";

/// Names that users meet, and advice for the error.
const REASONS: [(&str, &str); 11] = [
    ("torch._utils._rebuild_sparse_tensor", "a sparse tensor has no strides; save its indices and values"),
    (
        "torch._utils._rebuild_qtensor",
        "the elements of a quantized tensor need its scales; save int_repr() and the scales",
    ),
    ("torch._utils._rebuild_nested_tensor", "a nested tensor has no strides; save its parts"),
    ("torch._utils._rebuild_meta_tensor_no_storage", "a tensor on the meta device has no elements"),
    ("torch._utils._rebuild_wrapper_subclass", "a subclass of Tensor; save what it wraps"),
    ("torch.storage._load_from_bytes", "a pickle inside the pickle"),
    ("torch._C.Generator", "save its get_state(), which is a tensor"),
    ("numpy._core.multiarray.scalar", NUMPY_NUMBER),
    ("numpy.core.multiarray.scalar", NUMPY_NUMBER),
    ("numpy._core.multiarray._reconstruct", NUMPY_ARRAY),
    ("numpy.core.multiarray._reconstruct", NUMPY_ARRAY),
];

impl Global {
    /// Returns the meaning of a Python name, or the full name if it is not known here.
    pub(super) fn of(module: &str, name: &str) -> Result<Self, String> {
        // torch.save still writes `__builtin__`, Python 2's name of the module `builtins`.
        let module = if module == "__builtin__" { "builtins" } else { module };
        let known = NAMES.iter().find(|&&(its_module, its_name, _)| its_module == module && its_name == name);
        if let Some(&(.., known)) = known {
            return Ok(known);
        }
        let dtype = name.parse().ok().filter(|_| module == "torch");
        dtype.map(Global::DType).ok_or_else(|| format!("{module}.{name}"))
    }

    /// Returns why what an unknown name stands for cannot be read.
    pub(super) fn refusal(full: &str) -> String {
        if let Some(name) = full.strip_prefix("torch.")
            && OTHER_DTYPES.split(' ').any(|other| other == name)
        {
            return format!(
                "uses {full}, which stridemap does not have; convert it with to(), or view it as bytes"
            );
        }
        let reason = REASONS.iter().find(|&&(its_name, _)| its_name == full).map(|&(_, reason)| reason);
        let reason = reason.unwrap_or("only tensors, dicts, lists and plain values are read");
        format!("calls {full}, which is code and is not run: {reason}")
    }

    /// Returns whether this is a function that rebuilds a tensor from a storage or another tensor.
    pub(super) fn is_rebuild(self) -> bool {
        matches!(
            self,
            Global::RebuildTensor
                | Global::RebuildTensorV2
                | Global::RebuildTensorV3
                | Global::RebuildParameter
                | Global::RebuildParameterWithState
        )
    }

    /// Returns the name as errors show it.
    pub(super) fn name(self) -> String {
        let found = NAMES.iter().find(|&&(.., known)| known == self);
        match self {
            Global::DType(dtype) => format!("torch.{dtype}"),
            _ => found.map(|(module, name, _)| format!("{module}.{name}")).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_matched_by_module_and_name() {
        for (module, name, known) in NAMES {
            assert_eq!(Global::of(module, name), Ok(known));
            assert_eq!(Global::of("os", name), Err(format!("os.{name}")));
        }
        for &dtype in DType::ALL {
            assert_eq!(Global::of("torch", dtype.name()), Ok(Global::DType(dtype)));
        }
        assert_eq!(Global::of("__builtin__", "set"), Ok(Global::Set));
        for (module, name) in [
            ("os", "system"),
            ("builtins", "print"),
            ("torch", "load"),
            ("torch", "complex32"),
            ("numpy._core.multiarray", "scalar"),
            ("torch", ""),
            ("torch.storage", "_load_from_bytes"),
            ("torch._utils", "_rebuild_sparse_tensor"),
        ] {
            assert_eq!(Global::of(module, name), Err(format!("{module}.{name}")));
        }
        for (full, said) in [
            ("torch.complex32", "uses torch.complex32, which stridemap does not have; convert"),
            ("numpy.core.multiarray.scalar", "save the result of its item()"),
            ("os.system", "calls os.system, which is code and is not run: only tensors"),
        ] {
            let refusal = Global::refusal(full);
            assert!(refusal.contains(said), "{refusal}");
        }
    }
}
