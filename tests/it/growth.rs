//! Tensors that grow: what those who have them see, and what becomes of appends that do not end.

use std::fs;
use std::io::{BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use half::bf16;
use stridemap::disk::Counted;
use stridemap::{
    DType, Durability, Element, Error, ErrorKind, Snapshot, StorageKind, Store, StoreOptions, Tensor, ix,
};

use crate::processes::{hear, proc, say, start, wait_for_a_line};
use crate::refusals::assert_refused;
use crate::support::{scaled, temporary};

const MIB: usize = 1 << 20;
/// Where the first storage of a store is.
const BIN: &str = "storages/0000000000000001.bin";
const SUM: &str = "storages/0000000000000001.sum";

fn create(path: &Path) -> Store {
    StoreOptions::new().durability(Durability::Process).create(path).unwrap()
}

fn mapped(path: &Path) -> Store {
    // SAFETY: only this library writes the store.
    unsafe { Store::open_mapped(path).unwrap() }
}

/// The row of this index.
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

/// Appends counts of rows one after the other; what anybody has from before stays as it is, and everything verifies.
fn check_appends<T: Element + PartialEq + std::fmt::Debug>(
    size_of_row: &[usize],
    counts: &[usize],
    element: fn(usize) -> T,
) {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = create(&path);
    store.create_growable("x", T::DTYPE, &[&[0], size_of_row].concat(), 0).unwrap();
    let (mapped, width) = (mapped(&path), size_of_row.iter().product::<usize>());
    let mut earlier: Vec<(usize, Snapshot, [Tensor; 2])> = Vec::new();
    let mut total = 0;
    for (step, &count) in counts.iter().enumerate() {
        store.append("x", &rows(total, count, size_of_row, element)).unwrap();
        total += count;
        assert!(mapped.refresh().unwrap());
        earlier.push((total, store.snapshot(), [store.load("x").unwrap(), mapped.load("x").unwrap()]));
        // All of what there was before, at a few of the steps when there are many.
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
fn what_is_there_stays_as_it_is_when_rows_come_behind_it() {
    let byte = |i: usize| (i.wrapping_mul(2_654_435_761) >> 13) as u8;
    // From nothing to less than a chunk, to exactly one, past it, to several, to exactly five, and past them.
    check_appends(&[], &[5, MIB - 5, 1, 3 * MIB, MIB - 1, 7], byte);
    check_appends(&[], &[MIB, 2 * MIB + 1], byte);
    check_appends(&[3, 5], &[1, 2, 100, 40_000, 1, 60_000], |i| bf16::from_bits(i as u16 & 0x3fff));
    check_appends(&[128], &[1, 5000, 3000], |i| (i % (1 << 24)) as f32);
}

#[test]
fn many_appends_of_a_row_are_all_there() {
    check_appends(&[7], &[1; 300], |i| i as i64);
}

#[test]
fn saved_tensor_with_a_storage_of_its_own_grows_too_and_keeps_its_names() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = create(&path);
    let source = rows(0, 5000, &[256], |i| i as f32).rename(&["row", "column"]).unwrap();
    store.save("x", &source).unwrap();
    let tail = store.load("x").unwrap().narrow(0, 4000, 1000).unwrap();
    store.save_view("tail", &tail).unwrap();
    store.append("x", &rows(5000, 10, &[256], |i| i as f32)).unwrap();
    let x = store.load("x").unwrap();
    assert_eq!(x.names(), [Some("row"), Some("column")]);
    assert!(x.read::<f32>().unwrap() == rows(0, 5010, &[256], |i| i as f32).read::<f32>().unwrap());
    assert_eq!(store.load("tail").unwrap().size(), [1000, 256], "another name stays as it is");
    // A view of before is saved after, and one that begins elsewhere grows.
    store.save_view("view", &tail.t().unwrap()).unwrap();
    store.save_view("last", &x.narrow(0, 5009, 1).unwrap()).unwrap();
    let rows_of_last = store.append("last", &rows(5010, 3, &[256], |i| i as f32)).unwrap();
    assert_eq!(rows_of_last, 1..4);
    let last = store.load("last").unwrap();
    assert!(last.read::<f32>().unwrap() == rows(5009, 4, &[256], |i| i as f32).read::<f32>().unwrap());
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
    // The tensor that `last` outgrew is not the last of its storage any more.
    let refused = store.append("x", &rows(0, 1, &[256], |i| i as f32));
    assert_refused(
        refused,
        ErrorKind::NotGrowable,
        &["\"last\"", "create_growable", "[0, 256]", "5130240 bytes"],
    );
}

#[test]
fn growable_of_any_size_begins_with_zeros_and_takes_rows_without_bytes() {
    let dir = temporary();
    let store = create(&dir.path().join("x.smap"));
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
fn rows_of_the_tensor_itself_are_appended_to_it() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = create(&path);
    let element = |i: usize| i as f32;
    store.create_growable("x", DType::F32, &[0, 512], 0).unwrap();
    store.append("x", &rows(0, 3000, &[512], element)).unwrap();
    let expected = rows(0, 3000, &[512], element);
    for reader in [Store::open(&path).unwrap(), mapped(&path)] {
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
fn transaction_appends_again_and_to_several_and_makes_other_changes() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = create(&path);
    let element = |i: usize| i as i32;
    for name in ["x", "y"] {
        store.create_growable(name, DType::I32, &[0, 3], 100).unwrap();
        store.append(name, &rows(0, 2, &[3], element)).unwrap();
    }
    let generation = store.generation();
    let mut txn = store.begin().unwrap();
    assert_eq!(txn.append("x", &rows(2, 400_000, &[3], element)).unwrap(), 2..400_002);
    txn.append("y", &rows(2, 5, &[3], element)).unwrap();
    txn.rename("x", "z").unwrap();
    txn.append("z", &rows(400_002, 1, &[3], element)).unwrap();
    txn.save("other", &rows(0, 1, &[3], element)).unwrap();
    assert_refused(txn.load("z"), ErrorKind::ForeignStorage, &["\"z\"", "commit first"]);
    let staged = txn.append("other", &rows(0, 1, &[3], element));
    assert_refused(staged, ErrorKind::NotGrowable, &["\"other\"", "commit first"]);
    // Another writer goes before, and this thread's own append would wait for itself.
    let other = Store::open(&path).unwrap();
    other.save("elsewhere", &rows(0, 1, &[3], element)).unwrap();
    let busy = other.append("x", &rows(2, 1, &[3], element));
    assert_refused(busy, ErrorKind::Busy, &["this thread", "commit or drop the transaction"]);
    txn.commit().unwrap();
    assert_eq!(store.generation(), generation + 2, "one commit");
    assert_eq!(store.names().unwrap(), ["elsewhere", "other", "y", "z"]);
    let expected = |count| rows(0, count, &[3], element).read::<i32>().unwrap();
    assert!(store.load("z").unwrap().read::<i32>().unwrap() == expected(400_003));
    assert_eq!(store.load("y").unwrap().read::<i32>().unwrap(), expected(7));
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

#[test]
fn transaction_that_is_dropped_leaves_nothing_and_frees_the_storage() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = create(&path);
    store.create_growable("x", DType::U8, &[0], 0).unwrap();
    store.append("x", &rows(0, MIB + 10, &[], |i| i as u8)).unwrap();
    let before = (bytes_of(&path.join(BIN)), bytes_of(&path.join(SUM)));
    let mut txn = store.begin().unwrap();
    txn.append("x", &rows(0, 3 * MIB, &[], |i| i as u8)).unwrap();
    assert!(bytes_of(&path.join(BIN)) > before.0);
    drop(txn);
    assert_eq!((bytes_of(&path.join(BIN)), bytes_of(&path.join(SUM))), before);
    store.append("x", &rows(MIB + 10, 1, &[], |i| i as u8)).unwrap();
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

#[test]
fn rows_behind_a_name_that_another_writer_moved_are_a_conflict() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = create(&path);
    let row = || rows(0, 1, &[], |i| i as u8);
    let changes: [fn(&Store); 3] = [
        |other| other.rename("x", "moved").unwrap(),
        |other| other.remove("x").unwrap(),
        |other| other.save("x", &rows(0, 1, &[], |i| i as u8)).unwrap(),
    ];
    for change in changes {
        store.create_growable("x", DType::U8, &[0], 0).unwrap();
        let mut txn = store.begin().unwrap();
        txn.append("x", &row()).unwrap();
        change(&Store::open(&path).unwrap());
        let refused = txn.commit().map(drop);
        assert_refused(refused, ErrorKind::Conflict, &["\"x\""]);
        assert_eq!(store.verify(|_| ()).unwrap().findings, []);
        store.refresh().unwrap();
    }
    // A change of something else is none.
    store.create_growable("x", DType::U8, &[0], 0).unwrap();
    let mut txn = store.begin().unwrap();
    txn.append("x", &row()).unwrap();
    Store::open(&path).unwrap().copy("x", "empty").unwrap();
    txn.commit().unwrap();
    assert_eq!(store.load("x").unwrap().size(), [1]);
    assert_eq!(store.load("empty").unwrap().size(), [0]);
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

#[test]
fn append_that_cannot_be_is_refused_and_changes_nothing() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = create(&path);
    let element = |i: usize| i as f32;
    let mut txn = store.begin().unwrap();
    for name in ["first", "second"] {
        txn.save(name, &rows(0, 2, &[3], element)).unwrap();
    }
    txn.save("scalar", &Tensor::from_vec(vec![1f32], &[]).unwrap()).unwrap();
    txn.save_as("mutable", &rows(0, 2, &[3], element), StorageKind::Mutable).unwrap();
    txn.create_growable("x", DType::F32, &[0, 3], 0).unwrap();
    txn.commit().unwrap();
    store.append("x", &rows(0, 4, &[3], element)).unwrap();
    let x = store.load("x").unwrap();
    store.save_view("transposed", &x.t().unwrap()).unwrap();
    store.save_view("stepped", &x.index(ix![..;2]).unwrap()).unwrap();
    store.save_view("middle", &x.narrow(0, 1, 2).unwrap()).unwrap();
    let before = (store.generation(), bytes_of(&path.join(BIN)));
    let append = |name: &str| store.append(name, &rows(0, 1, &[3], element));
    assert_refused(append("y"), ErrorKind::NameNotFound, &["append to", "\"y\""]);
    assert_refused(append("mutable"), ErrorKind::NotGrowable, &["mutable", "create_growable", "24 bytes"]);
    assert_refused(append("first"), ErrorKind::NotGrowable, &["\"first\"", "\"scalar\" follows", "24 bytes"]);
    assert_refused(append("middle"), ErrorKind::NotGrowable, &["follows it in the same storage", "[0, 3]"]);
    let transposed = store.append("transposed", &rows(0, 1, &[4], element));
    assert_refused(transposed, ErrorKind::NotGrowable, &["stride [1, 3]", "contiguous", "48 bytes"]);
    assert_refused(append("stepped"), ErrorKind::NotGrowable, &["stride [6, 1]"]);
    let scalar = store.append("scalar", &rows(0, 1, &[], element));
    assert_refused(scalar, ErrorKind::SizeMismatch, &["[1]", "no dimensions"]);
    let of_dtype = store.append("x", &rows(0, 1, &[3], |i| i as i32));
    assert_refused(of_dtype, ErrorKind::DTypeMismatch, &["int32", "float32"]);
    for size_of_row in [&[4][..], &[], &[3, 1], &[1, 3]] {
        let refused = store.append("x", &rows(0, 1, size_of_row, element));
        assert_refused(refused, ErrorKind::SizeMismatch, &["[4, 3]", "dimension 0"]);
    }
    let scalar = store.create_growable("s", DType::F32, &[], 10);
    assert_refused(scalar, ErrorKind::SizeMismatch, &["\"s\"", "[0]"]);
    for capacity in [usize::MAX, (1 << 46) / 8 + 1] {
        let huge = store.create_growable("s", DType::F64, &[0], capacity);
        assert_refused(huge, ErrorKind::LimitExceeded, &["address space", &capacity.to_string()]);
    }
    store.remove("scalar").unwrap();
    assert_refused(append("second"), ErrorKind::NotGrowable, &["no name reaches"]);
    assert_eq!((store.generation(), bytes_of(&path.join(BIN))), (before.0 + 1, before.1));
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

#[test]
fn file_with_two_names_does_not_grow() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = create(&path);
    store.create_growable("x", DType::U8, &[2 * MIB], 0).unwrap();
    for file in [BIN, SUM] {
        fs::hard_link(path.join(file), dir.path().join("backup")).unwrap();
        let refused = store.append("x", &rows(0, 1, &[], |i| i as u8));
        assert_refused(refused, ErrorKind::Conflict, &["hard links", "its own copy"]);
        fs::remove_file(dir.path().join("backup")).unwrap();
    }
    store.append("x", &rows(0, 1, &[], |i| i as u8)).unwrap();
}

/// In a malformed store, the file that is to grow, or to be truncated, also belongs to a longer storage.
#[test]
fn bytes_that_are_lent_through_a_longer_loan_are_not_written_over() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = create(&path);
    let element = |i: usize| i as i64;
    store.create_growable("short", DType::I64, &[2], 0).unwrap();
    store.create_growable("long", DType::I64, &[2], 0).unwrap();
    store.append("long", &rows(2, 4, &[], element)).unwrap();
    let mapped = mapped(&path);
    let long = mapped.load("long").unwrap();
    let lent = long.as_slice::<i64>().unwrap();
    let before = lent.to_vec();
    fs::rename(path.join("storages/0000000000000002.bin"), path.join(BIN)).unwrap();
    for writer in [&store, &mapped] {
        let refused = writer.append("short", &rows(0, 4, &[], element));
        assert_refused(refused, ErrorKind::Corrupt, &[BIN, "mapped in this process as a longer storage"]);
        assert_eq!(lent, before);
    }
    assert_eq!(store.gc().unwrap().size_bytes, 0);
    assert_eq!((bytes_of(&path.join(BIN)), lent), (6 * 8, &before[..]));
    // Once nobody has them any more, they are past the end of the one storage that is left.
    drop((long, mapped));
    store.append("short", &rows(0, 1, &[], element)).unwrap();
    assert_eq!(store.load("short").unwrap().read::<i64>().unwrap(), [0, 0, 0]);
}

#[test]
fn damaged_tail_is_found_by_the_append_and_not_sealed() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = create(&path);
    store.create_growable("x", DType::U8, &[0], 0).unwrap();
    store.append("x", &rows(0, 2 * MIB + 100, &[], |i| i as u8)).unwrap();
    let file = fs::OpenOptions::new().read(true).write(true).open(path.join(BIN)).unwrap();
    let flip = |at: u64| {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    };
    let append = || store.append("x", &rows(0, 1, &[], |i| i as u8));
    for at in [0, 99].map(|at| 2 * MIB as u64 + at) {
        flip(at);
        let generation = store.generation();
        assert_refused(append(), ErrorKind::Corrupt, &["F-25", "2097152", "100 bytes"]);
        assert_eq!(store.generation(), generation);
        flip(at);
    }
    // What is elsewhere is not read; nor does it get another digest.
    flip(5);
    append().unwrap();
    let findings = store.verify(|_| ()).unwrap().findings;
    assert_eq!((findings.len(), findings[0].offset_bytes), (1, Some(0)), "{findings:?}");
    flip(5);
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
    // Nor is a chunk digest of before.
    let sum = fs::OpenOptions::new().write(true).open(path.join(SUM)).unwrap();
    sum.set_len(17).unwrap();
    assert_refused(append(), ErrorKind::Corrupt, &["F-26", ".sum", "32"]);
    fs::remove_file(path.join(SUM)).unwrap();
    assert_refused(append(), ErrorKind::Corrupt, &["F-26", ".sum", "missing"]);
    file.set_len(2 * MIB as u64).unwrap();
    assert_refused(append(), ErrorKind::Corrupt, &["F-26", ".bin"]);
}

#[test]
fn view_of_a_copy_that_has_grown_otherwise_is_foreign() {
    let dir = temporary();
    let (path, copy) = (dir.path().join("x.smap"), dir.path().join("copy.smap"));
    let store = create(&path);
    store.create_growable("x", DType::U8, &[5], 0).unwrap();
    let status = Command::new("cp").arg("-r").arg(&path).arg(&copy).status().unwrap();
    assert!(status.success());
    for (path, grown) in [(&path, vec![1u8; 5]), (&copy, vec![2; 3])] {
        let size = [grown.len()];
        Store::open(path).unwrap().append("x", &Tensor::from_vec(grown, &size).unwrap()).unwrap();
    }
    store.refresh().unwrap();
    for opened in [Store::open(&copy).unwrap(), mapped(&copy)] {
        let foreign = store.save_view("view", &opened.load("x").unwrap());
        assert_refused(foreign, ErrorKind::ForeignStorage, &["copy", "use save"]);
    }
    let before = mapped(&path).load("x").unwrap();
    store.append("x", &Tensor::from_vec(vec![3u8], &[1]).unwrap()).unwrap();
    store.save_view("view", &before).unwrap();
    assert_eq!(store.load("view").unwrap().read::<u8>().unwrap(), [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]);
}

/// How many lines of `/proc/self/maps` are of a storage.
fn map_count(file: &str) -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.ends_with(file)).count()
}

