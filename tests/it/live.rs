//! Live storages: elements that threads and processes read and write at once.

use std::fmt::Debug;
use std::fs;
use std::io::{self, BufReader, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use half::{bf16, f16};
use stridemap::disk::SimulatedDisk;
use stridemap::{DType, ErrorKind, LiveElement, LiveTensor, StorageKind, Store, StoreOptions, Tensor};

use crate::hooked::Hooked;
use crate::processes::{hear, say, start, wait_for_a_line};
use crate::random::Random;
use crate::refusals::assert_refused;
use crate::support::temporary;

mod lies;

/// A store whose elements can be shared in memory.
pub(crate) fn mapped(path: &Path) -> Store {
    // SAFETY: the tests write through the library only.
    unsafe { Store::open_mapped(path).unwrap() }
}

fn live<T: LiveElement>(store: &Store, name: &str, elements: Vec<T>, size: &[usize]) -> LiveTensor<T> {
    store.save_as(name, &Tensor::from_vec(elements, size).unwrap(), StorageKind::Live).unwrap();
    store.load(name).unwrap().as_live().unwrap()
}

/// What the started process does.
pub(crate) fn play(role: &str, path: &Path) {
    let store = mapped(path);
    match role {
        "live add" => {
            let (floats, integers) = (
                store.load("f32").unwrap().as_live().unwrap(),
                store.load("i64").unwrap().as_live().unwrap(),
            );
            say("ready");
            wait_for_a_line();
            for _ in 0..ADDITIONS {
                for i in 0..floats.numel() as isize {
                    floats.fetch_add([i], 1f32).unwrap();
                    integers.fetch_add([i], 1i64).unwrap();
                }
            }
        }
        "live echo" => {
            let x = store.load("x").unwrap().as_live::<i64>().unwrap();
            say("ready");
            while wait_for_a_line() {
                x.set([1], x.get([0]).unwrap() + 1).unwrap();
                say("done");
            }
        }
        "live hold" => {
            let x = store.load("x").unwrap();
            let mut guard = x.lock_exclusive().unwrap();
            guard.fill_(5).unwrap();
            say("ready");
            wait_for_a_line();
        }
        "live as nobody" => {
            // SAFETY: a call of the system that changes this process only, which ends here.
            assert_eq!(unsafe { libc::setuid(65534) }, 0);
            let x = store.load("x").unwrap();
            assert_refused(x.as_live::<i64>(), ErrorKind::ReadOnly, &["as_live", "0000000000000001.bin"]);
            assert_eq!(x.read::<i64>().unwrap(), [7, 8]);
        }
        role => panic!("no role {role}"),
    }
}

/// How often each process adds 1 to each element.
const ADDITIONS: usize = 10_000;

fn listen(child: &mut Child) -> BufReader<std::process::ChildStdout> {
    let mut said = BufReader::new(child.stdout.take().unwrap());
    assert_eq!(hear(&mut said), "ready");
    said
}

#[test]
fn four_processes_that_add_to_the_same_elements_lose_nothing() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    Store::create(&path).unwrap();
    let store = mapped(&path);
    let floats = store.create_tensor("f32", DType::F32, &[1000], StorageKind::Live).unwrap();
    let integers = store.create_tensor("i64", DType::I64, &[1000], StorageKind::Live).unwrap();
    let mut processes: Vec<Child> = (0..4).map(|_| start("live add", &path)).collect();
    // All are there before one begins.
    let _said: Vec<_> = processes.iter_mut().map(listen).collect();
    for process in &mut processes {
        writeln!(process.stdin.as_mut().unwrap()).unwrap();
    }
    for process in &mut processes {
        assert!(process.wait().unwrap().success());
    }
    let sum = 4 * ADDITIONS;
    const { assert!(4 * ADDITIONS < 1 << 24, "float32 counts no further") };
    assert_eq!(floats.as_live::<f32>().unwrap().read().unwrap(), [sum as f32; 1000]);
    assert_eq!(integers.as_live::<i64>().unwrap().read().unwrap(), [sum as i64; 1000]);
    assert_eq!(integers.read::<i64>().unwrap(), [sum as i64; 1000]);
}

