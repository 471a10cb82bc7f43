//! Views of the same bytes as elements of other dtypes: the row-major bytes never change.

use proptest::prelude::*;
use stridemap::{DType, ErrorKind, Tensor};

use super::model::Model;
use super::{chains, config, follow};

/// Returns a view of integers in which every byte matters.
fn view_of_bytes(size: &[usize], chain: &[u64]) -> Tensor {
    let numel: usize = size.iter().product();
    let values: Vec<i64> = (0..numel as i64).map(|i| (i + 1).wrapping_mul(0x0123_4567_89ab_cdef)).collect();
    let base = Tensor::from_vec(values.clone(), size).unwrap();
    follow(base, Model::new(values, size, &vec![None; size.len()], true), chain).0
}

/// Returns whether PyTorch allows this view by dtype.
fn allows_view_as(x: &Tensor, dtype: DType) -> bool {
    let (width, other_width) = (x.dtype().itemsize(), dtype.itemsize());
    let ratio = (other_width / width).max(1);
    let Some((last, others)) = x.stride().split_last() else { return width == other_width };
    let divides = |n: isize| n % ratio as isize == 0;
    let mut divided =
        others.iter().copied().chain([x.storage_offset() as isize, x.size()[others.len()] as isize]);
    width == other_width || *last == 1 && divided.all(divides)
}

/// Returns whether PyTorch allows pairs along the last axis. Unlike a view by dtype, it ignores the stride of an axis
/// of size 1.
fn is_paired(x: &Tensor) -> bool {
    let dims: Vec<_> = x.size().iter().zip(x.stride()).filter(|&(&n, _)| n != 1).collect();
    let pairs = dims.split_last().filter(|&(&last, _)| last == (&2, &1) && x.size().last() == Some(&2));
    pairs.is_some_and(|(_, dims)| dims.iter().all(|&(_, step)| step % 2 == 0))
        && x.storage_offset().is_multiple_of(2)
}

fn header(x: &Tensor) -> (&[usize], &[isize], usize) {
    (x.size(), x.stride(), x.storage_offset())
}

fn bytes(x: &Tensor) -> Vec<u8> {
    x.to_bytes().unwrap()
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn view_as_other_dtypes_and_back_keeps_the_bytes(
        (size, chain) in chains(),
        dtypes in prop::collection::vec(prop::sample::select(DType::ALL), 1..4),
    ) {
        let view = view_of_bytes(&size, &chain);
        let mut seen = view.clone();
        for dtype in dtypes {
            match seen.view_dtype(dtype) {
                Ok(next) => {
                    prop_assert!(allows_view_as(&seen, dtype), "{:?} as {}", seen, dtype);
                    prop_assert_eq!((bytes(&next), next.dtype()), (bytes(&view), dtype));
                    prop_assert!(next.shares_storage(&view));
                    seen = next;
                }
                Err(e) => {
                    prop_assert_eq!(e.kind(), ErrorKind::InvalidArgument);
                    prop_assert!(!allows_view_as(&seen, dtype), "{}", e);
                }
            }
        }
        let back = seen.view_dtype(DType::I64).unwrap();
        prop_assert_eq!(header(&back), header(&view));
    }

    #[test]
    fn complex_elements_are_pairs_of_their_parts((size, chain) in chains()) {
        let view = view_of_bytes(&size, &chain);
        let complex = view.view_dtype(DType::C64).unwrap();
        let pairs = complex.view_as_real().unwrap();
        prop_assert_eq!((pairs.dtype(), pairs.size()), (DType::F32, &[view.size(), &[2]].concat()[..]));
        prop_assert_eq!(bytes(&pairs), bytes(&view));
        let part = |half: usize| bytes(&view).chunks(4).skip(half).step_by(2).collect::<Vec<_>>().concat();
        prop_assert_eq!(bytes(&pairs.select(-1, 0).unwrap()), part(0));
        prop_assert_eq!(bytes(&pairs.select(-1, 1).unwrap()), part(1));
        let back = pairs.view_as_complex().unwrap();
        prop_assert_eq!(header(&back), header(&view));

        let floats = view.view_dtype(DType::F64).unwrap();
        match floats.view_as_complex() {
            Ok(complex) => prop_assert!(is_paired(&floats) && bytes(&complex) == bytes(&view), "{:?}", complex),
            Err(e) => prop_assert!(!is_paired(&floats) && e.kind() == ErrorKind::InvalidArgument, "{}", e),
        }
        for refused in [floats.view_as_real(), view.view_as_complex(), complex.view_as_complex()] {
            prop_assert_eq!(refused.unwrap_err().kind(), ErrorKind::DTypeMismatch);
        }
    }
}
