//! Chains saved as headers and read by another process: this binary, started again.

use std::fmt::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use stridemap::{Store, Tensor};

use super::{Draws, Model, follow};
use crate::harness::{fast, open_mapped};
use crate::support::{scaled, temporary};

const STORE: &str = "STRIDEMAP_TEST_VIEWS";
const CHAINS_PER_STORE: usize = 500;

/// The base of all chains of a store: each chain starts at a part of it.
const BASE: i64 = 1000;

/// Formats a tensor as text. The text from memory is compared with the text from the store.
fn shown(name: &str, x: &Tensor) -> String {
    format!("{name} {:?} {:?} {:?}", x.names(), x.size(), x.read::<i64>().unwrap())
}

#[derive(Debug, Default)]
struct Counts {
    chains: usize,
    steps: usize,
    saved_as_header: usize,
    elements: usize,
}

fn expected_file(store: &Path) -> PathBuf {
    store.with_extension("expected")
}

/// Draws the same part of a tensor and of its model, reshaped to at most four axes.
fn start(draws: &mut Draws, base: &Tensor, model: &Model) -> (Tensor, Model) {
    let size: Vec<isize> = (0..draws.below(5)).map(|_| [1, 2, 3, 4, 5][draws.below(5)]).collect();
    let length = size.iter().product::<isize>() as usize;
    let at = draws.below(BASE as usize - length + 1) as isize;
    let names = draws.names(size.len());
    let tensor = base.narrow(0, at, length).unwrap().view(&size).unwrap().rename(&names).unwrap();
    let model = model.narrow(0.into(), at, length).unwrap().view(&size).unwrap().rename(&names).unwrap();
    (tensor, model)
}

/// Follows chains in memory and in the store, and saves the results, as headers if possible.
fn save_chains(path: &Path, numbers: Range<usize>, counts: &mut Counts) {
    let options = fast();
    let in_memory = Tensor::from_vec((0..BASE).collect(), &[BASE as usize]).unwrap();
    let of_base = |is_borrowable| Model {
        is_borrowable,
        ..Model::new((0..BASE).collect(), &[BASE as usize], &[None], true)
    };
    let store = options.create(path).unwrap();
    store.save("base", &in_memory).unwrap();
    let base = store.load("base").unwrap();
    let mut txn = store.begin().unwrap();
    let mut expected = String::new();
    for number in numbers {
        let seeded = || Draws::new(number as u64);
        let mut draws = seeded();
        let (tensor, model) = start(&mut draws, &in_memory, &of_base(true));
        let chain: Vec<u64> = (0..1 + draws.below(12)).map(|_| draws.next()).collect();
        let (in_memory, _, steps) = follow(tensor, model, &chain);
        let (tensor, model) = start(&mut seeded(), &base, &of_base(false));
        let (view, _, _) = follow(tensor, model, &chain);

        let name = format!("chain.{number}");
        let is_view = view.shares_storage(&base);
        if is_view {
            txn.save_view(&name, &view).unwrap()
        } else {
            txn.save(&name, &view).unwrap()
        }
        writeln!(expected, "{}", shown(&name, &in_memory)).unwrap();
        counts.chains += 1;
        counts.steps += steps;
        counts.saved_as_header += usize::from(is_view);
        counts.elements += view.numel();
    }
    txn.commit().unwrap();
    fs::write(expected_file(path), expected).unwrap();
}

/// Not a test: runs the role of a started process.
#[test]
fn other_process() {
    let Ok(path) = env::var(STORE) else { return };
    let expected = fs::read_to_string(expected_file(path.as_ref())).unwrap();
    let mapped = open_mapped(&path);
    let mut compared = 0;
    for store in [Store::open(&path).unwrap(), mapped] {
        for line in expected.lines() {
            let name = line.split(' ').next().unwrap();
            let view = store.load(name).unwrap();
            assert_eq!(shown(name, &view), line);
            compared += 1;
        }
    }
    println!("compared {compared}");
}

#[test]
fn chains_saved_by_one_process_are_read_by_another() {
    let dir = temporary();
    let mut counts = Counts::default();
    let chain_count = (5 * scaled("STRIDEMAP_TEST_RANDOM_INPUTS", 400)).next_multiple_of(CHAINS_PER_STORE);
    for first in (0..chain_count).step_by(CHAINS_PER_STORE) {
        let path = dir.path().join(format!("{first}.smap"));
        save_chains(&path, first..first + CHAINS_PER_STORE, &mut counts);
        let reader = Command::new(env::current_exe().unwrap())
            .args(["--exact", "views::reopened::other_process", "--nocapture"])
            .env(STORE, &path)
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&reader.stdout);
        assert!(reader.status.success(), "{message}\n{}", String::from_utf8_lossy(&reader.stderr));
        assert!(message.contains(&format!("compared {}\n", 2 * CHAINS_PER_STORE)), "{message}");
    }
    println!("views read by another process, by open and by open_mapped: {counts:?}");
}
