//! A script of commits that follows from a seed. This binary plays it in another process, and the test computes from
//! the same seed what each commit contains.

use std::io::Write as _;
use std::path::Path;

use stridemap::{DType, Durability, OnExisting, Result, Store, StoreOptions, Tensor, Transaction};

use crate::random::Random;
use crate::template::{Content, content};

/// The tensor that grows.
const LOG: &str = "log";

/// A log of this length is replaced by a new one.
const LONG_LOG: usize = 3 << 20;

/// A commit, as a change to the store.
pub(crate) enum Step {
    Changes(Vec<Change>),
    Collect,
    Compact,
}

#[derive(Debug)]
pub(crate) enum Change {
    Save(String, usize, u8),
    View(String, String, usize),
    Append(usize, u8),
    Begin,
    Remove(String),
}

fn bytes(n: usize, first: u8) -> Vec<u8> {
    (0..n).map(|i| first.wrapping_add((i % 249) as u8)).collect()
}

fn vector(n: usize, first: u8) -> Tensor {
    Tensor::from_vec(bytes(n, first), &[n]).unwrap()
}

/// Draws the next commit, and applies it to the model.
pub(crate) fn draw(chance: &mut Random, model: &mut Content) -> Step {
    match chance.below(20) {
        0 => return Step::Collect,
        1 => return Step::Compact,
        _ => {}
    }
    let mut changes = Vec::new();
    // A transaction appends to committed tensors, so appends come first.
    for _ in 0..=chance.below(3) {
        let first = chance.below(256) as u8;
        let others: Vec<String> = model.keys().filter(|name| *name != LOG).cloned().collect();
        let any = others.get(chance.below(others.len()));
        let is_first = changes.is_empty();
        let change = match (chance.below(10), any) {
            (0..3, _) if is_first => match model.get(LOG) {
                Some((_, log)) if log.len() < LONG_LOG => Change::Append(1 + chance.below(300_000), first),
                _ => Change::Begin,
            },
            (0..6, Some(name)) => {
                Change::View(format!("view.{}", chance.below(6)), name.clone(), chance.below(1000))
            }
            (6, Some(name)) if others.len() > 4 => Change::Remove(name.clone()),
            (_, _) => {
                let n = if chance.below(10) == 0 { (1 << 20) + 5 } else { chance.below(100_000) };
                Change::Save(format!("saved.{}", chance.below(12)), n, first)
            }
        };
        apply_to_model(&change, model);
        changes.push(change);
    }
    Step::Changes(changes)
}

fn apply_to_model(change: &Change, model: &mut Content) {
    match change {
        Change::Save(name, n, first) => {
            model.insert(name.clone(), (vec![*n], bytes(*n, *first)));
        }
        Change::View(name, of, start) => {
            let (_, whole) = &model[of];
            let part = whole[*start.min(&whole.len())..].to_vec();
            model.insert(name.clone(), (vec![part.len()], part));
        }
        Change::Append(n, first) => {
            let (size, log) = model.get_mut(LOG).unwrap();
            log.extend(bytes(*n, *first));
            size[0] = log.len();
        }
        Change::Begin => {
            model.insert(LOG.to_owned(), (vec![0], Vec::new()));
        }
        Change::Remove(name) => {
            model.remove(name);
        }
    }
}

fn apply(change: &Change, txn: &mut Transaction<'_>) -> Result<()> {
    match change {
        Change::Save(name, n, first) => txn.save(name, &vector(*n, *first)),
        Change::View(name, of, start) => {
            let whole = txn.load(of)?;
            let start = *start.min(&whole.size()[0]);
            let part = whole.narrow(0, start as isize, whole.size()[0] - start)?;
            txn.save_view(name, &part)
        }
        Change::Append(n, first) => txn.append(LOG, &vector(*n, *first)).map(drop),
        Change::Begin => {
            txn.on_existing(OnExisting::Replace);
            txn.create_growable(LOG, DType::U8, &[0], 0).map(drop)
        }
        Change::Remove(name) => txn.remove(name),
    }
}

fn take(store: &Store, step: &Step) -> Result<()> {
    match step {
        Step::Changes(changes) => {
            let mut txn = store.begin()?;
            changes.iter().try_for_each(|change| apply(change, &mut txn))?;
            txn.commit().map(drop)
        }
        Step::Collect => store.gc().map(drop),
        Step::Compact => store.compact(false, |_| ()).map(drop),
    }
}

/// Commits until an error, and prints the number of each commit as "> 7". `how` is the seed, or "unsynced" and the
/// seed.
pub(crate) fn play(how: &str, path: &Path) {
    let (durability, seed) = match how.split_once(' ') {
        Some(("unsynced", seed)) => (Durability::Process, seed),
        _ => (Durability::Full, how),
    };
    let mut chance = Random::new(seed.parse().unwrap());
    let store = StoreOptions::new().durability(durability).open(path).unwrap();
    let mut model = content(path).unwrap();
    for number in 1.. {
        let step = draw(&mut chance, &mut model);
        if let Err(e) = take(&store, &step) {
            // Only these errors are expected when the power is cut. Any other is reported as wrong.
            let is_power_cut = matches!(
                e.kind(),
                stridemap::ErrorKind::Io
                    | stridemap::ErrorKind::CommitUnknown
                    | stridemap::ErrorKind::ReadOnly
            );
            println!("\n{} {e}", if is_power_cut { "! cut:" } else { "! wrong:" });
            break;
        }
        // The test closes the other end of the pipe.
        if writeln!(std::io::stdout(), "\n> {number}").and_then(|()| std::io::stdout().flush()).is_err() {
            break;
        }
    }
}
