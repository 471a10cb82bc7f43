//! Conversions between tensors and `ndarray` arrays of every rank and order.

use ndarray::{
    ArcArray, Array, Array0, Array2, Array3, ArrayD, ArrayView, ArrayView0, ArrayView2, ArrayViewD, Axis,
    CowArray, Dimension, Ix0, Ix1, Ix2, Ix3, Ix4, Ix5, Ix6, IxDyn, Slice, array,
};
use proptest::collection::vec;
use proptest::prelude::*;
use stridemap::{ErrorKind, Tensor};

use crate::harness::{assert_refused, new_store};

/// Returns an array of this size with the elements 0, 1, 2, ...
fn counted<D: Dimension>(size: D) -> Array<i32, D> {
    let numel = size.size();
    Array::from_iter(0..numel as i32).into_shape_with_order(size).unwrap()
}

/// Asserts that both have the same sizes, and the same elements in the same order.
fn assert_same<D: Dimension>(tensor: &Tensor, array: &ArrayView<'_, i32, D>) {
    assert_eq!(tensor.size(), array.shape());
    assert_eq!(tensor.read::<i32>().unwrap(), array.iter().copied().collect::<Vec<_>>());
}

/// Returns the address of the first element.
fn first<T: stridemap::Element>(tensor: &Tensor) -> *const T {
    ArrayViewD::<T>::try_from(tensor).unwrap().as_ptr()
}

macro_rules! every_rank {
    ($($name:ident: $dim:ty = $size:expr),* $(,)?) => {$(
        #[test]
        fn $name() {
            let original = counted::<$dim>($size);
            let mut reversed = original.clone();
            for axis in 0..reversed.ndim() {
                reversed.invert_axis(Axis(axis));
            }
            for array in [original.clone(), original.clone().reversed_axes(), reversed] {
                let copied = Tensor::try_from(&array).unwrap();
                assert_same(&copied, &array.view());
                assert!(copied.is_contiguous());
                let also = Tensor::try_from(&array.view()).unwrap();
                assert_same(&also, &array.view());
                assert_ne!(first::<i32>(&also), array.as_ptr(), "a view is copied");

                let (stride, address) = (array.strides().to_vec(), array.as_ptr());
                let tensor = Tensor::try_from(array.clone()).unwrap();
                assert_eq!(tensor.stride(), stride);
                let array_again = array.clone();
                let tensor_of_it = Tensor::try_from(array).unwrap();
                assert_eq!(first::<i32>(&tensor_of_it), address, "an array is taken over unchanged");

                let view = ArrayView::<i32, $dim>::try_from(&tensor).unwrap();
                assert_eq!((view, view.as_ptr()), (array_again.view(), first(&tensor)));
                let owned = Array::<i32, $dim>::try_from(&tensor).unwrap();
                assert_eq!(owned, array_again);
                assert!(owned.is_standard_layout());
                assert_eq!(ArrayViewD::<i32>::try_from(&tensor).unwrap(), array_again.view().into_dyn());
                assert_eq!(ArrayD::<i32>::try_from(&tensor).unwrap(), array_again.clone().into_dyn());
                assert_same(&Tensor::try_from(array_again.clone().into_dyn()).unwrap(), &array_again.view());

                let plural = if original.ndim() == 1 { "" } else { "s" };
                let rank = format!("{} dimension{plural}:", original.ndim());
                let expected = [rank, format!("has {}", original.ndim() + 1)];
                let more = tensor.unsqueeze(0).unwrap();
                let expected = [expected[0].as_str(), expected[1].as_str(), "size [1"];
                assert_refused(ArrayView::<i32, $dim>::try_from(&more), ErrorKind::SizeMismatch, &expected);
                assert_refused(Array::<i32, $dim>::try_from(&more), ErrorKind::SizeMismatch, &expected);
            }
        }
    )*};
}

every_rank! {
    rank_0_goes_both_ways: Ix0 = Ix0(),
    rank_1_goes_both_ways: Ix1 = Ix1(5),
    rank_2_goes_both_ways: Ix2 = Ix2(2, 3),
    rank_3_goes_both_ways: Ix3 = Ix3(2, 3, 4),
    rank_4_goes_both_ways: Ix4 = Ix4(2, 3, 1, 4),
    rank_5_goes_both_ways: Ix5 = Ix5(2, 3, 2, 1, 4),
    rank_6_goes_both_ways: Ix6 = Ix6(2, 1, 3, 2, 2, 3),
}

