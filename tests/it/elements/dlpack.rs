//! Tensors exchanged with other libraries in the process. The other side is `dlpark`, which shares only the bytes of
//! the descriptors. The dtype codes are those of PyTorch 2.15.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use dlpark::ffi::{
    DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned,
};
use dlpark::metadata::Dynamic;
use dlpark::{DlpackFlags, Managed, ManagedTensorBase};
use ndarray::ArrayViewD;
use stridemap::{DType, ErrorKind, StorageKind, Store, Tensor, ix};

use crate::harness::{assert_refused, new_path, new_store, open_mapped};

/// The code, bits and lanes of each dtype.
const DTYPES: [(DType, u8, u8, u16); 21] = [
    (DType::Bool, 6, 8, 1),
    (DType::U8, 1, 8, 1),
    (DType::U16, 1, 16, 1),
    (DType::U32, 1, 32, 1),
    (DType::U64, 1, 64, 1),
    (DType::I8, 0, 8, 1),
    (DType::I16, 0, 16, 1),
    (DType::I32, 0, 32, 1),
    (DType::I64, 0, 64, 1),
    (DType::F16, 2, 16, 1),
    (DType::BF16, 4, 16, 1),
    (DType::F32, 2, 32, 1),
    (DType::F64, 2, 64, 1),
    (DType::C64, 5, 64, 1),
    (DType::C128, 5, 128, 1),
    (DType::F8E4M3FN, 10, 8, 1),
    (DType::F8E5M2, 12, 8, 1),
    (DType::F8E4M3FNUZ, 11, 8, 1),
    (DType::F8E5M2FNUZ, 13, 8, 1),
    (DType::F8E8M0FNU, 14, 8, 1),
    (DType::F4E2M1FNx2, 17, 4, 2),
];

/// Takes over a tensor that a test lends.
fn import<M: ManagedTensorBase + 'static>(lent: Managed<M>) -> stridemap::Result<Tensor> {
    // SAFETY: the tests lend memory that their descriptors describe, that their boxed values keep, and that no code
    // writes.
    unsafe { Tensor::from_dlpack(lent) }
}

/// Elements that report when they are dropped.
struct Lender {
    elements: Vec<i32>,
    gone: Arc<AtomicUsize>,
}

impl Drop for Lender {
    fn drop(&mut self) {
        self.gone.fetch_add(1, Ordering::SeqCst);
    }
}

/// Lends the elements 0, 1, ... 11, with a descriptor of this size, stride and offset in bytes, changed by `change`.
fn lend<M: ManagedTensorBase>(
    (size, stride, offset_bytes): (&[i64], &[i64], u64),
    gone: &Arc<AtomicUsize>,
    change: impl FnOnce(&mut dlpark::ffi::DLTensor),
) -> Managed<M> {
    let lender = Lender { elements: (0..12).collect(), gone: Arc::clone(gone) };
    let data = lender.elements.as_ptr();
    let mut lent = Dynamic::new(size, stride).prepare_as::<M>().unwrap().initialize(Box::new(lender));
    lent.set_data(data.cast_mut().cast()).set_dtype(DLDataType::I32).set_device(DLDevice::CPU);
    lent.set_byte_offset(offset_bytes);
    change(lent.tensor_mut());
    // SAFETY: the lender is boxed into the descriptor. Invalid changes by a test are refused before memory is
    // accessed.
    unsafe { lent.finish() }
}

fn descriptor_of(
    size: &[i64],
    stride: &[i64],
    offset_bytes: u64,
) -> (Managed<DLManagedTensorVersioned>, Arc<AtomicUsize>) {
    let gone = Arc::default();
    (lend((size, stride, offset_bytes), &gone, |_| ()), gone)
}