#[test]
fn threads_that_exchange_lose_nothing_either() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    Store::create(&path).unwrap();
    let x = live(&mapped(&path), "x", vec![1u16, 0, 0], &[3]);
    thread::scope(|scope| {
        for _ in 0..4 {
            let x = x.clone();
            scope.spawn(move || {
                for _ in 0..5000 {
                    let mut current = x.get([1]).unwrap();
                    while let Err(found) = x.compare_exchange([1], current, current + 3).unwrap() {
                        current = found;
                    }
                }
            });
        }
    });
    assert_eq!(x.read().unwrap(), [1, 60_000, 0]);
}

/// Everything there is to do with elements of one type; `sum` is how they add.
fn elements_are_held<T: LiveElement + PartialEq + Debug>(elements: [T; 4], sum: impl Fn(T, T) -> T) {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    Store::create(&path).unwrap();
    let store = mapped(&path);
    let [a, b, c, d] = elements;
    let zero = T::default();
    let x = store.create_tensor("zeros", T::DTYPE, &[2, 2], StorageKind::Live).unwrap();
    let x = x.as_live::<T>().unwrap();
    assert_eq!(x.read().unwrap(), [zero; 4]);
    x.write_from(&[a, b, c, d]).unwrap();
    assert_eq!(x.get([0, 1]).unwrap(), b);
    assert_eq!(x.get([-1, -2]).unwrap(), c);
    x.set([1, 0], a).unwrap();
    assert_eq!(x.fetch_add([1, 1], b).unwrap(), d);
    assert_eq!(x.read().unwrap(), [a, b, a, sum(d, b)]);
    assert_eq!(x.compare_exchange([0, 0], b, c).unwrap(), Err(a));
    assert_eq!(x.compare_exchange([0, 0], a, c).unwrap(), Ok(a));
    let mut row = [zero; 2];
    x.read_row_into(0, &mut row).unwrap();
    assert_eq!(row, [c, b]);
    x.write_row_from(-1, &[d, d]).unwrap();
    assert_eq!(x.read().unwrap(), [c, b, d, d]);
    x.at(&x.select(1, 1).unwrap()).unwrap().fill(a);
    assert_eq!(x.read().unwrap(), [c, a, d, a]);
    x.flush().unwrap();

    let saved = live(&store, "saved", elements.to_vec(), &[4]);
    assert_eq!(saved.read().unwrap(), elements);
    // The bytes are those of any other storage of the dtype, and any way to copy gives them.
    let reopened = Store::open(&path).unwrap();
    assert_eq!(reopened.load("saved").unwrap().read::<T>().unwrap(), elements);
    assert_eq!(reopened.load("zeros").unwrap().t().unwrap().read::<T>().unwrap(), [c, d, a, a]);
    store.save("copy", &*x).unwrap();
    x.fill(zero);
    assert_eq!(store.load("copy").unwrap().as_slice::<T>().unwrap(), [c, a, d, a]);
    let kinds: Vec<_> = store.snapshot().storages().map(|info| info.unwrap().kind).collect();
    assert_eq!(kinds, [StorageKind::Live, StorageKind::Live, StorageKind::Sealed]);
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

#[test]
fn elements_of_every_live_dtype_are_held() {
    elements_are_held([1, 2, 3, u8::MAX], u8::wrapping_add);
    elements_are_held([1, 2, 3, u16::MAX], u16::wrapping_add);
    elements_are_held([1, 2, 3, u32::MAX], u32::wrapping_add);
    elements_are_held([1, 2, 3, u64::MAX], u64::wrapping_add);
    elements_are_held([-1, 2, -3, i8::MAX], i8::wrapping_add);
    elements_are_held([-1, 2, -3, i16::MAX], i16::wrapping_add);
    elements_are_held([-1, 2, -3, i32::MAX], i32::wrapping_add);
    elements_are_held([-1, -2, -3, i64::MIN], i64::wrapping_add);
    let halves = [0.1, -2.5, 3., 0.7];
    elements_are_held(halves.map(f16::from_f32), |a, b| f16::from_f32(a.to_f32() + b.to_f32()));
    elements_are_held(halves.map(bf16::from_f32), |a, b| bf16::from_f32(a.to_f32() + b.to_f32()));
    elements_are_held([0.1f32, -2.5, 3., 0.7], |a, b| a + b);
    elements_are_held([0.1f64, -2.5, 3., 0.7], |a, b| a + b);
}

#[test]
fn other_dtypes_cannot_be_live() {
    let dir = temporary();
    let store = Store::create(dir.path().join("x.smap")).unwrap();
    let live = [
        "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "bfloat16",
        "float32", "float64",
    ];
    let mut live_count = 0;
    for &dtype in DType::ALL {
        let created = store.create_tensor("x", dtype, &[2], StorageKind::Live);
        let saved = store.save_as("x", &Tensor::zeros(dtype, &[2]).unwrap(), StorageKind::Live);
        if live.contains(&dtype.name()) {
            assert_eq!(created.unwrap().dtype(), dtype);
            saved.unwrap();
            live_count += 1;
        } else {
            let says = [dtype.name(), "\"x\"", "8 to 64 bits", "float16, bfloat16, float32 and float64"];
            assert_refused(created.map(drop), ErrorKind::InvalidArgument, &says);
            assert_refused(saved, ErrorKind::InvalidArgument, &says);
        }
    }
    assert_eq!(live_count, live.len());
}

/// 16-bit floats of all kinds are added to each other; `sum` gives the bits of a sum.
fn sums_are_rounded<T: LiveElement>(of_bits: fn(u16) -> T, to_bits: fn(T) -> u16, sum: fn(u16, u16) -> u16) {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    Store::create(&path).unwrap();
    let x = live(&mapped(&path), "x", vec![T::default()], &[]);
    let mut random = Random::new(7);
    for _ in 0..100_000 {
        let (a, b) = (random.next() as u16, random.next() as u16);
        x.set((), of_bits(a)).unwrap();
        assert_eq!(to_bits(x.fetch_add((), of_bits(b)).unwrap()), a);
        assert_eq!(to_bits(x.get(()).unwrap()), sum(a, b), "{a:#x} and {b:#x}");
    }
}

#[test]
fn half_precision_sums_are_rounded_to_the_nearest() {
    // In float64 nothing that counts is lost before it is rounded. A NaN's bits are the adder's own business.
    sums_are_rounded(f16::from_bits, f16::to_bits, |a, b| {
        let (a, b) = (f16::from_bits(a), f16::from_bits(b));
        if (a + b).is_nan() { (a + b).to_bits() } else { f16::from_f64(a.to_f64() + b.to_f64()).to_bits() }
    });
    sums_are_rounded(bf16::from_bits, bf16::to_bits, |a, b| {
        let (a, b) = (bf16::from_bits(a), bf16::from_bits(b));
        if (a + b).is_nan() { (a + b).to_bits() } else { bf16::from_f64(a.to_f64() + b.to_f64()).to_bits() }
    });
}

#[test]
fn elements_are_compared_by_their_bits() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    Store::create(&path).unwrap();
    let (nan, other_nan) = (f32::from_bits(0x7fc0_0001), f32::from_bits(0x7fc0_0002));
    let x = live(&mapped(&path), "x", vec![nan, -0.], &[2]);
    let bits = |exchanged: Result<f32, f32>| exchanged.map(f32::to_bits).map_err(f32::to_bits);
    let exchange = |i, current, new| bits(x.compare_exchange([i], current, new).unwrap());
    assert_eq!(exchange(0, other_nan, 1.), Err(nan.to_bits()));
    assert_eq!(exchange(0, nan, other_nan), Ok(nan.to_bits()));
    assert_eq!(exchange(1, 0., 1.), Err((-0f32).to_bits()));
    assert_eq!(exchange(1, -0., 0.), Ok((-0f32).to_bits()));
    assert_eq!(x.read().unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>(), [other_nan.to_bits(), 0]);
    // An addition to a NaN ends, though no NaN equals what it was.
    assert!(x.fetch_add([0], 1.).unwrap().is_nan() && x.get([0]).unwrap().is_nan());
}

