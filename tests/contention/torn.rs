//! Sixteen processes that save, export, append and print mutable tensors, while some of them change all of their
//! elements under guards. In every consistent state, all elements of a tensor are equal.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, iter};

use stridemap::{DType, Durability, ErrorKind, OnExisting, Result, StorageKind, Store, StoreOptions, Tensor};
use stridemap_interop::{ForeignFile, npy, safetensors};

use crate::random::Random;

const PROCESSES: u64 = 16;
const WRITERS: u64 = 5;
const DIR: &str = "STRIDEMAP_TORN_DIR";
const NUMBER: &str = "STRIDEMAP_TORN_NUMBER";

/// The rows of the tensors. The last tensor is read in several pieces, by several threads.
const ROWS: [usize; 4] = [1, 40, 600, 6000];
const COLUMNS: usize = 300;

/// A log that is longer is replaced by an empty one.
const MAX_LOG_ROWS: usize = 8000;

fn seconds() -> Duration {
    let seconds = env::var("STRIDEMAP_SOAK_SECONDS").map_or(4., |seconds| seconds.parse().unwrap());
    Duration::from_secs_f64(seconds)
}

/// How often something was done, and with what result.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    whole: u64,
    torn: u64,
    busy: u64,
}

struct Worker {
    dir: PathBuf,
    process: u64,
    store: Store,
    random: Random,
    done: BTreeMap<String, Tally>,
}

impl Worker {
    /// Counts what was read: the elements must all be equal.
    fn count<T: PartialEq>(&mut self, what: &str, read: Result<Vec<T>>) {
        let tally = self.done.entry(what.to_owned()).or_default();
        match read {
            Ok(elements) if elements.windows(2).all(|pair| pair[0] == pair[1]) => tally.whole += 1,
            Ok(_) => tally.torn += 1,
            Err(e) if e.kind() == ErrorKind::Busy => tally.busy += 1,
            Err(e) => panic!("{what}: {e}"),
        }
    }

    fn step(&mut self) {
        let at = self.random.below(ROWS.len() as u64) as usize;
        let x = self.store.load(&format!("x.{at}")).unwrap();
        match self.random.below(3) {
            _ if self.process < WRITERS => self.change(&x),
            0 => self.read(&x),
            1 => self.copy(&x),
            _ => self.export(&x),
        }
    }

    /// Changes all elements, in one of several ways, and copies the tensor under the guard.
    fn change(&mut self, x: &Tensor) {
        let next = self.random.below(1 << 20) as i64;
        let way = self.random.below(5);
        let changed = || {
            let mut guard = x.lock_exclusive()?;
            match way {
                0 => {
                    guard.fill_(next)?;
                }
                1 => {
                    guard.add_(1)?;
                }
                2 => guard.as_slice_mut::<i64>().unwrap().iter_mut().for_each(|element| *element = next),
                3 => {
                    let reversed = x.flip([0, 1])?.t()?;
                    guard.at(&reversed)?.fill_(next)?;
                }
                _ => {
                    guard.add_(&x.narrow(0, 0, 1)?)?;
                    self.store.save(&format!("of a guard {}", self.process), &*guard)?;
                }
            }
            guard.read::<i64>()
        };
        let changed = changed();
        self.count("change", changed);
    }

    fn read(&mut self, x: &Tensor) {
        self.count("read", x.read::<i64>());
        self.count(
            "read a view",
            x.t().unwrap().flip([0]).unwrap().clone_data().and_then(|copy| copy.read::<i64>()),
        );
        self.count("convert", x.to_dtype(DType::F64).and_then(|copy| copy.read::<f64>()));
        let statistics = x.statistics(|_| ());
        self.count("statistics", statistics.map(|found| vec![found.min, found.max]));
        let text = x.to_text(&stridemap::PrintOptions::default()).map(|text| {
            let numbers = text.split(|c: char| !c.is_ascii_digit() && c != '-');
            numbers.filter(|number| !number.is_empty()).map(str::to_owned).collect()
        });
        self.count("print", text);
        let rows = Tensor::from_vec(vec![x.size()[0] as i64 - 1, 0], &[2]).unwrap();
        self.count("select rows", x.index_select(0, &rows).and_then(|rows| rows.read::<i64>()));
        let twice = || {
            let guard = x.lock_shared()?;
            Ok([guard.as_slice::<i64>().unwrap().to_vec(), guard.read()?, x.read()?].concat())
        };
        self.count("read under a guard", twice());
    }

    fn copy(&mut self, x: &Tensor) {
        let store = self.store.clone();
        let name = format!("copy.{}", self.process);
        let saved = store.save(&name, x).and_then(|()| store.load(&name)?.read::<i64>());
        self.count("save", saved);
        let log = format!("log.{}", self.process);
        let rows = [x.size()[0].min(8), x.size()[0]][self.random.below(2) as usize];
        let source = x.narrow(0, 0, rows).unwrap();
        let appended = store.append(&log, &source).and_then(|range| {
            let tensor = store.load(&log)?;
            if tensor.size()[0] > MAX_LOG_ROWS {
                create_log(&store, &log)?;
            }
            tensor.narrow(0, range.start as isize, rows)?.read::<i64>()
        });
        self.count(if rows == x.size()[0] { "append all rows" } else { "append a few rows" }, appended);
        // Each process changes its own copy, so only the operand is contended.
        let own = store.load(&format!("own.{}", self.process)).unwrap().narrow(0, 0, x.size()[0]).unwrap();
        let copied = || {
            let mut own = own.lock_exclusive()?;
            own.copy_(x)?.read::<i64>()
        };
        self.count("copy_", copied());
    }