#[test]
fn arrays_of_dynamic_rank_convert_both_ways_up_to_rank_64() {
    for rank in [0, 1, 7, 64] {
        let mut size = vec![1; rank];
        size.iter_mut().skip(rank / 2).take(1).for_each(|n| *n = 3);
        let array = counted(IxDyn(&size));
        let tensor = Tensor::try_from(array.clone()).unwrap();
        assert_same(&tensor, &array.view());
        assert_eq!(ArrayViewD::<i32>::try_from(&tensor).unwrap(), array);
        assert_eq!(ArrayD::<i32>::try_from(&tensor).unwrap(), array);
    }
    let array = counted(IxDyn(&[1; 65]));
    assert_refused(Tensor::try_from(&array), ErrorKind::LimitExceeded, &["65", "64"]);
    assert_refused(Tensor::try_from(&array.view()), ErrorKind::LimitExceeded, &["65", "64"]);
    assert_refused(Tensor::try_from(array), ErrorKind::LimitExceeded, &["65", "64"]);
}

#[test]
fn part_of_a_buffer_is_taken_over_with_its_strides() {
    let mut array = counted(Ix2(6, 7));
    array.slice_axis_inplace(Axis(0), Slice::new(1, Some(6), 2));
    array.slice_axis_inplace(Axis(1), Slice::new(0, None, -3));
    let expected = array.clone();
    let tensor = Tensor::try_from(array).unwrap();
    assert_eq!((tensor.size(), tensor.stride(), tensor.storage_offset()), (&[3, 3][..], &[14, -3][..], 13));
    assert_eq!(tensor.storage_nbytes(), 42 * 4, "the whole buffer is the storage");
    assert_same(&tensor, &expected.view());
    assert_eq!(ArrayView2::<i32>::try_from(&tensor).unwrap(), expected);

    let (_dir, _, store) = new_store();
    store.save("x", &tensor).unwrap();
    assert_same(&store.load("x").unwrap(), &expected.view());
}

#[test]
fn broadcast_arrays_are_copied_and_broadcast_tensors_are_borrowed() {
    let row = array![1, 2, 3];
    let tensor = Tensor::try_from(&row.broadcast((4, 3)).unwrap()).unwrap();
    assert_eq!((tensor.size(), tensor.stride()), (&[4, 3][..], &[3, 1][..]));
    assert_eq!(tensor.read::<i32>().unwrap(), [1, 2, 3].repeat(4));

    let expanded = Tensor::try_from(row).unwrap().expand([4, -1]).unwrap();
    let view = ArrayView2::<i32>::try_from(&expanded).unwrap();
    assert_eq!((view.strides(), view.row(3).to_vec()), (&[0, 1][..], vec![1, 2, 3]));
    let owned = Array2::<i32>::try_from(&expanded).unwrap();
    assert_eq!(owned, view);
}

#[test]
fn arrays_without_elements_keep_their_size() {
    for size in [[0, 3, 2], [3, 0, 2], [3, 2, 0], [0, 0, 0]] {
        let array = Array3::<f64>::zeros(size);
        for tensor in [
            Tensor::try_from(&array).unwrap(),
            Tensor::try_from(&array.view()).unwrap(),
            Tensor::try_from(array.clone()).unwrap(),
        ] {
            assert_eq!((tensor.size(), tensor.numel()), (&size[..], 0));
            assert_eq!(tensor.stride(), Tensor::zeros(tensor.dtype(), &size).unwrap().stride());
            assert_eq!(ArrayView::<f64, Ix3>::try_from(&tensor).unwrap().shape(), size);
            assert_eq!(Array3::<f64>::try_from(&tensor).unwrap().shape(), size);
        }
    }
    // A range at the end of a buffer has no elements, but is still an array.
    let mut end = counted(Ix1(4));
    end.slice_axis_inplace(Axis(0), Slice::new(4, None, 1));
    assert_eq!(Tensor::try_from(end).unwrap().size(), [0]);
    // An invalid size: without its zero it would have too many elements.
    let vast = Tensor::try_from(Array::<f32, Ix1>::zeros(0))
        .unwrap()
        .as_strided([0, 1i64 << 40, 1 << 40], [1, 1, 1], 0)
        .unwrap();
    assert_refused(Array3::<f32>::try_from(&vast), ErrorKind::LimitExceeded, &["ndarray", "1099511627776"]);
    assert_refused(ArrayView::<f32, Ix3>::try_from(&vast), ErrorKind::LimitExceeded, &["ndarray"]);
}