#[test]
fn live_tensor_goes_to_other_threads() {
    fn goes<T: Send + Sync + Clone + 'static>() {}
    goes::<LiveTensor<f32>>();
    goes::<LiveTensor<u8>>();
}

#[test]
fn what_cannot_be_live_is_refused() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    Store::create(&path).unwrap();
    let store = mapped(&path);
    let heap = Tensor::from_vec(vec![1f32; 6], &[2, 3]).unwrap();
    store.save("sealed", &heap).unwrap();
    store.save_as("mutable", &heap, StorageKind::Mutable).unwrap();
    store.save_as("live", &heap, StorageKind::Live).unwrap();
    let load = |name| store.load(name).unwrap();

    let not_live = ErrorKind::NotLive;
    assert_refused(heap.as_live::<f32>(), not_live, &["as_live", "memory", "save_as", "StorageKind::Live"]);
    assert_refused(load("sealed").as_live::<f32>(), not_live, &["0000000000000001", "sealed", "save_as"]);
    assert_refused(load("mutable").as_live::<f32>(), not_live, &["mutable", "lock_exclusive", "save_as"]);
    let mut txn = store.begin().unwrap();
    txn.create_tensor("new", DType::F32, &[2], StorageKind::Live).unwrap();
    assert_refused(txn.load("new").unwrap().as_live::<f32>(), not_live, &["not committed", "load it"]);
    drop(txn);

    let x = load("live");
    let unmapped = Store::open(&path).unwrap().load("live").unwrap();
    assert_refused(unmapped.as_live::<f32>(), ErrorKind::NotMapped, &["as_live", "open_mapped"]);
    assert_refused(x.as_live::<i32>(), ErrorKind::DTypeMismatch, &["as_live::<i32>", "float32"]);
    let wide = x.narrow(1, 0, 2).unwrap().view_dtype(DType::F16).unwrap();
    assert_refused(wide.as_live::<f16>(), ErrorKind::DTypeMismatch, &["4 bytes at a time", "float16 has 2"]);
    let same_width = x.view_dtype(DType::I32).unwrap().as_live::<i32>().unwrap();
    assert_eq!(same_width.get([0, 0]).unwrap(), 1f32.to_bits() as i32);
    for view in [x.expand([2, 2, 3]).unwrap(), x.unfold(1, 2, 1).unwrap()] {
        let shown = format!("{:?}", view.stride());
        assert_refused(view.as_live::<f32>(), ErrorKind::Overlapping, &["as_live", &shown]);
    }

    let live = x.as_live::<f32>().unwrap();
    assert_refused(
        live.at(&load("mutable")),
        ErrorKind::InvalidArgument,
        &["0000000000000002", "0000000000000003"],
    );
    assert_refused(live.at(&heap), ErrorKind::InvalidArgument, &["heap"]);
    assert_refused(live.at(&wide), ErrorKind::DTypeMismatch, &["at", "float16"]);
    assert_refused(live.at(&x.expand([2, 2, 3]).unwrap()), ErrorKind::Overlapping, &["at:"]);
    let shown = ["size [2, 3] with stride [3, 1]"];
    assert_refused(live.get([2, 0]), ErrorKind::OutOfRange, &["get([2, 0])", "index 2", "axis 0", shown[0]]);
    assert_refused(live.set([0, -4], 1.), ErrorKind::OutOfRange, &["set([0, -4])", "axis 1"]);
    assert_refused(
        live.fetch_add([0], 1.),
        ErrorKind::SizeMismatch,
        &["fetch_add([0])", "1 positions", "2 axes"],
    );
    assert_refused(live.compare_exchange([0; 3], 1., 1.), ErrorKind::OutOfRange, &["3 positions", "2 axes"]);
    assert_refused(
        live.read_into(&mut [0.; 5]),
        ErrorKind::SizeMismatch,
        &["read_into", "6 elements", "has length 5"],
    );
    assert_refused(
        live.write_from(&[0.; 7]),
        ErrorKind::SizeMismatch,
        &["write_from", "6 elements", "has length 7"],
    );
    assert_refused(live.read_row_into(2, &mut [0.; 3]), ErrorKind::OutOfRange, &["read_row_into", "index 2"]);
    assert_refused(
        live.write_row_from(0, &[0.; 2]),
        ErrorKind::SizeMismatch,
        &["write_row_from", "3 elements"],
    );
    let row = live.at(&live.select(0, 0).unwrap()).unwrap();
    let number = row.at(&row.select(0, 0).unwrap()).unwrap();
    assert_refused(number.read_row_into(0, &mut []), ErrorKind::OutOfRange, &["read_row_into"]);
    assert_eq!(live.read().unwrap(), [1.; 6]);

    for refused in [x.as_slice::<f32>().map(drop), x.as_array::<f32>().map(drop)] {
        assert_refused(refused, ErrorKind::NotMapped, &["live storage", "as_live", "read"]);
    }
    for refused in [x.lock_shared().map(drop), x.lock_exclusive().map(drop)] {
        assert_refused(refused, ErrorKind::NotMutable, &["lock_", "live", "as_live"]);
    }

    let simulated = StoreOptions::new().disk(Arc::new(SimulatedDisk::new())).create("/x.smap").unwrap();
    let x = simulated.create_tensor("x", DType::I32, &[2], StorageKind::Live).unwrap();
    assert_refused(x.as_live::<i32>(), ErrorKind::NotMapped, &["as_live", "open_mapped"]);
}

