//! Conversion between dtypes, against PyTorch's: `tests/data/torch_casts.jsonl`, written by `make_torch_casts.py`
//! beside it.

use serde_json::Value;
use stridemap::small_float::{F8E4M3FN, F8E8M0FNU};
use stridemap::{DType, ErrorKind, Scalar, Tensor};

use crate::support::from_base64;

const CASTS: &str = include_str!("../../data/torch_casts.jsonl");

fn tensor_of(line: &Value, dtype: &str, bytes: &str) -> Tensor {
    let dtype: DType = line[dtype].as_str().unwrap().parse().unwrap();
    let bytes = from_base64(line[bytes].as_str().unwrap());
    Tensor::from_bytes(dtype, &[bytes.len() / dtype.itemsize()], &bytes).unwrap()
}

/// Returns the bits of each element. All NaNs are equal.
fn bits(tensor: &Tensor) -> Vec<Vec<u8>> {
    let bytes = tensor.to_bytes().unwrap();
    let elements = bytes.chunks(tensor.dtype().itemsize()).map(<[u8]>::to_vec);
    let is_nan = |scalar| matches!(scalar, Scalar::Float(x) if x.is_nan());
    let scalars = tensor.to_scalars().unwrap();
    elements.zip(scalars).map(|(bits, scalar)| if is_nan(scalar) { b"NaN".to_vec() } else { bits }).collect()
}

#[test]
fn elements_convert_as_pytorch_converts_them() {
    for (number, line) in CASTS.lines().enumerate() {
        let line: Value = serde_json::from_str(line).unwrap();
        let input = tensor_of(&line, "from", "input");
        let expected = tensor_of(&line, "to", "output");
        let converted = input.to_dtype(expected.dtype()).unwrap();
        assert_eq!(converted.dtype(), expected.dtype());
        let (inputs, ours, theirs) = (input.to_scalars().unwrap(), bits(&converted), bits(&expected));
        assert_eq!(ours.len(), theirs.len());
        for ((input, ours), theirs) in inputs.iter().zip(ours).zip(theirs) {
            assert_eq!(ours, theirs, "line {}: {input:?} to {}", number + 1, expected.dtype());
        }
    }
    println!("{} rows agree", CASTS.lines().count());
    assert_eq!(CASTS.lines().count(), 145);
}

#[test]
fn every_dtype_but_packed_ones_converts_to_every_other() {
    for &from in DType::ALL {
        for &to in DType::ALL {
            let ones = Tensor::from_bytes(from, &[3], &vec![1; 3 * from.itemsize()]).unwrap();
            let converted = ones.to_dtype(to);
            if from != to && [from, to].contains(&DType::F4E2M1FNx2) {
                assert_eq!(converted.unwrap_err().kind(), ErrorKind::DTypeMismatch);
                let none = Tensor::from_bytes(from, &[0], &[]).unwrap();
                assert_eq!(none.to_dtype(to).unwrap_err().kind(), ErrorKind::DTypeMismatch);
            } else {
                let converted = converted.unwrap();
                assert_eq!((converted.dtype(), converted.size()), (to, &[3][..]));
                assert_eq!(converted.shares_storage(&ones), from == to);
            }
        }
    }
}

#[test]
fn floats_out_of_range_convert_to_the_nearest_integer() {
    let beyond = Tensor::from_vec(vec![f64::INFINITY, -1e30, f64::NAN, -1.5], &[4]).unwrap();
    assert_eq!(beyond.to_dtype(DType::I32).unwrap().read::<i32>().unwrap(), [i32::MAX, i32::MIN, 0, -1]);
    assert_eq!(beyond.to_dtype(DType::I64).unwrap().read::<i64>().unwrap(), [i64::MAX, i64::MIN, 0, -1]);
    assert_eq!(beyond.to_dtype(DType::U8).unwrap().read::<u8>().unwrap(), [255, 0, 0, 255]);
    let large = Tensor::from_vec(vec![1e19, -1., f64::INFINITY], &[3]).unwrap();
    let expected = [10_000_000_000_000_000_000, u64::MAX, u64::MAX];
    assert_eq!(large.to_dtype(DType::U64).unwrap().read::<u64>().unwrap(), expected);
}

#[test]
fn large_view_converts_in_row_major_order() {
    // 12 MB, which is more than a piece.
    let wide = Tensor::from_vec((0..3_000_000).collect::<Vec<i32>>(), &[1500, 2000]).unwrap();
    let turned = wide.t().unwrap().flip([0]).unwrap();
    let converted = turned.to_dtype(DType::F64).unwrap();
    assert!(converted.is_contiguous());
    let expected: Vec<f64> = turned.read::<i32>().unwrap().into_iter().map(f64::from).collect();
    assert_eq!(converted.read::<f64>().unwrap(), expected);
}

#[test]
fn nonzero_complex_numbers_are_true() {
    let numbers = [[0f32, 0.], [0., 2.], [3., 0.], [-0., 0.]].concat();
    let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    let complex = Tensor::from_bytes(DType::C64, &[4], &bytes).unwrap();
    assert_eq!(complex.to_dtype(DType::Bool).unwrap().read::<bool>().unwrap(), [false, true, true, false]);
    assert_eq!(complex.to_dtype(DType::I8).unwrap().read::<i8>().unwrap(), [0, 0, 3, 0]);
}

#[test]
fn small_float_types_are_element_types() {
    let wide = Tensor::from_vec(vec![0.3f32, -7., 1e9, f32::NAN], &[4]).unwrap();
    let eights = wide.to_dtype(DType::F8E4M3FN).unwrap();
    let expected = [0.3125, -7., 448.].map(F8E4M3FN::from);
    assert_eq!(eights.as_slice::<F8E4M3FN>().unwrap()[..3], expected);
    assert_eq!(eights.narrow(0, 0, 3).unwrap().read::<F8E4M3FN>().unwrap(), expected);
    assert!(f32::from(eights.get::<F8E4M3FN>(&[3]).unwrap()).is_nan());
    assert_eq!(eights.read::<F8E8M0FNU>().unwrap_err().kind(), ErrorKind::DTypeMismatch);
    let pairs = Tensor::from_bytes(DType::F4E2M1FNx2, &[2], &[0x21, 0xf0]).unwrap();
    assert_eq!(pairs.to_scalars().unwrap(), [Scalar::Pair(0.5, 1.), Scalar::Pair(0., -6.)]);
}
