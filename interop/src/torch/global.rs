//! The few Python names that a checkpoint of tensors needs. All others are refused.

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
}

const NAMES: [(&str, &str, Global); 22] = [
    ("collections", "OrderedDict", Global::OrderedDict),
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
const DICT: &str = "save dict(x)";
const SET: &str = "a set, whose members have no names; save a list";
const BYTES: &str = "bytes, which are neither tensors nor text";

/// PyTorch's element types that stridemap does not have.
const OTHER_DTYPES: &str = "complex32 qint8 quint8 qint32 quint4x2 quint2x4 bits1x8 bits2x4 bits4x2 bits8 bits16 \
                            uint1 uint2 uint3 uint4 uint5 uint6 uint7 int1 int2 int3 int4 int5 int6 int7";

/// Names that users meet, and advice for the error.
const REASONS: [(&str, &str); 21] = [
    ("torch._utils._rebuild_sparse_tensor", "a sparse tensor has no strides; save its indices and values"),
    (
        "torch._utils._rebuild_qtensor",
        "the elements of a quantized tensor need its scales; save int_repr() and the scales",
    ),
    ("torch._utils._rebuild_nested_tensor", "a nested tensor has no strides; save its parts"),
    ("torch._utils._rebuild_meta_tensor_no_storage", "a tensor on the meta device has no elements"),
    ("torch._utils._rebuild_wrapper_subclass", "a subclass of Tensor; save what it wraps"),
    ("torch._tensor._rebuild_from_type", "a subclass of Tensor; save what it wraps"),
    (
        "torch._tensor._rebuild_from_type_v2",
        "a subclass of Tensor, or one with attributes; save x.detach().clone()",
    ),
    ("torch.storage._load_from_bytes", "a pickle inside the pickle"),
    ("torch._C.Generator", "save its get_state(), which is a tensor"),
    ("argparse.Namespace", "save vars(x)"),
    ("numpy._core.multiarray.scalar", NUMPY_NUMBER),
    ("numpy.core.multiarray.scalar", NUMPY_NUMBER),
    ("numpy._core.multiarray._reconstruct", NUMPY_ARRAY),
    ("numpy.core.multiarray._reconstruct", NUMPY_ARRAY),
    ("collections.defaultdict", DICT),
    ("collections.Counter", DICT),
    ("builtins.set", SET),
    ("builtins.frozenset", SET),
    ("_codecs.encode", BYTES),
    ("builtins.bytearray", BYTES),
    ("builtins.complex", "a complex number; save it as a tensor"),
];

impl Global {
    /// Returns the meaning of a Python name.
    ///
    /// # Errors
    /// Any unknown name is refused, wherever it appears. The error states the name.
    pub(super) fn of(module: &str, name: &str) -> Result<Self, String> {
        let known = NAMES.iter().find(|&&(its_module, its_name, _)| its_module == module && its_name == name);
        if let Some(&(.., known)) = known {
            return Ok(known);
        }
        if module == "torch" {
            if let Ok(dtype) = name.parse() {
                return Ok(Global::DType(dtype));
            }
            if OTHER_DTYPES.split(' ').any(|other| other == name) {
                return Err(format!(
                    "uses torch.{name}, which stridemap does not have; convert it with to(), or view it as bytes"
                ));
            }
            if let Some(kind) = name.strip_suffix("Storage").filter(|kind| kind.starts_with('Q')) {
                return Err(format!(
                    "uses torch.{kind}Storage, whose quantized elements need their scales; save int_repr() and the scales"
                ));
            }
        }
        // torch.save still writes `__builtin__`, Python 2's name of the module `builtins`.
        let module = if module == "__builtin__" { "builtins" } else { module };
        let full = format!("{module}.{name}");
        let reason = REASONS.iter().find(|&&(its_name, _)| its_name == full).map(|&(_, reason)| reason);
        let reason =
            reason.unwrap_or("only tensors, dicts, lists and plain values are read; save a state_dict()");
        Err(format!("calls {full}, which is code and is not run: {reason}"))
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
            assert!(known.name().ends_with(&format!(".{name}")));
            assert!(
                Global::of("os", name).unwrap_err().starts_with(&format!("calls os.{name}, which is code"))
            );
        }
        for &dtype in DType::ALL {
            assert_eq!(Global::of("torch", dtype.name()), Ok(Global::DType(dtype)));
        }
        for (module, name) in [
            ("os", "system"),
            ("builtins", "print"),
            ("torch", "load"),
            ("torch", "QInt8Storage"),
            ("torch", "complex32"),
            ("numpy._core.multiarray", "scalar"),
            ("torch", ""),
            ("torch.storage", "_load_from_bytes"),
            ("torch._utils", "_rebuild_sparse_tensor"),
        ] {
            let said = Global::of(module, name).unwrap_err();
            assert!(said.contains(&format!("{module}.{name}")), "{said}");
        }
        for (module, name, said) in [
            ("__builtin__", "set", "calls builtins.set, which is code and is not run: a set"),
            ("torch", "complex32", "uses torch.complex32, which stridemap does not have; convert"),
            ("numpy.core.multiarray", "scalar", "save the result of its item()"),
            ("_codecs", "encode", "bytes, which are neither"),
        ] {
            let refusal = Global::of(module, name).unwrap_err();
            assert!(refusal.contains(said), "{refusal}");
        }
    }
}