#[test]
fn case_40_tensor_without_elements_is_live_as_any_other() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    Store::create(&path).unwrap();
    let store = mapped(&path);
    let x = store.create_tensor("x", DType::F32, &[0, 3], StorageKind::Live).unwrap();
    let x = x.as_live::<f32>().unwrap();
    assert_eq!(x.read().unwrap(), [0.; 0]);
    x.write_from(&[]).unwrap();
    x.fill(1.);
    x.flush().unwrap();
    assert_refused(x.get([0, 0]), ErrorKind::OutOfRange, &["size 0"]);
    assert_refused(x.read_row_into(0, &mut [0.; 3]), ErrorKind::OutOfRange, &["size 0"]);
    let scalar = live(&store, "scalar", vec![3i8], &[]);
    assert_eq!(scalar.fetch_add((), 4).unwrap(), 3);
    assert_eq!(scalar.read().unwrap(), [7]);
}

#[test]
fn handles_of_one_process_share_one_mapping() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    Store::create(&path).unwrap();
    let (store, other) = (mapped(&path), mapped(&path));
    let mappings = || {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let file = path.join("storages/0000000000000001.bin");
        maps.lines().filter(|line| line.ends_with(file.to_str().unwrap())).count()
    };
    store.create_tensor("x", DType::I64, &[4, 2], StorageKind::Live).unwrap();
    other.refresh().unwrap();
    assert_eq!(mappings(), 0);
    let x = store.load("x").unwrap().as_live::<i64>().unwrap();
    let y = other.load("x").unwrap().t().unwrap().as_live::<i64>().unwrap();
    assert_eq!(mappings(), 1);
    x.set([3, 1], 5).unwrap();
    assert_eq!(y.get([1, 3]).unwrap(), 5);
    // A view of another handle is one of the same storage.
    assert_eq!(x.at(&y).unwrap().read().unwrap(), [0, 0, 0, 0, 0, 0, 0, 5]);
    drop((x, store));
    assert_eq!(y.fetch_add([1, 3], 1).unwrap(), 5);
    assert_eq!(mappings(), 1);
    drop(y);
    assert_eq!(mappings(), 0);
}