#[test]
fn mapping_is_made_again_only_now_and_then_without_a_reservation_and_not_at_all_within_one() {
    let dir = temporary();
    // What is reserved, in rows; how often 200 rows from 1 on are mapped.
    for (capacity, expected) in [(200, 1..=1), (1 << 36, 1..=1), (0, 8..=9), (100, 2..=2)] {
        let path = dir.path().join(format!("{capacity}.smap"));
        let store = create(&path);
        store.create_growable("x", DType::F32, &[0, 256], capacity).unwrap();
        let reader = mapped(&path);
        let (mut places, mut all) = (Vec::new(), Vec::new());
        for i in 0..200 {
            store.append("x", &rows(i, 1, &[256], |i| i as f32)).unwrap();
            reader.refresh().unwrap();
            let x = reader.load("x").unwrap();
            let elements = x.as_slice::<f32>().unwrap();
            assert_eq!(elements.len(), (i + 1) * 256, "no more is lent than there is");
            assert!(elements[i * 256..].iter().copied().eq(row(i, 256, |i| i as f32)));
            places.push(elements.as_ptr());
            all.push(x);
        }
        places.dedup();
        println!("reserved {capacity} rows: mapped {} times", places.len());
        assert!(expected.contains(&places.len()), "reserved {capacity} rows: mapped {} times", places.len());
        let file = path.join(BIN);
        assert_eq!(map_count(file.to_str().unwrap()), places.len(), "as many as somebody still uses");
        all.drain(..199);
        assert_eq!(map_count(file.to_str().unwrap()), 1);
    }
}

