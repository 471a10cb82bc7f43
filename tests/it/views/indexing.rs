//! Copies of the positions that a tensor of indices lists.

use std::path::Path;

use stridemap::{DType, ErrorKind, StorageKind, Store, Tensor};

use crate::filesystems::limits::limited;
use crate::harness::processes::{proc, run_to_end};
use crate::harness::{arange, assert_refused, fast, new_path, open_mapped};
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
    let rows = store.load("rows").unwrap();
    let (row, more) = (long_row(1), 2 * LONG_ROW + 32 * MIB);
    limited(libc::RLIMIT_AS, proc("status", "VmSize:") * 1024 + more as u64, || {
        let twice = rows.index_select(0, &indices(&[1, 1], &[2])).unwrap();
        assert!(twice.as_slice::<u8>().unwrap().chunks(LONG_ROW).all(|copy| copy == row));
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
fn index_select_reads_the_indexed_elements() {
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
            }
        }
    }
}

#[test]
fn indexing_without_dimensions_or_elements_agrees_with_pytorch() {
    let (single, zero) = (indices(&[5], &[]), indices(&[0], &[]));
    assert_eq!(single.index_select(0, &zero).unwrap().size(), [0; 0]);
    assert_eq!(single.index_select(-1, &indices(&[0], &[1])).unwrap().item::<i64>().unwrap(), 5);
    assert_refused(single.index_select(0, &indices(&[0, 0], &[2])), ErrorKind::SizeMismatch, &["[2]", "[]"]);
    let none = indices(&[], &[0]);
    assert_eq!(arange(&[3, 2]).index_select(0, &none).unwrap().size(), [0, 2]);
    assert_eq!(arange(&[0, 2]).index_select(1, &indices(&[1, 1, 0], &[3])).unwrap().size(), [0, 3]);
    assert_refused(arange(&[0, 2]).index_select(0, &zero), ErrorKind::OutOfRange, &["index 0", "size 0"]);
}

#[test]
fn wrong_indices_are_refused() {
    let x = arange(&[3, 2]);
    let refused =
        |axis, index: &Tensor, kind, says: &[&str]| assert_refused(x.index_select(axis, index), kind, says);
    let says = ["index_select", "index -1", "position 1", "axis 0", "size 3"];
    refused(0, &indices(&[0, -1], &[2]), ErrorKind::OutOfRange, &says);
    refused(0, &indices(&[0, 3], &[2]), ErrorKind::OutOfRange, &["index 3"]);
    refused(2, &indices(&[0], &[1]), ErrorKind::OutOfRange, &["axis 2"]);
    refused(0, &arange(&[2, 2]), ErrorKind::SizeMismatch, &["[2, 2]", "vector"]);
    let narrow = indices(&[0, 1], &[2]).to_dtype(DType::I32).unwrap();
    assert_eq!(x.index_select(0, &narrow).unwrap().size(), [2, 2]);
    let says = ["float32", "not int32 or int64", "to_dtype"];
    refused(0, &narrow.to_dtype(DType::F32).unwrap(), ErrorKind::DTypeMismatch, &says);
}

/// Enough runs that they are looked up in pieces. They are spread so that the file is neither read as a whole nor by
/// element.
#[test]
fn many_indices_into_a_large_tensor_read_the_right_elements() {
    let dir = temporary();
    let (rows, cols, count) = (3000, 1000, 300);
    let large = Tensor::from_vec((0..rows * cols).map(|i| i as i32).collect(), &[rows, cols]).unwrap();
    let by: Vec<i64> = (0..count).map(|i| i * 7919 % cols as i64).collect();
    for x in in_every_kind_of_storage(&dir.path().join("x.smap"), &large) {
        let found: Vec<i32> = x.index_select(1, &indices(&by, &[by.len()])).unwrap().read().unwrap();
        let expected =
            (0..rows).flat_map(|row| by.iter().map(move |column| (row * cols) as i32 + *column as i32));
        assert!(found.into_iter().eq(expected), "{x:?}");
    }
}

#[test]
fn rows_longer_than_a_buffer_are_indexed_in_little_memory() {
    let (_dir, path) = new_path();
    let store = fast().create(&path).unwrap();
    let rows = [long_row(0), long_row(1)].concat();
    store.save("rows", &Tensor::from_vec(rows, &[2, LONG_ROW]).unwrap()).unwrap();
    run_to_end("index long rows", &path);
}
