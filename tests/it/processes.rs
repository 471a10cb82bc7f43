//! Several processes on one store. The other processes are this test binary, started again.

use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::{env, fs};

use stridemap::{DType, Durability, StorageKind, Store, StoreOptions, Tensor};

use crate::support::{scaled, temporary};

const ROLE: &str = "STRIDEMAP_TEST_ROLE";
const STORE: &str = "STRIDEMAP_TEST_STORE";

/// Starts this binary to play a role on a store.
pub(crate) fn start(role: &str, path: &Path) -> Child {
    command(role, path).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// The same, not yet started.
pub(crate) fn command(role: &str, path: &Path) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "processes::other_process", "--nocapture"]).env(ROLE, role).env(STORE, path);
    command
}

/// The next line that the other process says to us.
pub(crate) fn hear(child: &mut impl BufRead) -> String {
    let mut line = String::new();
    while !line.starts_with("> ") {
        line.clear();
        assert_ne!(child.read_line(&mut line).unwrap(), 0, "the other process said nothing more");
    }
    line[2..].trim_end().to_owned()
}

pub(crate) fn say(line: impl std::fmt::Display) {
    println!("\n> {line}");
    std::io::stdout().flush().unwrap();
}

/// Whether a line came, and not the end.
pub(crate) fn wait_for_a_line() -> bool {
    std::io::stdin().read_line(&mut String::new()).unwrap() > 0
}

/// The number that the kernel keeps of this process under a key.
pub(crate) fn proc(file: &str, key: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/self/{file}")).unwrap();
    let line = text.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn vector(n: usize, value: f32) -> Tensor {
    Tensor::from_vec(vec![value; n], &[n]).unwrap()
}

/// Not a test: what the started process does.
#[test]
fn other_process() {
    let Ok(role) = env::var(ROLE) else { return };
    let path = env::var(STORE).unwrap();
    match role.as_str() {
        "read" => {
            let store = Store::open(&path).unwrap();
            // SAFETY: the test that started this process writes through the library only.
            let mapped = unsafe { Store::open_mapped(&path).unwrap() };
            for name in ["transposed", "stepped"] {
                let tensor = mapped.load(name).unwrap();
                let borrowed: Vec<f32> = tensor.as_array().unwrap().iter().copied().collect();
                assert_eq!(borrowed, store.load(name).unwrap().read::<f32>().unwrap());
                say(format!("{:?} {:?} {borrowed:?}", tensor.size(), tensor.stride()));
            }
        }
        "write" => {
            let store = StoreOptions::new().durability(Durability::Process).open(&path).unwrap();
            for i in 0..50 {
                store.save(&format!("{}.{i}", std::process::id()), &vector(3, i as f32)).unwrap();
            }
            say("done");
        }
        "view" => {
            let before = proc("io", "wchar:");
            let store = Store::open(&path).unwrap();
            let tensor = store.load("x").unwrap();
            store.save_view("view", &tensor.view([2, -1]).unwrap().t().unwrap()).unwrap();
            let written_bytes = proc("io", "wchar:") - before;
            say(format!("{} {written_bytes}", proc("status", "VmHWM:") * 1024));
        }
        "change" => {
            let store = Store::open(&path).unwrap();
            let (x, source) = (store.load("x").unwrap(), store.load("source").unwrap());
            let mut guard = x.lock_exclusive().unwrap();
            guard.fill_(1).unwrap().copy_(&source).unwrap().mul_(&source).unwrap();
            guard.at(&x.slice(0, None, None, -2).unwrap()).unwrap().add_(1).unwrap();
            say(proc("status", "VmHWM:") * 1024);
        }
        "add" => {
            // SAFETY: the test that started this process writes through the library only.
            let mapped = unsafe { Store::open_mapped(&path).unwrap() };
            let unmapped = Store::open(&path).unwrap();
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
            let x = Store::open(&path).unwrap().load("x").unwrap();
            say(format!("{:?}", x.read::<f32>().unwrap()));
            while wait_for_a_line() {
                say(format!("{:?}", x.read::<f32>().unwrap()));
            }
        }
        "sum" => crate::sharing::sum(Path::new(&path)),
        "external" => crate::external::adopting::play(Path::new(&path)),
        role if role.starts_with("compact.") => crate::compact::play(role, Path::new(&path)),
        role if role.starts_with("grow") => crate::growth::play(role, Path::new(&path)),
        role if role.starts_with("live ") => crate::live::play(role, Path::new(&path)),
        role if role.starts_with("stress ") => crate::stress::play(role, Path::new(&path)),
        role => {
            let roles = [
                crate::compact_bounds::play,
                crate::compact_killed::play,
                crate::conditions::play,
                crate::copies::play,
                crate::copy_on_write::play,
                crate::refusals::play,
                crate::replaced::play,
                crate::forks::play,
                crate::full_disk::play,
                crate::hazards::play,
                crate::overlay::play,
                crate::surroundings::play,
                crate::threads::play,
                crate::waiting::play,
            ];
            let played = roles.iter().any(|play| play(role, Path::new(&path)));
            assert!(played, "no role {role}");
        }
    }
}

#[test]
fn second_process_reads_views_that_the_first_saved() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = Store::create(&path).unwrap();
    store.save("x", &Tensor::from_vec((0..6u8).map(f32::from).collect(), &[2, 3]).unwrap()).unwrap();
    let x = store.load("x").unwrap();
    store.save_view("transposed", &x.t().unwrap()).unwrap();
    store.save_view("stepped", &x.slice(1, None, None, 2).unwrap()).unwrap();
    let mut reader = start("read", &path);
    let mut said = BufReader::new(reader.stdout.take().unwrap());
    assert_eq!(hear(&mut said), "[3, 2] [1, 3] [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]");
    assert_eq!(hear(&mut said), "[2, 2] [3, 2] [0.0, 2.0, 3.0, 5.0]");
    assert!(reader.wait().unwrap().success());
}

