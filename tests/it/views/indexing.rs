//! Reading and writing elements by tensors of indices.

use std::path::Path;

use stridemap::{DType, ErrorKind, StorageKind, Store, Tensor};

use crate::filesystems::limits::limited;
use crate::harness::processes::{proc, run_to_end};
use crate::harness::{arange, assert_refused, fast, new_path, new_store, open_mapped};
use crate::support::temporary;

const MIB: usize = 1 << 20;

/// The bytes of a row that is longer than all buffers, and than the 64 MiB that the allocator reserves for a thread.
const LONG_ROW: usize = 251 * 280_000;

/// Runs a role in a started process. Returns false for a role in a different module.
pub(crate) fn run_role(role: &str, path: &Path) -> bool {
    if role != "index long rows" {
        return false;
    }
    let store = fast().open(path).unwrap();
    let [rows, x] = ["rows", "x"].map(|name| store.load(name).unwrap());
    let with_memory = |more: usize, act: &mut dyn FnMut()| {
        limited(libc::RLIMIT_AS, proc("status", "VmSize:") * 1024 + more as u64, act);
    };
    let row = long_row(1);
    with_memory(2 * LONG_ROW + 32 * MIB, &mut || {
        let twice = rows.index_select(0, &indices(&[1, 1], &[2])).unwrap();
        assert!(twice.as_slice::<u8>().unwrap().chunks(LONG_ROW).all(|copy| copy == row));
    });
    with_memory(32 * MIB, &mut || {
        x.lock_exclusive()
            .unwrap()
            .index_copy_(1, &indices(&[2, 0], &[2]), &rows.unsqueeze(0).unwrap())
            .unwrap();
    });
    true
}

fn long_row(row: u8) -> Vec<u8> {
    (row..row + 251).collect::<Vec<u8>>().repeat(LONG_ROW / 251)
}

fn indices(values: &[i64], size: &[usize]) -> Tensor {
    Tensor::from_vec(values.to_vec(), size).unwrap()
}

/// Returns the same tensor on the heap, sealed and mutable, in a mapped store and in an unmapped one.
fn in_every_kind_of_storage(path: &Path, tensor: &Tensor) -> Vec<Tensor> {
    let store = fast().create(path).unwrap();
    store.save("sealed", tensor).unwrap();
    store.write(|txn| txn.save_as("mutable", tensor, StorageKind::Mutable)).unwrap();
    let mapped = open_mapped(path);
    let load = |store: &Store| ["sealed", "mutable"].map(|name| store.load(name).unwrap());
    [vec![tensor.clone()], load(&mapped).to_vec(), load(&store).to_vec()].concat()
}

/// Returns views of a three-dimensional tensor.
fn views(x: &Tensor) -> [Tensor; 4] {
    [
        x.clone(),
        x.permute([2, 0, 1]).unwrap(),
        x.slice(1, None, None, -2).unwrap(),
        x.narrow(2, 1, 2).unwrap().flip([0]).unwrap(),
    ]
}

/// Returns every index of a size, in row-major order.
fn indices_of(size: &[usize]) -> Vec<Vec<isize>> {
    size.iter().fold(vec![vec![]], |heads, &n| {
        heads.iter().flat_map(|head| (0..n as isize).map(move |i| [head.as_slice(), &[i]].concat())).collect()
    })
}

fn with_position(index: &[isize], axis: usize, position: i64) -> Vec<isize> {
    let mut index = index.to_vec();
    index[axis] = position as isize;
    index
}