#[test]
fn address_space_that_the_kernel_refuses_is_done_without() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = create(&path);
    store.create_growable("x", DType::F32, &[0, 256], 1 << 33).unwrap();
    store.append("x", &rows(0, 10, &[256], |i| i as f32)).unwrap();
    let exe = std::env::current_exe().unwrap();
    let mut reader = Command::new("sh")
        .arg("-c")
        .arg("ulimit -v 4000000 && exec \"$0\" --exact processes::other_process --nocapture")
        .arg(exe)
        .env("STRIDEMAP_TEST_ROLE", "grow: read mapped")
        .env("STRIDEMAP_TEST_STORE", &path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(reader.stdout.take().unwrap());
    assert_eq!(hear(&mut said), "[10, 256]");
    assert!(reader.wait().unwrap().success());
}

/// Batches of each process, and rows in a batch.
const BATCHES: usize = 40;
const BATCH: usize = 50;

/// What a started process does.
pub(crate) fn play(role: &str, path: &Path) {
    match role {
        "grow: read mapped" => {
            let x = mapped(path).load("x").unwrap();
            assert!(x.as_slice::<f32>().unwrap()[9 * 256..].iter().copied().eq(row(9, 256, |i| i as f32)));
            say(format!("{:?}", x.size()));
        }
        "grow: batches" => {
            let store = StoreOptions::new().durability(Durability::Process).open(path).unwrap();
            let process = i64::from(std::process::id());
            for batch in 0..BATCHES as i64 {
                let elements = (0..BATCH as i64).flat_map(|row| [process, batch, row]).collect();
                store.append("x", &Tensor::from_vec(elements, &[BATCH, 3]).unwrap()).unwrap();
            }
        }
        "grow: stop half-way" => {
            let store = Store::open(path).unwrap();
            let mut txn = store.begin().unwrap();
            txn.append("x", &rows(0, 3 * MIB, &[], |_| 0xeeu8)).unwrap();
            say("appended");
            wait_for_a_line();
        }
        "grow: append" => {
            let (count, batch) = following();
            let store = StoreOptions::new().durability(Durability::Process).open(path).unwrap();
            let before = proc("io", "wchar:");
            for from in (0..count).step_by(batch) {
                store.append("x", &rows(from, batch.min(count - from), &[WIDTH], float)).unwrap();
            }
            say(proc("io", "wchar:") - before);
        }
        "grow: follow" => {
            let (store, count) = (mapped(path), following().0);
            let (mut seen, mut looks, mut places) = (0, 0, Vec::new());
            let mut last = store.load("x").unwrap();
            while seen < count {
                if !store.refresh().unwrap() {
                    std::thread::yield_now();
                    continue;
                }
                let x = store.load("x").unwrap();
                let elements = x.as_slice::<f32>().unwrap();
                for (index, found) in elements.chunks_exact(WIDTH).enumerate().skip(seen) {
                    assert!(found.iter().copied().eq(row(index, WIDTH, float)), "row {index} is not whole");
                }
                (seen, looks) = (x.size()[0], looks + 1);
                places.push(elements.as_ptr());
                assert!(map_count(BIN) <= 1, "mapped again");
                last = x;
            }
            places.dedup();
            assert_eq!(last.size(), [count, WIDTH]);
            say(format!("{looks} {}", places.len()));
        }
        "grow: hold" => {
            let x = mapped(path).load("x").unwrap();
            let elements = x.as_slice::<u8>().unwrap();
            say(x.size()[0]);
            while wait_for_a_line() {
                let is_same = elements.iter().copied().eq((0..elements.len()).map(|i| (i * 131) as u8));
                say(if is_same { "unchanged" } else { "changed" });
            }
        }
        role => panic!("{role:?}"),
    }
}