#[test]
fn another_process_sees_an_element_at_once_and_keeps_it_when_the_writer_is_killed() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    Store::create(&path).unwrap();
    let x = live(&mapped(&path), "x", vec![0i64; 2], &[2]);
    let mut echo = start("live echo", &path);
    let mut said = listen(&mut echo);
    for value in [41, 7] {
        x.set([0], value).unwrap();
        writeln!(echo.stdin.as_mut().unwrap()).unwrap();
        assert_eq!(hear(&mut said), "done");
        assert_eq!(x.get([1]).unwrap(), value + 1);
    }
    echo.kill().unwrap();
    echo.wait().unwrap();
    drop(x);
    assert_eq!(Store::open(&path).unwrap().load("x").unwrap().read::<i64>().unwrap(), [7, 8]);
}

#[test]
fn storage_that_lost_its_name_or_has_another_is_not_mapped_to_be_changed() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    Store::create(&path).unwrap();
    let store = mapped(&path);
    let x = store.create_tensor("x", DType::U8, &[4], StorageKind::Live).unwrap();
    let file = path.join("storages/0000000000000001.bin");
    fs::hard_link(&file, dir.path().join("backup")).unwrap();
    assert_refused(x.as_live::<u8>(), ErrorKind::Conflict, &["as_live", "2 names", "copy"]);
    fs::remove_file(dir.path().join("backup")).unwrap();
    let live = x.as_live::<u8>().unwrap();
    fs::copy(&file, dir.path().join("copy")).unwrap();
    fs::rename(dir.path().join("copy"), &file).unwrap();
    assert_refused(x.as_live::<u8>(), ErrorKind::Replaced, &["replaced", "load it again"]);
    let (reader, x) = (mapped(&path), mapped(&path).load("x").unwrap());
    let snapshot = reader.snapshot();
    store.remove("x").unwrap();
    assert_refused(x.as_live::<u8>(), ErrorKind::Conflict, &["lost", "new name"]);
    drop((snapshot, reader));
    // What is held goes on, for nobody else.
    live.fill(3);
    assert_eq!(live.read().unwrap(), [3; 4]);
}