#[test]
fn index_select_and_gather_read_the_indexed_elements() {
    let dir = temporary();
    // Rows of 160 and of 480 bytes.
    for size in [[5, 4, 5], [5, 12, 5]] {
        let path = dir.path().join(format!("{size:?}"));
        for x in in_every_kind_of_storage(&path, &arange(&size)).iter().flat_map(views) {
            let plain = x.clone_data().unwrap();
            for axis in 0..3 {
                let n = x.size()[axis] as i64;
                let picked = [n - 1, 0, n / 2, n / 2, 0];
                let selected = x.index_select(axis as isize - 3, &indices(&picked, &[5])).unwrap();
                let expected: Vec<i64> = indices_of(selected.size())
                    .iter()
                    .map(|at| plain.get(with_position(at, axis, picked[at[axis] as usize])).unwrap())
                    .collect();
                assert_eq!(selected.read::<i64>().unwrap(), expected, "{x:?} {axis}");

                let mut by_size = x.size().to_vec();
                by_size[(axis + 1) % 3] -= 1;
                by_size[axis] += 2;
                let by = arange(&by_size);
                let by: Vec<i64> = by.read::<i64>().unwrap().iter().map(|i| i * 7 % n).collect();
                // Indices need not be contiguous.
                let by = indices(&by, &by_size).flip([axis as isize]).unwrap();
                let gathered = x.gather(axis as isize, &by).unwrap();
                let expected: Vec<i64> = indices_of(&by_size)
                    .iter()
                    .map(|at| plain.get(with_position(at, axis, by.get(at).unwrap())).unwrap())
                    .collect();
                assert_eq!(gathered.size(), by_size);
                assert_eq!(gathered.read::<i64>().unwrap(), expected, "{x:?} {axis}");
            }
        }
    }
}

#[test]
fn index_copy_and_scatter_write_only_the_indexed_elements() {
    let dir = temporary();
    for size in [[5, 4, 5], [5, 12, 5]] {
        let path = dir.path().join(format!("{size:?}"));
        for x in
            in_every_kind_of_storage(&path, &arange(&size)).into_iter().filter(|x| x.lock_shared().is_ok())
        {
            for view in views(&x) {
                for axis in 0..3 {
                    let n = view.size()[axis] as i64;
                    let by = [n - 1, 0, n / 2];
                    let mut source_size = view.size().to_vec();
                    source_size[axis] = 3;
                    let source = arange(&source_size).flip([0]).unwrap();
                    let check = |by: &Tensor, written: &dyn Fn(&[isize]) -> i64| {
                        let places = views(&arange(&size));
                        let places = places.iter().find(|of| of.stride() == view.stride()).unwrap();
                        let mut expected = vec![-1; x.numel()];
                        for at in indices_of(by.size()) {
                            let place =
                                places.get::<i64>(&with_position(&at, axis, by.get(&at).unwrap())).unwrap();
                            expected[place as usize] = written(&at);
                        }
                        assert_eq!(x.read::<i64>().unwrap(), expected, "{view:?} {axis}");
                        x.lock_exclusive().unwrap().fill_(-1).unwrap();
                    };
                    x.lock_exclusive().unwrap().fill_(-1).unwrap();
                    let mut guard = view.lock_exclusive().unwrap();
                    guard.index_copy_(axis as isize, &indices(&by, &[3]), &source).unwrap();
                    drop(guard);
                    let spread: Vec<i64> =
                        indices_of(&source_size).iter().map(|at| by[at[axis] as usize]).collect();
                    let spread = indices(&spread, &source_size);
                    check(&spread, &|at| source.get(at).unwrap());

                    // Fewer indices than elements in the tensor and in the source.
                    let some = spread.narrow(axis as isize, 1, 2).unwrap();
                    let some = some.narrow((axis as isize + 1) % 3, 0, 2).unwrap();
                    view.lock_exclusive().unwrap().scatter_(axis as isize, &some, &source).unwrap();
                    check(&some, &|at| source.get(at).unwrap());
                    view.lock_exclusive().unwrap().scatter_(axis as isize, &some, 9).unwrap();
                    check(&some, &|_| 9);
                }
            }
        }
    }
}