#[test]
fn two_processes_append_whole_batches_to_one_tensor() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = create(&path);
    store.create_growable("x", DType::I64, &[0, 3], 0).unwrap();
    let mut processes: Vec<Child> = (0..2).map(|_| start("grow: batches", &path)).collect();
    for process in &mut processes {
        assert!(process.wait().unwrap().success());
    }
    store.refresh().unwrap();
    let x = store.load("x").unwrap();
    assert_eq!(x.size(), [2 * BATCHES * BATCH, 3]);
    let elements: Vec<i64> = x.read().unwrap();
    let (rows, _) = elements.as_chunks::<3>();
    let mut next = std::collections::BTreeMap::from_iter(processes.iter().map(|p| (i64::from(p.id()), 0)));
    let mut turns = 0;
    let mut last = 0;
    for batch in rows.chunks(BATCH) {
        let [process, number, _] = batch[0];
        assert_eq!(next.insert(process, number + 1), Some(number), "batches of a process come in its order");
        assert!(batch.iter().enumerate().all(|(at, row)| *row == [process, number, at as i64]), "{batch:?}");
        turns += usize::from(process != last);
        last = process;
    }
    println!("{turns} turns of two processes");
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
    assert_eq!(bytes_of(&path.join(BIN)), (2 * BATCHES * BATCH * 3 * 8) as u64);
}

