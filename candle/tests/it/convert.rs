//! Conversions in both directions: every dtype, every stride, every kind of storage.

use candle_core::{D, DType, Device, Tensor};
use half::{bf16, f16};
use stridemap::{StorageKind, Store, ix};
use stridemap_candle::{from_candle, to_candle};

use stridemap::Tensor as Own;

/// The dtypes that both libraries have.
const DTYPES: [(stridemap::DType, DType); 11] = [
    (stridemap::DType::U8, DType::U8),
    (stridemap::DType::U32, DType::U32),
    (stridemap::DType::I16, DType::I16),
    (stridemap::DType::I32, DType::I32),
    (stridemap::DType::I64, DType::I64),
    (stridemap::DType::F16, DType::F16),
    (stridemap::DType::BF16, DType::BF16),
    (stridemap::DType::F32, DType::F32),
    (stridemap::DType::F64, DType::F64),
    (stridemap::DType::F8E4M3FN, DType::F8E4M3),
    (stridemap::DType::F8E8M0FNU, DType::F8E8M0),
];

#[test]
fn dtypes_of_both_libraries_keep_their_bits() {
    for (own, theirs) in DTYPES {
        let bytes: Vec<u8> = (0..24 * own.itemsize()).map(|i| (i * 37 % 251) as u8).collect();
        let tensor = Own::from_bytes(own, &[2, 3, 4], &bytes).unwrap();
        for view in [tensor.clone(), tensor.transpose(0, 2).unwrap(), tensor.flip([1]).unwrap()] {
            let converted = to_candle(&view, &Device::Cpu).unwrap();
            assert_eq!((converted.dtype(), converted.dims()), (theirs, view.size()), "{own}");
            let back = from_candle(&converted).unwrap();
            assert_eq!((back.dtype(), back.size()), (own, view.size()));
            assert_eq!(back.to_bytes().unwrap(), view.to_bytes().unwrap(), "{own}");
        }
    }
}

#[test]
fn small_float_values_are_kept() {
    let halves = Own::from_vec(vec![f16::from_f32(1.5), f16::NEG_INFINITY], &[2]).unwrap();
    let converted = to_candle(&halves, &Device::Cpu).unwrap();
    assert_eq!(converted.to_vec1::<f16>().unwrap(), [f16::from_f32(1.5), f16::NEG_INFINITY]);
    let brains = to_candle(&halves.to_dtype(stridemap::DType::BF16).unwrap(), &Device::Cpu).unwrap();
    assert_eq!(brains.to_vec1::<bf16>().unwrap(), [bf16::from_f32(1.5), bf16::NEG_INFINITY]);
    let eighths =
        Own::from_vec(vec![0.875f32, -448.0], &[2]).unwrap().to_dtype(stridemap::DType::F8E4M3FN).unwrap();
    let eighths = to_candle(&eighths, &Device::Cpu).unwrap().to_dtype(DType::F32).unwrap();
    assert_eq!(eighths.to_vec1::<f32>().unwrap(), [0.875, -448.0]);
}

#[test]
fn dtype_of_only_one_library_is_refused_by_name() {
    let shared = DTYPES.map(|(own, _)| own);
    let mut refused = 0;
    for &dtype in stridemap::DType::ALL.iter().filter(|dtype| !shared.contains(dtype)) {
        let error = to_candle(&Own::zeros(dtype, &[2]).unwrap(), &Device::Cpu).unwrap_err().to_string();
        assert!(error.contains(&format!("candle has no {dtype};")), "{error}");
        assert!(error.contains("to_dtype"), "{error}");
        refused += 1;
    }
    assert_eq!(refused, stridemap::DType::ALL.len() - DTYPES.len());
    for dtype in [DType::F6E2M3, DType::F6E3M2, DType::F4] {
        let theirs = Tensor::from_raw_buffer(&[0; 4], dtype, &[4], &Device::Cpu).unwrap();
        let error = from_candle(&theirs).unwrap_err().to_string();
        assert!(error.contains(&format!("stridemap has no {} ", dtype.as_str())), "{error}");
    }
}

#[test]
fn scalars_and_empty_tensors_keep_their_size() {
    for size in [&[][..], &[0], &[3, 0, 2], &[1, 1]] {
        let tensor = Own::zeros(stridemap::DType::F32, size).unwrap();
        let converted = to_candle(&tensor, &Device::Cpu).unwrap();
        assert_eq!(converted.dims(), size);
        assert_eq!(from_candle(&converted).unwrap().size(), size);
    }
}

#[test]
fn candle_views_are_copied_in_logical_order() {
    let base = Tensor::arange(0i64, 24, &Device::Cpu).unwrap().reshape((2, 3, 4)).unwrap();
    let views = [
        base.transpose(0, 2).unwrap(),
        base.narrow(1, 1, 2).unwrap(),
        base.narrow(0, 1, 1).unwrap(),
        base.get(1).unwrap().t().unwrap(),
        base.narrow(D::Minus1, 2, 1).unwrap().broadcast_as((2, 3, 5)).unwrap(),
    ];
    for view in views {
        let own = from_candle(&view).unwrap();
        assert_eq!(own.size(), view.dims());
        assert_eq!(own.read::<i64>().unwrap(), view.flatten_all().unwrap().to_vec1::<i64>().unwrap());
    }
}

#[test]
fn every_kind_of_storage_can_be_read_mapped_or_unmapped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.smap");
    let store = Store::create(&path).unwrap();
    let counted = Own::from_vec((0..12).collect::<Vec<i32>>(), &[3, 4]).unwrap();
    for (name, kind) in
        [("sealed", StorageKind::Sealed), ("mutable", StorageKind::Mutable), ("live", StorageKind::Live)]
    {
        store.write(|txn| txn.save_as(name, &counted, kind)).unwrap();
    }
    // SAFETY: only this test writes the store.
    let mapped = unsafe { Store::open_mapped(&path).unwrap() };
    for store in [&store, &mapped] {
        for name in ["sealed", "mutable", "live"] {
            let tensor = store.load(name).unwrap();
            for view in [tensor.clone(), tensor.t().unwrap(), tensor.index(ix![..;-1, 1..3]).unwrap()] {
                let converted = to_candle(&view, &Device::Cpu).unwrap().flatten_all().unwrap();
                assert_eq!(converted.to_vec1::<i32>().unwrap(), view.read::<i32>().unwrap(), "{name}");
            }
        }
    }
    // Read under the lock of the tensor, so not during a change.
    let mutable = store.load("mutable").unwrap();
    let guard = mutable.lock_exclusive().unwrap();
    let error = to_candle(&mutable, &Device::Cpu).unwrap_err().to_string();
    assert!(error.contains("this thread holds an exclusive guard"), "{error}");
    assert!(to_candle(&guard, &Device::Cpu).is_ok());
    drop(guard);
    assert!(to_candle(&mutable, &Device::Cpu).is_ok());
}