#[test]
fn four_writers_at_once_lose_nothing() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = Store::create(&path).unwrap();
    let mut writers: Vec<Child> = (0..4).map(|_| start("write", &path)).collect();
    for writer in &mut writers {
        assert!(writer.wait().unwrap().success());
    }
    store.refresh().unwrap();
    assert_eq!(store.generation(), 201);
    for name in store.names().unwrap() {
        let (_, i) = name.split_once('.').unwrap();
        assert_eq!(store.load(&name).unwrap().read::<f32>().unwrap(), [i.parse::<f32>().unwrap(); 3]);
    }
    assert_eq!(store.names().unwrap().len(), 200);
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
    store.save("last", &vector(1, 0.)).unwrap();
    assert_eq!(
        store.gc().unwrap().file_count,
        0,
        "the writers left files behind that the next commit did not delete"
    );
}

/// How often each process adds 1.
const ADDITIONS: i64 = 200;

#[test]
fn processes_that_change_elements_under_the_guard_lose_nothing() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let store = Store::create(&path).unwrap();
    let x = store.create_tensor("x", DType::I64, &[100], StorageKind::Mutable).unwrap();
    let mut processes: Vec<Child> = (0..4).map(|_| start("add", &path)).collect();
    // A reader under the shared guard sees no change half made.
    while processes.iter_mut().any(|process| process.try_wait().unwrap().is_none()) {
        let elements: Vec<i64> = x.lock_shared().unwrap().read().unwrap();
        assert!(elements.iter().all(|element| *element == elements[0]), "{elements:?}");
    }
    for process in &mut processes {
        assert!(process.wait().unwrap().success());
    }
    assert_eq!(x.read::<i64>().unwrap(), [4 * (2 * ADDITIONS + 1000); 100]);
}

/// `STRIDEMAP_TEST_LARGE_MIB` sets the size of the tensor; by default 64.
#[test]
fn saving_a_view_of_a_large_tensor_takes_no_memory_and_writes_no_data() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let size_bytes = scaled("STRIDEMAP_TEST_LARGE_MIB", 64) << 20;
    let store = StoreOptions::new().durability(Durability::Process).create(&path).unwrap();
    store.save("x", &vector(size_bytes / 4, 1.)).unwrap();
    drop(store);
    let mut viewer = start("view", &path);
    let mut said = BufReader::new(viewer.stdout.take().unwrap());
    let heard = hear(&mut said);
    assert!(viewer.wait().unwrap().success());
    let numbers: Vec<u64> = heard.split(' ').map(|number| number.parse().unwrap()).collect();
    let [peak_bytes, written_bytes] = numbers[..] else { panic!("{heard}") };
    println!("a view of {size_bytes} bytes: peak memory {peak_bytes} bytes, written {written_bytes} bytes");
    assert!(peak_bytes < 32 << 20, "{peak_bytes} bytes of memory");
    assert!(written_bytes < 64 << 10, "{written_bytes} bytes written");
}

#[test]
fn changing_a_large_tensor_in_place_takes_the_memory_of_some_pieces() {
    let dir = temporary();
    let path = dir.path().join("x.smap");
    let size_bytes = scaled("STRIDEMAP_TEST_LARGE_MIB", 64) << 20;
    let store = StoreOptions::new().durability(Durability::Process).create(&path).unwrap();
    let x = store.create_tensor("x", DType::F32, &[size_bytes / 4], StorageKind::Mutable).unwrap();
    store.save("source", &vector(size_bytes / 4, 3.)).unwrap();
    let mut changer = start("change", &path);
    let mut said = BufReader::new(changer.stdout.take().unwrap());
    let peak_bytes: u64 = hear(&mut said).parse().unwrap();
    assert!(changer.wait().unwrap().success());
    println!("{size_bytes} bytes changed in place: peak memory {peak_bytes} bytes");
    assert!(peak_bytes < 48 << 20, "{peak_bytes} bytes of memory");
    assert_eq!(x.narrow(0, 0, 4).unwrap().read::<f32>().unwrap(), [9., 10., 9., 10.]);
}