/// A process that has appended 3 MiB and does not commit.
fn stopped_half_way(path: &Path) -> (Child, BufReader<ChildStdout>) {
    let mut process = start("grow: stop half-way", path);
    let mut said = BufReader::new(process.stdout.take().unwrap());
    assert_eq!(hear(&mut said), "appended");
    (process, said)
}

#[test]
fn killed_appender_blocks_nobody_and_its_bytes_are_written_over_or_given_back() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = StoreOptions::new().lock_timeout(Duration::from_millis(50)).create(&path).unwrap();
    store.create_growable("x", DType::U8, &[0], 0).unwrap();
    store.append("x", &rows(0, MIB + 7, &[], |i| i as u8)).unwrap();
    for expected_length in [MIB + 8, MIB + 9] {
        let (mut killed, _said) = stopped_half_way(&path);
        let id = killed.id();
        let append = || store.append("x", &rows(expected_length - 1, 1, &[], |i| i as u8));
        let busy: Error = append().unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Busy);
        let text = busy.to_string();
        println!("{text}");
        assert!(
            text.contains(&format!("process {id} is appending"))
                || text.contains("another process is appending"),
            "{text}"
        );
        assert_eq!(store.gc().unwrap().size_bytes, 0, "what is being written is left alone");
        assert_eq!(store.load("x").unwrap().size(), [expected_length - 1], "readers do not wait");
        killed.kill().unwrap();
        killed.wait().unwrap();
        assert!(bytes_of(&path.join(BIN)) > 3 * MIB as u64);
        append().unwrap();
        assert_eq!(store.verify(|_| ()).unwrap().findings, []);
    }
    let left = bytes_of(&path.join(BIN)) - (MIB as u64 + 9);
    let collected = store.gc().unwrap();
    assert_eq!((collected.file_count, collected.size_bytes), (0, left));
    assert_eq!((bytes_of(&path.join(BIN)), bytes_of(&path.join(SUM))), (MIB as u64 + 9, 16));
    let expected = rows(0, MIB + 9, &[], |i| i as u8);
    assert!(store.load("x").unwrap().read::<u8>().unwrap() == expected.read::<u8>().unwrap());
    // Chunk digests that a killed process left are given back too.
    let sum = fs::OpenOptions::new().append(true).open(path.join(SUM)).unwrap();
    (&sum).write_all(&[7; 100]).unwrap();
    assert_eq!(store.gc().unwrap().size_bytes, 100);
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