    fn export(&mut self, x: &Tensor) {
        let elements = |bytes: &[u8]| {
            let elements = &bytes[bytes.len() - x.nbytes()..];
            elements.as_chunks().0.iter().map(|&element| i64::from_le_bytes(element)).collect::<Vec<_>>()
        };
        let mut bytes = Vec::new();
        let exported = npy::Export::new().write_to(&mut bytes, &x.flip([0]).unwrap(), |_| ());
        self.count("export npy", exported.map(|()| elements(&bytes)));
        let file = self.dir.join(format!("{}.safetensors", self.process));
        let export = safetensors::Export::new().on_existing(OnExisting::Replace);
        let exported = export.write(&file, &[("x".to_owned(), x.clone())], |_| ());
        self.count(
            "export safetensors",
            exported.and_then(|_| ForeignFile::open(&file)?.load("x")?.read::<i64>()),
        );
        let copy = self.dir.join(format!("copy.{}.smap", self.process));
        let _ = fs::remove_dir_all(&copy);
        let copied = self.store.snapshot().copy_to(&copy, Some(&["x.2"]), |_| ());
        self.count("copy the store", copied.and_then(|_| Store::open(&copy)?.load("x.2")?.read::<i64>()));
    }
}

fn create_log(store: &Store, name: &str) -> Result<()> {
    store.write(|txn| {
        txn.on_existing(OnExisting::Replace);
        txn.create_growable(name, DType::I64, &[0, COLUMNS], 1 << 20).map(drop)
    })
}

fn start(number: &str, dir: &Path) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "torn::worker_process", "--nocapture"]);
    command.env(DIR, dir).env(NUMBER, number).stdout(Stdio::null()).spawn().unwrap()
}

/// Plays the role of a started process. Without one, tests that a process that fails in its role is noticed.
#[test]
fn worker_process() {
    let (Ok(dir), Ok(number)) = (env::var(DIR), env::var(NUMBER)) else {
        return assert!(!start("no number", Path::new("none")).wait().unwrap().success());
    };
    let (dir, process) = (PathBuf::from(dir), number.parse().unwrap());
    let options = StoreOptions::new().durability(Durability::Process).lock_timeout(Duration::from_secs(120));
    // SAFETY: only this library writes the store.
    let store = unsafe { options.open_mapped(dir.join("x.smap")) }.unwrap();
    let mut worker = Worker { dir, process, store, random: Random::new(process), done: BTreeMap::new() };
    let until = Instant::now() + seconds();
    while Instant::now() < until {
        worker.step();
    }
    let lines = worker
        .done
        .iter()
        .map(|(what, Tally { whole, torn, busy })| format!("{what},{whole},{torn},{busy}\n"));
    fs::write(worker.dir.join(format!("told.{process}")), lines.collect::<String>()).unwrap();
}

fn create(path: &Path) {
    let store = StoreOptions::new().durability(Durability::Process).create(path).unwrap();
    for (at, rows) in ROWS.iter().enumerate() {
        let _ = store
            .create_tensor(&format!("x.{at}"), DType::I64, &[*rows, COLUMNS], StorageKind::Mutable)
            .unwrap();
    }
    for process in 0..PROCESSES {
        create_log(&store, &format!("log.{process}")).unwrap();
        let size = [ROWS[3], COLUMNS];
        let _ =
            store.create_tensor(&format!("own.{process}"), DType::I64, &size, StorageKind::Mutable).unwrap();
    }
}

#[test]
fn no_copy_of_a_tensor_that_others_change_is_torn() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    create(&dir.join("x.smap"));
    let children: Vec<Child> = (0..PROCESSES).map(|process| start(&process.to_string(), dir)).collect();
    let ended: Vec<bool> = children.into_iter().map(|mut child| child.wait().unwrap().success()).collect();
    assert!(ended.iter().all(|&success| success), "{ended:?}");

    let mut all = BTreeMap::<String, Tally>::new();
    for process in 0..PROCESSES {
        for line in fs::read_to_string(dir.join(format!("told.{process}"))).unwrap().lines() {
            let fields: Vec<&str> = line.split(',').collect();
            let [what, whole, torn, busy] = fields[..] else { panic!("{line:?}") };
            let tally = all.entry(what.to_owned()).or_default();
            tally.whole += whole.parse::<u64>().unwrap();
            tally.torn += torn.parse::<u64>().unwrap();
            tally.busy += busy.parse::<u64>().unwrap();
        }
    }
    println!("{PROCESSES} processes for {:?}, {WRITERS} of them change the tensors", seconds());
    let sum = all.values().fold(Tally::default(), |sum, tally| Tally {
        whole: sum.whole + tally.whole,
        torn: sum.torn + tally.torn,
        busy: sum.busy + tally.busy,
    });
    for (what, Tally { whole, torn, busy }) in all.iter().chain(iter::once((&"all".to_owned(), &sum))) {
        println!("{what:>20}: {whole:>8} whole, {torn} torn, {busy} gave up waiting");
    }
    assert_eq!((sum.torn, sum.busy), (0, 0), "{all:?}");
    assert_eq!(Store::open(dir.join("x.smap")).unwrap().verify(|_| ()).unwrap().findings, []);
}