#[test]
fn every_dtype_is_exchanged_both_ways_without_a_copy() {
    assert!(DTYPES.iter().map(|row| row.0).eq(DType::ALL.iter().copied()));
    for (dtype, code, bits, lanes) in DTYPES {
        let bytes: Vec<u8> = (0..6 * dtype.itemsize()).map(|i| (i % 2) as u8).collect();
        let tensor = Tensor::from_bytes(dtype, &[2, 3], &bytes).unwrap();
        let lent = tensor.to_dlpack().unwrap();
        let descriptor = lent.validate_export().unwrap();
        let found = descriptor.dtype();
        assert_eq!((found.code.0, found.bits, found.lanes), (code, bits, lanes), "{dtype}");
        assert_eq!((descriptor.shape(), descriptor.strides()), (&[2, 3][..], Some(&[3, 1][..])));
        assert_eq!((descriptor.device(), descriptor.byte_offset()), (DLDevice::CPU, 0));
        assert_eq!(lent.flags(), DlpackFlags::READ_ONLY);
        assert_eq!(descriptor.num_bytes(), bytes.len(), "{dtype}");
        // SAFETY: `tensor` has these elements.
        assert_eq!(unsafe { descriptor.cpu_bytes() }.unwrap(), bytes);

        let again = import(lent).unwrap();
        assert_eq!((again.dtype(), again.size(), again.stride()), (dtype, &[2, 3][..], &[3, 1][..]));
        assert_eq!(again.to_bytes().unwrap(), bytes);
        assert!(!again.shares_storage(&tensor), "a storage of its own, over the same bytes");
    }
}

#[test]
fn lent_views_keep_their_strides_and_offsets() {
    let base = Tensor::from_vec((0..24).collect::<Vec<i64>>(), &[2, 3, 4]).unwrap();
    let start = base.as_slice::<i64>().unwrap().as_ptr();
    let views = [
        base.clone(),
        base.transpose(0, 2).unwrap(),
        base.flip([0, 1, 2]).unwrap(),
        base.flip([1]).unwrap().index(ix![1, .., 1..3]).unwrap(),
        base.index(ix![.., ..;2, ..;-3]).unwrap(),
        base.select(0, 1).unwrap().unsqueeze(0).unwrap().expand([5, 3, 4]).unwrap(),
        base.index(ix![1, 2, 3]).unwrap(),
        base.unfold(2, 2, 1).unwrap(),
        base.as_strided([1, 2], [1i64 << 40, 3], 5).unwrap(),
    ];
    for view in views {
        let lent = view.to_dlpack().unwrap();
        let descriptor = lent.validate_export().unwrap();
        let dims = view.size().iter().zip(view.stride());
        let strides: Vec<i64> = dims.map(|(&n, &step)| if n < 2 { 1 } else { step as i64 }).collect();
        assert_eq!(descriptor.strides().unwrap_or_default(), strides);
        let first = start.wrapping_add(view.storage_offset());
        assert_eq!((descriptor.data_ptr(), descriptor.byte_offset()), (first.cast(), 0), "{view:?}");
        let again = import(lent).unwrap();
        let again_strides: Vec<i64> = again.stride().iter().map(|&step| step as i64).collect();
        assert_eq!((again.size(), again_strides), (view.size(), strides));
        assert_eq!(again.read::<i64>().unwrap(), view.read::<i64>().unwrap());
        let borrowed = |tensor: &Tensor| ArrayViewD::<i64>::try_from(tensor).unwrap().as_ptr();
        assert_eq!(borrowed(&again), borrowed(&view), "no copy");
    }
}

#[test]
fn tensors_without_elements_lend_no_memory() {
    for size in [&[0][..], &[3, 0, 2], &[0, 0]] {
        let tensor = Tensor::zeros(DType::F64, size).unwrap();
        let lent = tensor.to_dlpack().unwrap();
        assert!(lent.validate_export().unwrap().data_ptr().is_null());
        assert_eq!(import(lent).unwrap().size(), size);
    }
}

#[test]
fn lent_mapped_file_outlives_its_store_and_its_name() {
    let (_dir, path, store) = new_store();
    let elements: Vec<u32> = (0..3000).collect();
    store.save("x", &Tensor::from_vec(elements.clone(), &[30, 100]).unwrap()).unwrap();
    assert_refused(
        store.load("x").unwrap().to_dlpack().map(drop),
        ErrorKind::NeedsCopy,
        &["clone_data", "open_mapped"],
    );
    let copied = store.load("x").unwrap().clone_data().unwrap().to_dlpack().unwrap();

    let mapped = open_mapped(&path);
    let x = mapped.load("x").unwrap();
    let address = x.as_slice::<u32>().unwrap().as_ptr();
    let lent = x.t().unwrap().to_dlpack().unwrap();
    assert_eq!(lent.flags(), DlpackFlags::READ_ONLY);
    assert_eq!(lent.validate().unwrap().data_ptr(), address.cast());
    drop((x, mapped));
    store.remove("x").unwrap();
    store.gc().unwrap();
    drop(store);
    fs::remove_dir_all(&path).unwrap();

    let transposed = import(lent).unwrap();
    assert_eq!((transposed.size(), transposed.stride()), (&[100, 30][..], &[1, 100][..]));
    assert_eq!(transposed.t().unwrap().read::<u32>().unwrap(), elements);
    assert_eq!(import(copied).unwrap().read::<u32>().unwrap(), elements);
}