#[test]
fn short_file_is_corrupt_and_holes_are_filled_before_it_is_mapped() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    Store::create(&path).unwrap();
    let store = mapped(&path);
    let x = store.create_tensor("x", DType::U8, &[1 << 20], StorageKind::Live).unwrap();
    let file = fs::OpenOptions::new().write(true).open(path.join("storages/0000000000000001.bin")).unwrap();
    file.set_len(9).unwrap();
    assert_refused(x.as_live::<u8>(), ErrorKind::Corrupt, &["as_live", "9 bytes", "1048576"]);
    file.set_len(1 << 20).unwrap();
    assert!(file.metadata().unwrap().blocks() * 512 < 1 << 20, "no hole");
    let live = x.as_live::<u8>().unwrap();
    assert!(file.metadata().unwrap().blocks() * 512 >= 1 << 20, "a full disk would be a fault");
    assert_eq!(live.get([-1]).unwrap(), 0);
}

#[test]
fn read_only_file_is_read_and_not_live() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = Store::create(&path).unwrap();
    let vector = Tensor::from_vec(vec![7i64, 8], &[2]).unwrap();
    store.save_as("x", &vector, StorageKind::Live).unwrap();
    if fs::metadata(&path).unwrap().uid() != 0 {
        println!("skipped: only root can give its rights up");
        return;
    }
    fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    assert!(start("live as nobody", &path).wait().unwrap().success());
}

#[test]
fn view_of_a_live_tensor_of_a_copied_store_is_foreign() {
    let dir = temporary();
    let (original, copy) = (dir.path().join("a.smap"), dir.path().join("b.smap"));
    let store = Store::create(&original).unwrap();
    let x = store.create_tensor("x", DType::I64, &[4], StorageKind::Live).unwrap();
    assert!(Command::new("cp").arg("-r").args([&original, &copy]).status().unwrap().success());
    let (mapped_copy, mapped_original) = (mapped(&copy), mapped(&original));
    let other = mapped_copy.load("x").unwrap();
    other.as_live::<i64>().unwrap().fill(2);
    assert_refused(store.save_view("view", &other), ErrorKind::ForeignStorage, &["copy", "use save"]);
    let live = mapped_original.load("x").unwrap().as_live::<i64>().unwrap();
    assert_refused(live.at(&other), ErrorKind::InvalidArgument, &["at", "0000000000000001"]);
    store.save_view("view", &x.flip([0]).unwrap()).unwrap();
    live.set([0], 9).unwrap();
    assert_eq!(store.load("view").unwrap().read::<i64>().unwrap(), [0, 0, 0, 9]);
    assert_eq!(format!("{}", store.load("view").unwrap()), "tensor([0, 0, 0, 9])");
}

#[test]
fn case_04_failed_commit_refuses_the_flush_of_live_elements() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    Store::create(&path).unwrap().create_tensor("x", DType::I32, &[4], StorageKind::Live).unwrap();
    let disk = Hooked::before(|operation, path| match operation == "sync_dir" && path.ends_with("meta") {
        true => Err(io::Error::other("injected fault")),
        false => Ok(()),
    });
    // SAFETY: the tests write through the library only.
    let store = unsafe { StoreOptions::new().disk(Arc::new(disk)).open_mapped(&path).unwrap() };
    let x = store.load("x").unwrap().as_live::<i32>().unwrap();
    assert_refused(store.copy("x", "y"), ErrorKind::CommitUnknown, &["injected fault"]);
    assert_refused(x.flush(), ErrorKind::Poisoned, &["this handle can no longer write", "injected fault"]);
    // Another handle of the process may: the elements were not what failed.
    mapped(&path).load("x").unwrap().as_live::<i32>().unwrap().flush().unwrap();
}

