//! Live storages: elements that threads and processes read and write at once.

mod elements;
mod refused;
mod shared_files;
mod waits;

use std::fs;
use std::io::{BufReader, Write as _};
use std::path::Path;
use std::process::Child;
use std::thread;

use stridemap::{DType, ErrorKind, LiveElement, LiveTensor, StorageKind, Store, Tensor};

use crate::harness::processes::{read_line, send_line, start, wait_for_line};
use crate::harness::{assert_refused, new_path, open_mapped};

/// Saves elements as a live tensor.
fn live<T: LiveElement>(store: &Store, name: &str, elements: Vec<T>, size: &[usize]) -> LiveTensor<T> {
    store
        .write(|txn| txn.save_as(name, &Tensor::from_vec(elements, size).unwrap(), StorageKind::Live))
        .unwrap();
    store.load(name).unwrap().as_live().unwrap()
}

/// Runs a role in a started process.
pub(crate) fn run_role(role: &str, path: &Path) {
    let store = open_mapped(path);
    match role {
        "live add" => {
            let (floats, integers) = (
                store.load("f32").unwrap().as_live().unwrap(),
                store.load("i64").unwrap().as_live().unwrap(),
            );
            send_line("ready");
            wait_for_line();
            for _ in 0..ADDITIONS {
                for i in 0..floats.tensor().numel() as isize {
                    floats.fetch_add([i], 1f32).unwrap();
                    integers.fetch_add([i], 1i64).unwrap();
                }
            }
        }
        "live echo" => {
            let x = store.load("x").unwrap().as_live::<i64>().unwrap();
            send_line("ready");
            while wait_for_line() {
                x.set([1], x.get([0]).unwrap() + 1).unwrap();
                send_line("done");
            }
        }
        "live answer" => waits::answer(&store),
        "live as nobody" => {
            // SAFETY: a system call that changes only this process, which ends here.
            assert_eq!(unsafe { libc::setuid(65534) }, 0);
            let x = store.load("x").unwrap();
            assert_refused(x.as_live::<i64>(), ErrorKind::ReadOnly, &["as_live", "0000000000000001.bin"]);
            assert_eq!(x.read::<i64>().unwrap(), [7, 8]);
        }
        role => panic!("no role {role}"),
    }
}

/// The number of times each process adds 1 to each element.
const ADDITIONS: usize = 2_000;

fn stdout_of(child: &mut Child) -> BufReader<std::process::ChildStdout> {
    let mut said = BufReader::new(child.stdout.take().unwrap());
    assert_eq!(read_line(&mut said), "ready");
    said
}

#[test]
fn four_processes_that_add_to_the_same_elements_lose_nothing() {
    let (_dir, path) = new_path();
    Store::create(&path).unwrap();
    let store = open_mapped(&path);
    let floats = store.create_tensor("f32", DType::F32, &[1000], StorageKind::Live).unwrap();
    let integers = store.create_tensor("i64", DType::I64, &[1000], StorageKind::Live).unwrap();
    let mut processes: Vec<Child> = (0..4).map(|_| start("live add", &path)).collect();
    // All processes are ready before one begins.
    let _said: Vec<_> = processes.iter_mut().map(stdout_of).collect();
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
fn threads_that_exchange_elements_lose_nothing() {
    let (_dir, path) = new_path();
    Store::create(&path).unwrap();
    let x = live(&open_mapped(&path), "x", vec![1u16, 0, 0], &[3]);
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

#[test]
fn handles_of_one_process_share_one_mapping() {
    let (_dir, path) = new_path();
    Store::create(&path).unwrap();
    let (store, other) = (open_mapped(&path), open_mapped(&path));
    let mappings = || {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let file = path.join("storages/0000000000000001.bin");
        maps.lines().filter(|line| line.ends_with(file.to_str().unwrap())).count()
    };
    let _ = store.create_tensor("x", DType::I64, &[4, 2], StorageKind::Live).unwrap();
    other.refresh().unwrap();
    assert_eq!(mappings(), 0);
    let x = store.load("x").unwrap().as_live::<i64>().unwrap();
    let y = other.load("x").unwrap().t().unwrap().as_live::<i64>().unwrap();
    assert_eq!(mappings(), 1);
    x.set([3, 1], 5).unwrap();
    assert_eq!(y.get([1, 3]).unwrap(), 5);
    // A view from another handle is a view of the same storage.
    assert_eq!(x.view(|_| Ok(y.tensor().clone())).unwrap().read().unwrap(), [0, 0, 0, 0, 0, 0, 0, 5]);
    drop((x, store));
    assert_eq!(y.fetch_add([1, 3], 1).unwrap(), 5);
    assert_eq!(mappings(), 1);
    drop(y);
    assert_eq!(mappings(), 0);
}

#[test]
fn another_process_sees_an_element_at_once_and_keeps_it_when_the_writer_is_killed() {
    let (_dir, path) = new_path();
    Store::create(&path).unwrap();
    let x = live(&open_mapped(&path), "x", vec![0i64; 2], &[2]);
    let mut echo = start("live echo", &path);
    let mut said = stdout_of(&mut echo);
    for value in [41, 7] {
        x.set([0], value).unwrap();
        writeln!(echo.stdin.as_mut().unwrap()).unwrap();
        assert_eq!(read_line(&mut said), "done");
        assert_eq!(x.get([1]).unwrap(), value + 1);
    }
    echo.kill().unwrap();
    echo.wait().unwrap();
    drop(x);
    assert_eq!(Store::open(&path).unwrap().load("x").unwrap().read::<i64>().unwrap(), [7, 8]);
}