#[test]
fn scatter_keeps_the_last_value_and_reads_an_overlapping_source_first() {
    let dir = temporary();
    for x in in_every_kind_of_storage(&dir.path().join("x.smap"), &arange(&[4]))
        .into_iter()
        .filter(|x| x.lock_shared().is_ok())
    {
        x.lock_exclusive().unwrap().copy_(&arange(&[4])).unwrap();
        let twice = indices(&[1, 1, 1], &[3]);
        x.lock_exclusive().unwrap().scatter_(0, &twice, &indices(&[7, 8, 9], &[3])).unwrap();
        assert_eq!(x.read::<i64>().unwrap(), [0, 9, 2, 3]);
        x.lock_exclusive().unwrap().index_copy_(0, &indices(&[3, 2, 1, 0], &[4]), &x).unwrap();
        assert_eq!(x.read::<i64>().unwrap(), [3, 2, 9, 0]);
        // The indices themselves are in the changed storage.
        x.lock_exclusive()
            .unwrap()
            .copy_(&indices(&[1, 2, 3, 0], &[4]))
            .unwrap()
            .scatter_(0, &x, &x)
            .unwrap();
        assert_eq!(x.read::<i64>().unwrap(), [0, 1, 2, 3]);
    }
}

#[test]
fn indexing_without_dimensions_or_elements_agrees_with_pytorch() {
    let (single, zero) = (indices(&[5], &[]), indices(&[0], &[]));
    assert_eq!(single.index_select(0, &zero).unwrap().size(), [0; 0]);
    assert_eq!(single.index_select(-1, &indices(&[0], &[1])).unwrap().item::<i64>().unwrap(), 5);
    assert_eq!(single.gather(0, &indices(&[0, 0], &[2])).unwrap().read::<i64>().unwrap(), [5, 5]);
    assert_eq!(arange(&[3]).gather(0, &indices(&[2], &[])).unwrap().size(), [0; 0]);
    assert_refused(single.index_select(0, &indices(&[0, 0], &[2])), ErrorKind::SizeMismatch, &["[2]", "[]"]);
    let none = indices(&[], &[0]);
    assert_eq!(arange(&[3, 2]).index_select(0, &none).unwrap().size(), [0, 2]);
    assert_eq!(arange(&[0, 2]).index_select(1, &indices(&[1, 1, 0], &[3])).unwrap().size(), [0, 3]);
    assert_eq!(arange(&[3, 2]).gather(1, &none).unwrap().size(), [0]);
    assert_refused(arange(&[0, 2]).index_select(0, &zero), ErrorKind::OutOfRange, &["index 0", "size 0"]);
}

