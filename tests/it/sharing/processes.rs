//! Several processes on one store.

use std::path::Path;
use std::process::Child;

use stridemap::{DType, StorageKind, Store};

use crate::harness::processes::{OtherProcess, proc, send_line, start, wait_for_line};
use crate::harness::{fast, filled, new_path, new_store, open_mapped};
use crate::support::scaled;

/// Runs a role in a started process. Returns false for a role in a different module.
pub(crate) fn run_role(role: &str, path: &Path) -> bool {
    match role {
        "view" => {
            let before = proc("io", "wchar:");
            let store = Store::open(path).unwrap();
            let tensor = store.load("x").unwrap();
            store.save_view("view", &tensor.view([2, -1]).unwrap().t().unwrap()).unwrap();
            let written_bytes = proc("io", "wchar:") - before;
            send_line(format!("{} {written_bytes}", proc("status", "VmHWM:") * 1024));
        }
        "change" => {
            let store = Store::open(path).unwrap();
            let (x, source) = (store.load("x").unwrap(), store.load("source").unwrap());
            let mut guard = x.lock_exclusive().unwrap();
            guard.fill_(1).unwrap().copy_(&source).unwrap().mul_(&source).unwrap();
            guard.at(&x.slice(0, None, None, -2).unwrap()).unwrap().add_(1).unwrap();
            send_line(proc("status", "VmHWM:") * 1024);
        }
        "add" => {
            let mapped = open_mapped(path);
            let unmapped = Store::open(path).unwrap();
            for store in [mapped, unmapped] {
                let x = store.load("x").unwrap();
                for _ in 0..ADDITIONS {
                    x.lock_exclusive().unwrap().add_(1).unwrap();
                }
                let mut guard = x.lock_exclusive().unwrap();
                if let Ok(elements) = guard.as_slice_mut::<i64>() {
                    elements.iter_mut().for_each(|element| *element += 1000);
                }
            }
        }
        "watch" => {
            let x = Store::open(path).unwrap().load("x").unwrap();
            send_line(format!("{:?}", x.read::<f32>().unwrap()));
            while wait_for_line() {
                send_line(format!("{:?}", x.read::<f32>().unwrap()));
            }
        }
        _ => return false,
    }
    true
}

/// The number of times each process adds 1.
const ADDITIONS: i64 = 200;

#[test]
fn processes_that_change_elements_under_the_guard_lose_nothing() {
    let (_dir, path, store) = new_store();
    let x = store.create_tensor("x", DType::I64, &[100], StorageKind::Mutable).unwrap();
    let mut processes: Vec<Child> = (0..4).map(|_| start("add", &path)).collect();
    // A reader under the shared guard never sees a half-made change.
    while processes.iter_mut().any(|process| process.try_wait().unwrap().is_none()) {
        let elements: Vec<i64> = x.lock_shared().unwrap().read().unwrap();
        assert!(elements.iter().all(|element| *element == elements[0]), "{elements:?}");
    }
    for process in &mut processes {
        assert!(process.wait().unwrap().success());
    }
    assert_eq!(x.read::<i64>().unwrap(), [4 * (2 * ADDITIONS + 1000); 100]);
}

/// `STRIDEMAP_TEST_LARGE_MIB` sets the size of the tensor. The default is 64.
#[test]
fn saving_a_view_of_a_large_tensor_takes_no_memory_and_writes_no_data() {
    let (_dir, path) = new_path();
    let size_bytes = scaled("STRIDEMAP_TEST_LARGE_MIB", 64) << 20;
    let store = fast().create(&path).unwrap();
    store.save("x", &filled(size_bytes / 4, 1f32)).unwrap();
    drop(store);
    let mut viewer = OtherProcess::start("view", &path);
    let heard = viewer.read_line();
    viewer.assert_success();
    let numbers: Vec<u64> = heard.split(' ').map(|number| number.parse().unwrap()).collect();
    let [peak_bytes, written_bytes] = numbers[..] else { panic!("{heard}") };
    println!("a view of {size_bytes} bytes: peak memory {peak_bytes} bytes, written {written_bytes} bytes");
    assert!(peak_bytes < 32 << 20, "{peak_bytes} bytes of memory");
    assert!(written_bytes < 64 << 10, "{written_bytes} bytes written");
}

#[test]
fn changing_a_large_tensor_in_place_takes_little_memory() {
    let (_dir, path) = new_path();
    let size_bytes = scaled("STRIDEMAP_TEST_LARGE_MIB", 64) << 20;
    let store = fast().create(&path).unwrap();
    let x = store.create_tensor("x", DType::F32, &[size_bytes / 4], StorageKind::Mutable).unwrap();
    store.save("source", &filled(size_bytes / 4, 3f32)).unwrap();
    let mut changer = OtherProcess::start("change", &path);
    let peak_bytes: u64 = changer.read_line().parse().unwrap();
    changer.assert_success();
    println!("{size_bytes} bytes changed in place: peak memory {peak_bytes} bytes");
    assert!(peak_bytes < 48 << 20, "{peak_bytes} bytes of memory");
    assert_eq!(x.narrow(0, 0, 4).unwrap().read::<f32>().unwrap(), [9., 10., 9., 10.]);
}