#[test]
fn collection_keeps_what_an_older_and_the_newest_generation_need_of_a_storage() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = create(&path);
    store.create_growable("x", DType::U8, &[0], 0).unwrap();
    store.append("x", &rows(0, 5, &[], |i| i as u8)).unwrap();
    let pinned = Store::open(&path).unwrap().snapshot();
    store.append("x", &rows(5, 2 * MIB, &[], |i| i as u8)).unwrap();
    // The older one has no chunk digests, and less than a chunk.
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
fn append_writes_what_it_appends_and_reads_no_more_than_the_last_chunk() {
    let dir = temporary();
    let (path, counted) = (dir.path().join("x.smap"), Counted::default());
    let store = StoreOptions::new().disk(Arc::new(counted.clone())).create(&path).unwrap();
    store.create_growable("x", DType::U8, &[0], 0).unwrap();
    for (count, digests) in [(20 * MIB + 1000, 20), (1, 0), (MIB, 1), (100_000, 0)] {
        let source = rows(0, count, &[], |i| i as u8);
        counted.take();
        store.append("x", &source).unwrap();
        let counts = counted.take();
        println!("{count} bytes appended: {counts:?}");
        assert_eq!(counts.data_written_bytes, count as u64 + 16 * digests);
        assert!(counts.data_read_bytes < MIB as u64);
        assert!(counts.metadata_written_bytes < 1000);
    }
}