#[test]
fn mutable_and_live_tensors_are_not_lent() {
    let (_dir, path) = new_path();
    Store::create(&path).unwrap();
    let store = open_mapped(&path);
    for (kind, says) in [(StorageKind::Mutable, "lock_shared"), (StorageKind::Live, "as_live")] {
        let tensor = store.create_tensor(says, DType::F32, &[4], kind).unwrap();
        assert_refused(tensor.to_dlpack().map(drop), ErrorKind::NeedsCopy, &["clone_data", says]);
        assert!(tensor.clone_data().unwrap().to_dlpack().is_ok());
    }
}

#[test]
fn tensors_without_a_dlpack_dtype_are_not_lent() {
    let bytes = Tensor::from_vec((0..16u8).collect(), &[16]).unwrap();
    let bools = bytes.view_dtype(DType::Bool).unwrap();
    assert_refused(bools.to_dlpack().map(drop), ErrorKind::InvalidArgument, &["bools"]);
    assert!(bools.narrow(0, 0, 2).unwrap().to_dlpack().is_ok());

    // Of two pointers four bytes apart, one is misaligned for elements of eight bytes.
    let mut refused = 0;
    for offset_bytes in [0, 4] {
        let (lent, _) = descriptor_of(&[8], &[1], offset_bytes);
        let wide = import(lent).unwrap().view_dtype(DType::I64).unwrap();
        let low = offset_bytes as i64 / 4;
        assert_eq!(wide.read::<i64>().unwrap()[0], low | (low + 1) << 32);
        if wide.as_slice::<i64>().is_err() {
            assert_refused(wide.to_dlpack().map(drop), ErrorKind::NeedsCopy, &["clone_data"]);
            refused += 1;
        }
    }
    assert_eq!(refused, 1);
}

#[test]
fn deleter_of_the_lender_runs_once_when_the_last_tensor_is_dropped() {
    let (lent, gone) = descriptor_of(&[3, 4], &[4, 1], 0);
    let tensor = import(lent).unwrap();
    assert_eq!(tensor.read::<i32>().unwrap(), (0..12).collect::<Vec<_>>());
    let column = tensor.select(1, 2).unwrap();
    let relent = column.to_dlpack().unwrap();
    drop((tensor, column));
    assert_eq!(gone.load(Ordering::SeqCst), 0);
    let last = import(relent).unwrap();
    assert_eq!(last.read::<i32>().unwrap(), [2, 6, 10]);
    thread::spawn(move || drop(last)).join().unwrap();
    assert_eq!(gone.load(Ordering::SeqCst), 1);
}

#[test]
fn offsets_and_strides_of_lenders_are_followed() {
    for (size, stride, offset_bytes, expected) in [
        (&[2, 3][..], &[6, 2][..], 0, vec![0, 2, 4, 6, 8, 10]),
        (&[4], &[-2], 28, vec![7, 5, 3, 1]),
        (&[2, 2], &[-4, 3], 20, vec![5, 8, 1, 4]),
        (&[3, 2], &[0, 1], 40, vec![10, 11, 10, 11, 10, 11]),
        (&[], &[], 44, vec![11]),
        (&[1, 2], &[i64::MAX, 11], 0, vec![0, 11]),
    ] {
        let (lent, gone) = descriptor_of(size, stride, offset_bytes);
        let tensor = import(lent).unwrap();
        assert_eq!(tensor.read::<i32>().unwrap(), expected);
        let strides: Vec<isize> = stride.iter().map(|&step| step as isize).collect();
        assert_eq!(tensor.stride(), strides);
        assert_eq!(gone.load(Ordering::SeqCst), 0);
        drop(tensor);
        assert_eq!(gone.load(Ordering::SeqCst), 1);

        let gone = Arc::default();
        let legacy = lend::<DLManagedTensor>((size, stride, offset_bytes), &gone, |_| ());
        assert_eq!(import(legacy).unwrap().read::<i32>().unwrap(), expected);
        assert_eq!(gone.load(Ordering::SeqCst), 1);
    }
    // Before version 1.2, missing strides mean row-major order.
    let gone = Arc::default();
    let legacy =
        lend::<DLManagedTensor>((&[2, 3], &[9, 9], 4), &gone, |tensor| tensor.strides = std::ptr::null_mut());
    let tensor = import(legacy).unwrap();
    assert_eq!((tensor.stride(), tensor.read::<i32>().unwrap()), (&[3, 1][..], vec![1, 2, 3, 4, 5, 6]));
}

