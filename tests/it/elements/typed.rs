//! Typed tensors, which borrow their elements for as long as they exist.

use ndarray::ArrayViewD;
use stridemap::small_float::F8E4M3FN;
use stridemap::{DType, ErrorKind, StorageKind, Tensor, TypedTensor};

use crate::harness::{assert_refused, filled, new_store, open_mapped};

/// A model that a server keeps.
struct Model {
    weights: TypedTensor<f32>,
}

fn is_for_any_thread<T: Send + Sync + Clone + 'static>(_: &T) {}

#[test]
fn typed_tensor_outlives_its_store_its_name_and_the_tensor() {
    let (_dir, path, store) = new_store();
    let elements: Vec<f32> = (0..6).map(|i| i as f32).collect();
    store.save("x", &Tensor::from_vec(elements.clone(), &[3, 2]).unwrap()).unwrap();
    let mapped = open_mapped(&path);
    let model = Model { weights: mapped.load("x").unwrap().typed().unwrap() };
    is_for_any_thread(&model.weights);
    drop(mapped);
    store.remove("x").unwrap();
    store.gc().unwrap();
    let clone = model.weights.clone();
    assert_eq!(clone.as_ptr(), model.weights.as_ptr(), "a clone has a copy");
    drop(model);
    let read = std::thread::spawn(move || (clone.to_vec(), clone.row(1).to_vec(), clone.row(-1).to_vec()));
    assert_eq!(read.join().unwrap(), (elements, vec![2., 3.], vec![4., 5.]));
}

#[test]
fn typed_views_and_empty_typed_tensors_have_rows() {
    let x = Tensor::from_vec((0..24i64).collect(), &[4, 3, 2]).unwrap();
    let rows = x.narrow(0, 1, 2).unwrap().typed::<i64>().unwrap();
    assert_eq!((rows.tensor().size(), &rows[..]), (&[2, 3, 2][..], &(6..18).collect::<Vec<i64>>()[..]));
    assert_eq!(rows.row(1usize), (12..18).collect::<Vec<i64>>());
    assert_eq!(ArrayViewD::<i64>::try_from(rows.tensor()).unwrap()[[1, 2, 0]], 16);
    assert_eq!(format!("{rows:?}"), format!("TypedTensor({:?})", rows.tensor()));

    let none = Tensor::zeros(DType::F8E4M3FN, &[2, 0]).unwrap().typed::<F8E4M3FN>().unwrap();
    assert!(none.is_empty() && none.row(1).is_empty());
    assert_eq!(ArrayViewD::<F8E4M3FN>::try_from(none.tensor()).unwrap().shape(), [2, 0]);
}

#[test]
fn typed_tensor_is_refused_if_elements_cannot_be_borrowed() {
    let (_dir, path, store) = new_store();
    store.save("x", &[[1f32, 2.], [3., 4.]]).unwrap();
    let _ = store.create_tensor("mutable", DType::F32, &[2], StorageKind::Mutable).unwrap();
    let refused = |tensor: &Tensor| tensor.typed::<f32>().unwrap_err().kind();
    assert_eq!(refused(&store.load("x").unwrap()), ErrorKind::NeedsCopy);
    let mapped = open_mapped(&path);
    let x = mapped.load("x").unwrap();
    let advice = "use ArrayView::try_from, contiguous()?.typed() or read";
    assert_refused(x.t().unwrap().typed::<f32>(), ErrorKind::NeedsCopy, &["typed: size [2, 2]", advice]);
    assert_eq!(x.t().unwrap().contiguous().unwrap().typed::<f32>().unwrap()[..], [1., 3., 2., 4.]);
    assert_eq!(refused(&mapped.load("mutable").unwrap()), ErrorKind::NeedsCopy);
    assert_eq!(x.typed::<i32>().unwrap_err().kind(), ErrorKind::DTypeMismatch);
    let bytes = filled(9, 0u8).narrow(0, 1, 8).unwrap();
    assert_eq!(bytes.typed::<u8>().unwrap().len(), 8);
    let flags = Tensor::from_vec(vec![true], &[1]).unwrap();
    assert_eq!(flags.typed::<bool>().unwrap_err().kind(), ErrorKind::DTypeMismatch);
}

#[test]
#[should_panic(expected = "row 2 is out of range for size [2, 3]")]
fn row_out_of_range_panics() {
    let _ = Tensor::zeros(DType::F64, &[2, 3]).unwrap().typed::<f64>().unwrap().row(2);
}