const WIDTH: usize = 128;

fn float(i: usize) -> f32 {
    (i % (1 << 24)) as f32
}

/// Rows to follow, and how many are appended at a time.
fn following() -> (usize, usize) {
    (scaled("STRIDEMAP_TEST_ROWS", 50_000), 1000)
}

/// `STRIDEMAP_TEST_ROWS` sets how many; by default 50,000.
#[test]
fn reader_follows_rows_as_they_are_appended_and_sees_none_before_it_is_whole() {
    let dir = temporary();
    let path: PathBuf = dir.path().join("x.smap");
    let count = following().0;
    create(&path).create_growable("x", DType::F32, &[0, WIDTH], count).unwrap();
    let mut follower = start("grow: follow", &path);
    let mut appender = start("grow: append", &path);
    let [mut followed, mut appended] =
        [&mut follower, &mut appender].map(|process| BufReader::new(process.stdout.take().unwrap()));
    let written_bytes: u64 = hear(&mut appended).parse().unwrap();
    let heard = hear(&mut followed);
    assert!(appender.wait().unwrap().success() && follower.wait().unwrap().success());
    let (looks, places) = heard.split_once(' ').unwrap();
    let data_bytes = (count * WIDTH * 4) as u64;
    println!(
        "{count} rows, {data_bytes} bytes: {written_bytes} written; seen {looks} times at {places} places"
    );
    assert_eq!(places, "1");
    assert!(
        written_bytes as f64 <= 1.1 * data_bytes as f64,
        "{written_bytes} bytes written for {data_bytes}"
    );
    let store = Store::open(&path).unwrap();
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
    // Each row is written once, and the names and digests of it all once an append.
    assert_eq!(store.load("x").unwrap().size(), [count, WIDTH]);
}