#[test]
fn borrowed_tensors_are_saved_like_any_other() {
    let (_dir, _, store) = new_store();
    let (lent, gone) = descriptor_of(&[3], &[-5], 44);
    store.save("x", &import(lent).unwrap()).unwrap();
    assert_eq!(gone.load(Ordering::SeqCst), 1);
    assert_eq!(store.load("x").unwrap().read::<i32>().unwrap(), [11, 6, 1]);
}

#[test]
fn malformed_descriptors_and_unknown_devices_are_refused_and_released() {
    type Change = fn(&mut dlpark::ffi::DLTensor);
    let cases: [(Change, ErrorKind, &[&str]); 12] = [
        (
            |t| t.device = DLDevice { device_type: DLDeviceType::CUDA, device_id: 3 },
            ErrorKind::InvalidArgument,
            &["device 3", "kind 2"],
        ),
        (
            |t| t.device = DLDevice { device_type: DLDeviceType::CUDAHOST, device_id: 0 },
            ErrorKind::InvalidArgument,
            &["kind 3"],
        ),
        (|t| t.dtype = DLDataType::F8E4M3, ErrorKind::DTypeMismatch, &["float8_e4m3 of 8 bits"]),
        (|t| t.dtype = DLDataType::F6E3M2FN, ErrorKind::DTypeMismatch, &["float6_e3m2fn of 6 bits"]),
        (
            |t| t.dtype = DLDataType::F4E2M1FN,
            ErrorKind::DTypeMismatch,
            &["float4_e2m1fn of 4 bits and 1 lanes"],
        ),
        (
            |t| t.dtype = DLDataType::new(DLDataTypeCode::FLOAT, 32, 4),
            ErrorKind::DTypeMismatch,
            &["float of 32 bits and 4 lanes"],
        ),
        (
            |t| t.dtype = DLDataType::scalar(DLDataTypeCode::INT, 128),
            ErrorKind::DTypeMismatch,
            &["int of 128 bits"],
        ),
        (|t| t.dtype = DLDataType::scalar(DLDataTypeCode(99), 8), ErrorKind::DTypeMismatch, &["code 99"]),
        (|t| t.data = std::ptr::null_mut(), ErrorKind::InvalidArgument, &["null"]),
        (|t| t.byte_offset = u64::MAX, ErrorKind::LimitExceeded, &["address space"]),
        (|t| t.shape = std::ptr::null_mut(), ErrorKind::InvalidArgument, &["shape"]),
        (|t| t.ndim = -1, ErrorKind::InvalidArgument, &["ndim"]),
    ];
    for (change, kind, says) in cases {
        let gone = Arc::default();
        let lent = lend::<DLManagedTensorVersioned>((&[2, 3], &[3, 1], 0), &gone, change);
        assert_refused(import(lent), kind, says);
        assert_eq!(gone.load(Ordering::SeqCst), 1, "the deleter of {says:?}");
    }
    let sizes: [(&[i64], &[i64], ErrorKind, &str); 6] = [
        (&[-1, 3], &[3, 1], ErrorKind::InvalidArgument, "negative"),
        (&[i64::MAX, 2], &[3, 1], ErrorKind::InvalidArgument, "bytes overflow"),
        (&[2, 3], &[i64::MAX, 1], ErrorKind::LimitExceeded, "address space"),
        (&[2, 3], &[i64::MIN, 1], ErrorKind::LimitExceeded, "address space"),
        (&[3, 3], &[i64::MIN, i64::MIN], ErrorKind::LimitExceeded, "address space"),
        (&[1; 65], &[1; 65], ErrorKind::LimitExceeded, "64"),
    ];
    for (size, stride, kind, says) in sizes {
        let (lent, gone) = descriptor_of(size, stride, 0);
        assert_refused(import(lent), kind, &["from_dlpack", says]);
        assert_eq!(gone.load(Ordering::SeqCst), 1);
    }
}
