//! Tensors that grow, and the readers of their rows.

pub(crate) mod appender;
mod ensure;
mod mapping;
pub(crate) mod processes;
mod refused;
mod transactions;

use crate::harness::hooked::Hooked;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use half::bf16;
use stridemap::{DType, Element, ErrorKind, Snapshot, Store, StoreOptions, Tensor, ix};

use crate::harness::{assert_refused, fast, new_fast_store, open_mapped};
use crate::support::temporary;

const MIB: usize = 1 << 20;
/// The file of the first storage.
const BIN: &str = "storages/0000000000000001.bin";
const SUM: &str = "storages/0000000000000001.sum";

/// Returns the row with this index.
fn row<T>(index: usize, width: usize, element: fn(usize) -> T) -> impl Iterator<Item = T> {
    (0..width).map(move |column| element(index * 131 + column))
}

fn rows<T: Element>(from: usize, count: usize, size_of_row: &[usize], element: fn(usize) -> T) -> Tensor {
    let width = size_of_row.iter().product();
    let elements = (from..from + count).flat_map(|index| row(index, width, element)).collect();
    Tensor::from_vec(elements, &[&[count], size_of_row].concat()).unwrap()
}

fn bytes_of(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

/// Appends these numbers of rows in turn. Everything loaded before must stay unchanged, and everything must verify.
fn check_appends<T: Element + PartialEq + std::fmt::Debug>(
    size_of_row: &[usize],
    counts: &[usize],
    element: fn(usize) -> T,
) {
    let (_dir, path, store) = new_fast_store();
    store.create_growable("x", T::DTYPE, &[&[0], size_of_row].concat(), 0).unwrap();
    let (mapped, width) = (open_mapped(&path), size_of_row.iter().product::<usize>());
    let mut earlier: Vec<(usize, Snapshot, [Tensor; 2])> = Vec::new();
    let mut total = 0;
    for (step, &count) in counts.iter().enumerate() {
        store.append("x", &rows(total, count, size_of_row, element)).unwrap();
        total += count;
        assert!(mapped.refresh().unwrap());
        earlier.push((total, store.snapshot(), [store.load("x").unwrap(), mapped.load("x").unwrap()]));
        // All earlier handles are checked, but only at some of the steps if there are many.
        if step % 50 != 0 && step + 1 != counts.len() {
            continue;
        }
        let expected: Vec<T> = (0..total).flat_map(|index| row(index, width, element)).collect();
        for (total, snapshot, tensors) in &earlier {
            for tensor in tensors.iter().chain([&snapshot.load("x").unwrap()]) {
                assert_eq!(tensor.size(), [&[*total], size_of_row].concat());
                assert!(tensor.is_contiguous());
                assert_eq!(tensor.storage_offset(), 0);
                let found: Vec<T> = tensor.read().unwrap();
                assert!(found == expected[..total * width], "{total} rows after {} changed", step + 1);
            }
            assert_eq!(tensors[1].as_slice::<T>().unwrap().len(), total * width);
        }
        assert_eq!(store.verify(|_| ()).unwrap().findings, [], "after {total} rows");
        assert_eq!(Store::open(&path).unwrap().verify(|_| ()).unwrap().findings, []);
    }
    assert_eq!(
        bytes_of(&path.join(BIN)),
        (total * width * size_of::<T>()) as u64,
        "nothing else was written"
    );
    assert_eq!(bytes_of(&path.join(SUM)), (total * width * size_of::<T>() / MIB * 16) as u64);
    let reader = earlier.swap_remove(0).1;
    assert_eq!(reader.load("x").unwrap().size()[0], counts[0], "a snapshot stays");
}

#[test]
fn appends_leave_earlier_rows_and_snapshots_unchanged() {
    let byte = |i: usize| (i.wrapping_mul(2_654_435_761) >> 13) as u8;
    // From empty to less than a chunk, to exactly one, past it, to several, to exactly five, and past them.
    check_appends(&[], &[5, MIB - 5, 1, 3 * MIB, MIB - 1, 7], byte);
    check_appends(&[], &[MIB, 2 * MIB + 1], byte);
    check_appends(&[3, 5], &[1, 2, 100, 40_000, 1, 60_000], |i| bf16::from_bits(i as u16 & 0x3fff));
    check_appends(&[128], &[1, 5000, 3000], |i| (i % (1 << 24)) as f32);
}

#[test]
fn many_appends_of_one_row_are_all_kept() {
    check_appends(&[7], &[1; 300], |i| i as i64);
}

#[test]
fn saved_tensor_that_ends_its_storage_can_grow_and_keeps_its_names() {
    let (_dir, _, store) = new_fast_store();
    let source = rows(0, 5000, &[256], |i| i as f32).rename(&["row", "column"]).unwrap();
    store.save("x", &source).unwrap();
    let tail = store.load("x").unwrap().narrow(0, 4000, 1000).unwrap();
    store.save_view("tail", &tail).unwrap();
    store.append("x", &rows(5000, 10, &[256], |i| i as f32)).unwrap();
    let x = store.load("x").unwrap();
    assert_eq!(x.names(), [Some("row"), Some("column")]);
    assert!(x.read::<f32>().unwrap() == rows(0, 5010, &[256], |i| i as f32).read::<f32>().unwrap());
    assert_eq!(store.load("tail").unwrap().size(), [1000, 256], "another name is unchanged");
    // A view loaded earlier is saved later, and a view with a different start grows.
    store.save_view("view", &tail.t().unwrap()).unwrap();
    store.save_view("last", &x.narrow(0, 5009, 1).unwrap()).unwrap();
    let rows_of_last = store.append("last", &rows(5010, 3, &[256], |i| i as f32)).unwrap();
    assert_eq!(rows_of_last, 1..4);
    let last = store.load("last").unwrap();
    assert!(last.read::<f32>().unwrap() == rows(5009, 4, &[256], |i| i as f32).read::<f32>().unwrap());
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
    // The tensor that `last` has outgrown no longer ends its storage.
    let refused = store.append("x", &rows(0, 1, &[256], |i| i as f32));
    assert_refused(
        refused,
        ErrorKind::Unsupported,
        &["\"last\"", "create_growable", "[0, 256]", "5130240 bytes"],
    );
}

#[test]
fn growable_tensor_begins_with_zeros_and_accepts_rows_without_bytes() {
    let dir = temporary();
    let store = fast().create(dir.path().join("x.smap")).unwrap();
    store.create_growable("x", DType::I16, &[700_000, 2], 10).unwrap();
    store.append("x", &rows(0, 1, &[2], |_| 9i16)).unwrap();
    let mut expected = vec![0i16; 1_400_000];
    expected.extend([9, 9]);
    assert!(store.load("x").unwrap().read::<i16>().unwrap() == expected);
    store.create_growable("empty", DType::F32, &[0, 0, 3], 5).unwrap();
    store.append("empty", &Tensor::zeros(DType::F32, &[4, 0, 3]).unwrap()).unwrap();
    assert_eq!(store.load("empty").unwrap().size(), [4, 0, 3]);
    let generation = store.generation();
    store.append("x", &Tensor::zeros(DType::I16, &[0, 2]).unwrap()).unwrap();
    assert_eq!(store.generation(), generation, "no rows are no change");
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

#[test]
fn tensor_can_be_appended_to_itself() {
    let (_dir, path, store) = new_fast_store();
    let element = |i: usize| i as f32;
    store.create_growable("x", DType::F32, &[0, 512], 0).unwrap();
    store.append("x", &rows(0, 3000, &[512], element)).unwrap();
    let expected = rows(0, 3000, &[512], element);
    for reader in [Store::open(&path).unwrap(), open_mapped(&path)] {
        reader.refresh().unwrap();
        let before: Vec<f32> = reader.load("x").unwrap().read().unwrap();
        let reversed = reader.load("x").unwrap().index(ix![..;-1]).unwrap();
        store.append("x", &reversed).unwrap();
        reader.refresh().unwrap();
        let x = reader.load("x").unwrap();
        let half = x.size()[0] / 2;
        let (first, second) = (x.narrow(0, 0, half).unwrap(), x.narrow(0, half as isize, half).unwrap());
        assert!(first.read::<f32>().unwrap() == before);
        assert!(second.flip([0]).unwrap().read::<f32>().unwrap() == before);
    }
    assert!(
        store.load("x").unwrap().narrow(0, 0, 3000).unwrap().read::<f32>().unwrap()
            == expected.read::<f32>().unwrap()
    );
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

#[test]
fn collection_keeps_the_rows_that_any_generation_needs() {
    let (_dir, path, store) = new_fast_store();
    store.create_growable("x", DType::U8, &[0], 0).unwrap();
    store.append("x", &rows(0, 5, &[], |i| i as u8)).unwrap();
    let pinned = Store::open(&path).unwrap().snapshot();
    store.append("x", &rows(5, 2 * MIB, &[], |i| i as u8)).unwrap();
    // The older generation has no chunk digests, and less than a chunk.
    assert_eq!(store.gc().unwrap().size_bytes, 0);
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
    assert_eq!(pinned.load("x").unwrap().size(), [5]);
    let longer = Store::open(&path).unwrap().snapshot();
    store.remove("x").unwrap();
    store.gc().unwrap();
    assert_eq!(
        longer.load("x").unwrap().numel(),
        2 * MIB + 5,
        "a storage that the newest does not know is left alone"
    );
    drop((pinned, longer));
    assert_eq!(store.gc().unwrap().file_count, 4, "two manifests and the storage's files");
    assert!(!path.join(BIN).exists() && !path.join(SUM).exists());
}

#[test]
fn append_writes_only_its_rows_and_reads_at_most_the_last_chunk() {
    let dir = temporary();
    let (path, counted) = (dir.path().join("x.smap"), Hooked::default());
    let store = StoreOptions::new().disk(Arc::new(counted.clone())).create(&path).unwrap();
    store.create_growable("x", DType::U8, &[0], 0).unwrap();
    for (count, digests) in [(20 * MIB + 1000, 20), (1, 0), (MIB, 1), (100_000, 0)] {
        let source = rows(0, count, &[], |i| i as u8);
        counted.take_counts();
        store.append("x", &source).unwrap();
        let counts = counted.take_counts();
        println!("{count} bytes appended: {counts:?}");
        assert_eq!(counts.data_written_bytes, count as u64 + 16 * digests);
        assert_eq!(
            counts.data_read_bytes, 0,
            "this handle wrote the end of the storage, or the storage is empty"
        );
        assert!(counts.metadata_written_bytes < 1000);
    }
}
