//! Queries that read headers only: overlaps, names that share bytes, memory formats.

use ndarray::array;
use stridemap::{DType, ErrorKind, Result, StorageKind, Store, Tensor, ix};

use crate::support::temporary;

#[test]
fn names_share_bytes_only_if_their_elements_overlap() -> Result<()> {
    let dir = temporary();
    let store = Store::create(dir.path().join("x.smap"))?;
    let mut txn = store.begin()?;
    txn.save("matrix", &Tensor::zeros(DType::F32, &[4, 6])?)?;
    txn.save("neighbour", &array![1f32, 2.])?; // in the same file
    let matrix = txn.load("matrix")?;
    for (name, view) in [
        ("tied", matrix.clone()),
        ("row 0", matrix.select(0, 0)?),
        ("row 1", matrix.select(0, 1)?),
        ("column 1", matrix.select(1, 1)?),
        ("even columns", matrix.index(ix![.., ..;2])?),
        ("odd columns", matrix.index(ix![.., 1..;2])?),
        ("bytes of row 0", matrix.select(0, 0)?.view_dtype(DType::U8)?.slice(0, Some(2), Some(3), 1)?),
        ("nothing", matrix.slice(0, Some(4), None, 1)?),
    ] {
        txn.save_view(name, &view)?;
    }
    txn.commit()?;
    let snapshot = store.snapshot();
    assert_eq!(snapshot.overlapping("neighbour")?, [""; 0]);
    assert_eq!(snapshot.overlapping("nothing")?, [""; 0]);
    assert_eq!(
        snapshot.overlapping("row 0")?,
        ["bytes of row 0", "column 1", "even columns", "matrix", "odd columns", "tied"]
    );
    assert_eq!(snapshot.overlapping("even columns")?, ["bytes of row 0", "matrix", "row 0", "row 1", "tied"]);
    assert_eq!(snapshot.overlapping("odd columns")?, ["column 1", "matrix", "row 0", "row 1", "tied"]);
    assert_eq!(snapshot.overlapping("none").unwrap_err().kind(), ErrorKind::NameNotFound);
    Ok(())
}

#[test]
fn tensors_of_different_storages_never_overlap() -> Result<()> {
    let (a, b) = (Tensor::zeros(DType::F32, &[4])?, Tensor::zeros(DType::F32, &[4])?);
    assert!(!a.overlaps(&b) && a.overlaps(&a.clone()) && !a.shares_storage(&a.clone_data()?));
    assert!(a.expand([2, 4])?.overlaps_itself() && a.unfold(0, 2, 1)?.overlaps_itself());
    assert!(!a.unfold(0, 2, 2)?.overlaps_itself() && !a.flip([0])?.overlaps_itself());
    Ok(())
}

#[test]
fn tensors_overlap_within_one_file_but_not_between_copies_of_a_store() -> Result<()> {
    let dir = temporary();
    let (path, copy, link) =
        (dir.path().join("x.smap"), dir.path().join("copy.smap"), dir.path().join("link"));
    let store = Store::create(&path)?;
    store.save("sealed", &Tensor::zeros(DType::F32, &[4])?)?;
    store.save("empty", &Tensor::zeros(DType::F32, &[0])?)?;
    let _ = store.create_tensor("mutable", DType::F32, &[4], StorageKind::Mutable)?;
    let _ = store.create_tensor("live", DType::F32, &[4], StorageKind::Live)?;
    drop(store);
    let copied = std::process::Command::new("cp").arg("-r").arg(&path).arg(&copy).status();
    assert!(copied.unwrap().success());
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let stores = || {
        // SAFETY: no process writes the stores.
        [&path, &link, &copy].map(|path| [Store::open(path), unsafe { Store::open_mapped(path) }])
    };
    for name in ["sealed", "mutable", "live", "empty"] {
        let loaded = stores().map(|handles| handles.map(|store| store.unwrap().load(name).unwrap()));
        let [own @ .., copies] = &loaded;
        for (a, b) in own.as_flattened().iter().flat_map(|a| own.as_flattened().iter().map(move |b| (a, b))) {
            assert!(a.shares_storage(b), "{name}: one file by two handles");
            assert_eq!(a.overlaps(b), name != "empty");
        }
        for (a, b) in own.as_flattened().iter().flat_map(|a| copies.iter().map(move |b| (a, b))) {
            assert!(!a.shares_storage(b) && !a.overlaps(b), "{name}: a file and its copy");
        }
    }
    Ok(())
}