/// A repair steps back to fewer rows than another process has borrowed, while a reader is on the older generation or not.
#[test]
fn borrowed_rows_stay_when_a_repair_steps_back_to_fewer() {
    for has_reader in [false, true] {
        let dir = temporary();
        let path = dir.path().join("x.smap");
        let store = create(&path);
        store.create_growable("x", DType::U8, &[0], 1 << 30).unwrap();
        store.append("x", &rows(0, 5000, &[], |i| i as u8)).unwrap();
        let reader = Store::open(&path).unwrap();
        store.append("x", &rows(5000, 3 * MIB, &[], |i| i as u8)).unwrap();
        let newest = path.join(format!("meta/{:016x}.man", store.generation()));
        drop(store);
        let mut holder = start("grow: hold", &path);
        let mut said = BufReader::new(holder.stdout.take().unwrap());
        assert_eq!(hear(&mut said), (5000 + 3 * MIB).to_string());
        let mut check = |what: &str| {
            writeln!(holder.stdin.as_mut().unwrap()).unwrap();
            assert_eq!(hear(&mut said), "unchanged", "{what}, with a reader: {has_reader}");
        };
        let reader = has_reader.then_some(reader);
        fs::File::options().write(true).open(&newest).unwrap().write_all_at(b"garbage!", 30).unwrap();
        let options = StoreOptions::new().durability(Durability::Process);
        let repair = options.repair(&path, |_| ()).unwrap();
        check("repaired");
        let store = options.open(&path).unwrap();
        assert_eq!(store.append("x", &rows(0, 2 * MIB, &[], |_| 0xeeu8)).unwrap(), 5000..5000 + 2 * MIB);
        check("appended");
        store.gc().unwrap();
        check("collected");
        if let Some(reader) = reader {
            assert_eq!(reader.load("x").unwrap().size(), [5000], "the reader's own generation stays");
            drop(reader);
            store.gc().unwrap();
            check("collected again");
            assert!(!path.join(BIN).exists());
        }
        // What was given up is kept, unless a reader needs the file where it is.
        let is_kept = repair.kept.iter().any(|kept| kept.ends_with("lost+found/0000000000000001.bin"));
        assert_eq!(is_kept, !has_reader);
        assert_eq!(store.verify(|_| ()).unwrap().findings, []);
        drop(holder.stdin.take());
        assert!(holder.wait().unwrap().success());
    }
}
