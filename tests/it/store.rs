use ndarray::array;
use stridemap::{ErrorKind, Store};

fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn saved_tensor_and_its_transpose_are_there_after_reopening() {
    let dir = temporary();
    let path = dir.path().join("points.smap");
    let store = Store::create(&path).unwrap();
    store.save("points", &array![[1f32, 4.], [2., 1.], [3., 5.]]).unwrap();
    let points = store.load("points").unwrap();
    store.save_view("points_t", &points.t().unwrap()).unwrap();
    drop(store);

    let store = Store::open(&path).unwrap();
    let transposed = store.load("points_t").unwrap();
    assert_eq!((transposed.size(), transposed.stride()), (&[2, 3][..], &[1, 2][..]));
    assert_eq!(transposed.read::<f32>().unwrap(), [1., 2., 3., 4., 1., 5.]);
    assert!(transposed.shares_storage(&store.load("points").unwrap()));
    assert_eq!(transposed.as_slice::<f32>().unwrap_err().kind(), ErrorKind::NotContiguous);
    // SAFETY: nobody else knows this directory.
    let mapped = unsafe { Store::open_mapped(&path).unwrap() };
    let transposed = mapped.load("points_t").unwrap();
    assert_eq!(transposed.as_array::<f32>().unwrap(), array![[1f32, 2., 3.], [4., 1., 5.]].into_dyn());
    println!("{transposed}");
}