#[test]
fn shared_and_borrowed_arrays_are_copied() {
    let array = array![[1, 2], [3, 4]];
    let shared: ArcArray<i32, Ix2> = array.to_shared();
    assert_same(&Tensor::try_from(&shared).unwrap(), &array.view());
    let cow = CowArray::from(array.view());
    assert_same(&Tensor::try_from(&cow).unwrap(), &array.view());
}

#[test]
fn huge_steps_of_dimensions_of_size_1_are_not_passed_on() {
    let (_dir, _, store) = new_store();
    for step in [isize::MIN, isize::MIN + 1, isize::MAX] {
        let mut txn = store.begin().unwrap();
        txn.save("x", &Tensor::try_from(counted(Ix1(4))).unwrap()).unwrap();
        let x = txn.load("x").unwrap().as_strided([1, 2, 1], [step, 2, step], 1).unwrap();
        txn.save_view("view", &x).unwrap();
        txn.commit().unwrap();
        let view = store.load("view").unwrap();
        assert_eq!(view.stride(), [step, 2, step]);
        let view = Tensor::from_vec(vec![0, 1, 2, 3], &[4]).unwrap();
        let view = view.as_strided([1, 2, 1], [step, 2, step], 1).unwrap();
        let array = ArrayViewD::<i32>::try_from(&view).unwrap();
        assert_eq!(array, array![[[1], [3]]].into_dyn());
        assert_eq!(array.strides(), [1, 2, 1]);
        assert_eq!(array.slice(ndarray::s![..;-1, ..;-1, ..;-1]), array![[[3], [1]]]);
        let lent = view.to_dlpack().unwrap();
        assert_eq!(lent.validate_export().unwrap().strides(), Some(&[1, 2, 1][..]));
        let flipped = view.flip([0, 1, 2]).unwrap();
        assert_eq!(ArrayViewD::<i32>::try_from(&flipped).unwrap(), array![[[3], [1]]].into_dyn());
    }
    let empty = Tensor::from_vec(Vec::<i32>::new(), &[0]).unwrap();
    let empty = empty.as_strided([0, 3, 1], [isize::MIN; 3], 0).unwrap();
    assert_eq!(ArrayViewD::<i32>::try_from(&empty).unwrap().shape(), [0, 3, 1]);
    assert_eq!(empty.to_dlpack().unwrap().validate_export().unwrap().strides(), Some(&[1, 1, 1][..]));
}

#[test]
fn failed_borrow_states_the_reason() {
    let (_dir, _, store) = new_store();
    store.save("x", &array![[1f32, 2.]]).unwrap();
    let x = store.load("x").unwrap();
    assert_refused(ArrayView2::<f32>::try_from(&x), ErrorKind::NeedsCopy, &["open_mapped"]);
    assert_eq!(Array2::<f32>::try_from(&x).unwrap(), array![[1., 2.]]);
    assert_refused(Array2::<f64>::try_from(&x), ErrorKind::DTypeMismatch, &["float32", "float64"]);
    assert_refused(ArrayView2::<f64>::try_from(&x), ErrorKind::DTypeMismatch, &["float32", "float64"]);
    assert_refused(ArrayView0::<f32>::try_from(&x), ErrorKind::SizeMismatch, &["0 dimensions", "[1, 2]"]);
    assert_refused(Array0::<f32>::try_from(&x), ErrorKind::SizeMismatch, &["0 dimensions", "[1, 2]"]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// An array after random slices, transposes and swaps is taken over unchanged.
    #[test]
    fn any_array_layout_is_taken_over(
        size in vec(0usize..5, 1..5),
        steps in vec((0usize..4, 0usize..3, 0isize..5, 1isize..4, any::<bool>()), 0..6),
    ) {
        let mut array = counted(IxDyn(&size));
        for (axis, kind, start, step, turned) in steps {
            let axis = axis % array.ndim();
            match kind {
                0 => {
                    let start = start.min(array.len_of(Axis(axis)) as isize);
                    array.slice_axis_inplace(Axis(axis), Slice::new(start, None, if turned { -step } else { step }));
                }
                1 => array.invert_axis(Axis(axis)),
                _ => array.swap_axes(axis, 0),
            }
        }
        let expected = array.clone();
        let tensor = Tensor::try_from(array).unwrap();
        assert_same(&tensor, &expected.view());
        prop_assert_eq!(ArrayViewD::<i32>::try_from(&tensor).unwrap(), expected.view());
        prop_assert_eq!(ArrayD::<i32>::try_from(&tensor).unwrap(), expected.view());
        assert_same(&Tensor::try_from(&expected).unwrap(), &expected.view());
    }
}