#[test]
fn case_06_failed_flush_of_live_elements_is_known_to_every_handle() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    Store::create(&path).unwrap().create_tensor("x", DType::I32, &[4], StorageKind::Live).unwrap();
    let fails = Arc::new(AtomicBool::new(false));
    let hook = {
        let fails = Arc::clone(&fails);
        move |operation: &str, _: &Path| match operation == "sync" && fails.load(Ordering::Relaxed) {
            true => Err(io::Error::other("injected fault")),
            false => Ok(()),
        }
    };
    let options = StoreOptions::new().disk(Arc::new(Hooked::before(hook)));
    // SAFETY: the tests write through the library only.
    let store = unsafe { options.open_mapped(&path).unwrap() };
    let x = store.load("x").unwrap().as_live::<i32>().unwrap();
    x.fill(1);
    x.flush().unwrap();
    fails.store(true, Ordering::Relaxed);
    assert_refused(x.flush(), ErrorKind::Io, &["flush", "0000000000000001.bin", "injected fault"]);
    fails.store(false, Ordering::Relaxed);
    assert_refused(x.flush(), ErrorKind::Poisoned, &["earlier flush", "lost"]);
    let live = store.load("x").unwrap().as_live::<i32>().map(drop);
    for refused in [store.copy("x", "y"), store.remove("x"), live] {
        assert_refused(refused, ErrorKind::Poisoned, &["this handle can no longer write", "flush storage"]);
    }
    drop(x);
    let again = mapped(&path).load("x").unwrap().as_live::<i32>().unwrap();
    assert_refused(again.flush(), ErrorKind::Poisoned, &["earlier flush"]);
    again.set([0], 2).unwrap();
    assert_eq!(again.read().unwrap(), [2, 1, 1, 1]);
}

#[test]
fn case_23_exclusive_guard_against_a_live_view_or_another_guard_is_refused_or_waits() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    Store::create(&path).unwrap();
    let options = StoreOptions::new().lock_timeout(Duration::from_millis(50));
    // SAFETY: the tests write through the library only.
    let store = unsafe { options.open_mapped(&path).unwrap() };
    // A storage is mutable or live, and never both: who has a guard of it has nobody's live view against it.
    let live = live(&store, "live", vec![1i64; 3], &[3]);
    for refused in [live.lock_exclusive().map(drop), live.lock_shared().map(drop)] {
        assert_refused(refused, ErrorKind::NotMutable, &["live", "as_live"]);
    }
    let x = store.create_tensor("x", DType::I64, &[3], StorageKind::Mutable).unwrap();
    let mut holder = start("live hold", &path);
    let _said = listen(&mut holder);
    assert_refused(x.as_live::<i64>(), ErrorKind::NotLive, &["mutable", "lock_exclusive"]);
    for refused in [x.lock_shared().map(drop), x.lock_exclusive().map(drop)] {
        assert_refused(refused, ErrorKind::Busy, &["50ms", "try again"]);
    }
    // SAFETY: as above.
    let patient = unsafe { Store::open_mapped(&path).unwrap() }.load("x").unwrap();
    let waiting =
        thread::spawn(move || patient.lock_exclusive().and_then(|mut guard| guard.add_(1).map(drop)));
    thread::sleep(Duration::from_millis(50));
    assert!(!waiting.is_finished(), "two guards, one of them exclusive");
    writeln!(holder.stdin.as_mut().unwrap()).unwrap();
    assert!(holder.wait().unwrap().success());
    waiting.join().unwrap().unwrap();
    assert_eq!(x.read::<i64>().unwrap(), [6; 3]);
    let mut guard = x.lock_exclusive().unwrap();
    assert_refused(x.as_live::<i64>(), ErrorKind::NotLive, &["mutable"]);
    guard.fill_(0).unwrap();
    live.fill(5);
}