#[test]
fn wrong_indices_are_refused_and_change_nothing() {
    let (_dir, _, store) = new_store();
    let x = store.create_tensor("x", DType::I64, &[3, 2], StorageKind::Mutable).unwrap();
    let says = &["index -1", "position 1", "axis 0", "size 3"];
    assert_refused(x.index_select(0, &indices(&[0, -1], &[2])), ErrorKind::OutOfRange, says);
    assert_refused(x.gather(0, &indices(&[0, -1], &[1, 2])), ErrorKind::OutOfRange, says);
    let far = indices(&[0, 3], &[2]);
    let rows = arange(&[2, 2]);
    let mut guard = x.lock_exclusive().unwrap();
    assert_refused(guard.index_copy_(0, &far, &rows), ErrorKind::OutOfRange, &["index_copy_", "index 3"]);
    assert_refused(guard.scatter_(0, &far.view([2, 1]).unwrap(), 7), ErrorKind::OutOfRange, &["index 3"]);

    let narrow = indices(&[0, 1], &[2]).to_dtype(DType::I32).unwrap();
    assert_eq!(guard.index_select(0, &narrow).unwrap().size(), [2, 2]);
    let says = &["int32", "int64", "to_dtype"];
    assert_refused(guard.gather(0, &narrow.view([1, 2]).unwrap()), ErrorKind::DTypeMismatch, says);
    assert_refused(guard.index_copy_(0, &narrow, &rows), ErrorKind::DTypeMismatch, says);
    assert_refused(
        guard.index_select(0, &rows.to_dtype(DType::F32).unwrap()),
        ErrorKind::DTypeMismatch,
        &["float32", "not int32 or int64"],
    );

    let good = indices(&[0, 1], &[2]);
    assert_refused(guard.index_select(0, &rows), ErrorKind::SizeMismatch, &["[2, 2]", "vector"]);
    assert_refused(guard.index_select(2, &good), ErrorKind::OutOfRange, &["axis 2"]);
    assert_refused(
        guard.gather(0, &good),
        ErrorKind::SizeMismatch,
        &["gather", "[2]", "as many axes", "[3, 2]"],
    );
    assert_refused(guard.gather(0, &arange(&[1, 3])), ErrorKind::SizeMismatch, &["[1, 3]", "axis 0"]);
    assert_refused(
        guard.index_copy_(0, &good, &arange(&[3, 2])),
        ErrorKind::SizeMismatch,
        &["[3, 2]", "[2, 2]"],
    );
    assert_refused(
        guard.scatter_(0, &indices(&[0; 4], &[2, 2]), &arange(&[1, 2])),
        ErrorKind::SizeMismatch,
        &["source", "[1, 2]"],
    );
    let floats = rows.to_dtype(DType::F32).unwrap();
    assert_refused(guard.index_copy_(0, &good, &floats), ErrorKind::DTypeMismatch, &["float32", "int64"]);
    assert_eq!(guard.read::<i64>().unwrap(), [0; 6]);
}

/// Enough elements that they are looked up in pieces. They are spread so that the file is neither read as a whole nor
/// by element.
#[test]
fn many_indices_into_a_large_tensor_read_the_right_elements() {
    let dir = temporary();
    let (rows, cols, count) = (3000, 1000, 300_000);
    let large = Tensor::from_vec((0..rows * cols).map(|i| i as i32).collect(), &[rows, cols]).unwrap();
    let by: Vec<i64> = (0..count as i64).map(|i| i * 7919 % rows as i64).collect();
    let by_each = indices(&by, &[count / cols, cols]);
    for x in in_every_kind_of_storage(&dir.path().join("x.smap"), &large) {
        let gathered: Vec<i32> = x.gather(0, &by_each).unwrap().read().unwrap();
        let expected = by.iter().enumerate().map(|(i, row)| (*row as usize * cols + i % cols) as i32);
        assert!(gathered.iter().copied().eq(expected), "{x:?}");
        if let Ok(mut guard) = x.lock_exclusive() {
            guard.scatter_(0, &by_each, -1).unwrap();
            assert!(guard.gather(0, &by_each).unwrap().read::<i32>().unwrap().iter().all(|&i| i == -1));
            let distinct: std::collections::HashSet<_> =
                by.iter().enumerate().map(|(i, row)| (row, i % cols)).collect();
            let changed = guard.read::<i32>().unwrap().iter().filter(|&&i| i == -1).count();
            assert_eq!(changed, distinct.len(), "{x:?}");
            guard.copy_(&large).unwrap();
        }
    }
}

#[test]
fn rows_longer_than_a_buffer_are_indexed_in_little_memory() {
    let (_dir, path) = new_path();
    let store = fast().create(&path).unwrap();
    let rows = [long_row(0), long_row(1)].concat();
    store.save("rows", &Tensor::from_vec(rows, &[2, LONG_ROW]).unwrap()).unwrap();
    let _ = store.create_tensor("x", DType::U8, &[1, 3, LONG_ROW], StorageKind::Mutable).unwrap();
    run_to_end("index long rows", &path);
    let x = store.load("x").unwrap().read::<u8>().unwrap();
    let expected = [long_row(1), vec![0; LONG_ROW], long_row(0)];
    assert!(x.chunks(LONG_ROW).eq(expected.iter().map(Vec::as_slice)));
}
