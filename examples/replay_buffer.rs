//! A replay buffer that four processes share: three actors write transitions into a ring while a learner samples
//! complete ones.
//!
//! A transition is a row of float32. An actor claims a row by adding 1 to a cursor. The old value is its ticket, which
//! is unique, and its row is the ticket modulo the size of the ring. Each row has a sequence number, which states the
//! ticket that the row belongs to, and whether the row is being written. Accesses to different elements are not
//! ordered, so fences order the writes to the row between the two changes to its number. If the learner reads the same
//! number before and after it copies a row, the copy is complete.
//!
//! An actor that dies while it holds a ticket never finishes its row, and the other actors would wait for it. The
//! learner therefore watches the actors, and if one fails, it kills the others.
//!
//! ```text
//! cargo run --release --example replay_buffer
//! ```

use std::collections::BTreeSet;
use std::env;
use std::error::Error;
use std::process::{Child, Command};
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use stridemap::{DType, LiveTensor, Result, StorageKind, Store};

type Outcome = std::result::Result<(), Box<dyn Error>>;

const ACTORS: usize = 3;
const TRANSITIONS: usize = 30_000;
const ROWS: usize = 256;
/// A row: the ticket, the actor, and the state, which is computed from both.
const COLUMNS: usize = 34;

/// A shared ring of rows.
struct Ring {
    rows: LiveTensor<f32>,
    /// For each row: 0 before the first transition, then `2 * ticket + 1` while it is written and `2 * ticket + 2`
    /// once it is complete.
    numbers: LiveTensor<u64>,
    /// The next ticket, which is the number of tickets taken so far.
    cursor: LiveTensor<u64>,
}

fn main() -> Outcome {
    let args: Vec<String> = env::args().collect();
    match &args[..] {
        [_, path, actor] => act(path, actor.parse()?),
        _ => learn(),
    }
}

impl Ring {
    fn create(path: &str) -> Result<()> {
        let store = Store::create(path)?;
        let mut txn = store.begin()?;
        let _ = txn.create_tensor("rows", DType::F32, &[ROWS, COLUMNS], StorageKind::Live)?;
        let _ = txn.create_tensor("numbers", DType::U64, &[ROWS], StorageKind::Live)?;
        let _ = txn.create_tensor("cursor", DType::U64, &[], StorageKind::Live)?;
        txn.commit()?;
        Ok(())
    }

    fn open(path: &str) -> Result<Ring> {
        // SAFETY: only stridemap writes to this store.
        let store = unsafe { Store::open_mapped(path)? };
        Ok(Ring {
            rows: store.load("rows")?.as_live()?,
            numbers: store.load("numbers")?.as_live()?,
            cursor: store.load("cursor")?.as_live()?,
        })
    }

    /// Writes the transition of the next ticket into the ring.
    fn push(&self, transition: impl FnOnce(u64) -> Vec<f32>) -> Result<()> {
        let ticket = self.cursor.fetch_add((), 1)?;
        let transition = transition(ticket);
        let row = ticket % ROWS as u64;
        // The actor that claimed this row one lap ago may still be writing it. If that actor was killed, the learner
        // will kill this process.
        let before = if ticket < ROWS as u64 { 0 } else { 2 * (ticket - ROWS as u64) + 2 };
        while let Err(found) = self.numbers.compare_exchange(row, before, 2 * ticket + 1)? {
            self.numbers.wait(row, found, Duration::from_secs(1))?;
        }
        // A process that sees an element of this row also sees the number that marks the row as being written. The
        // writes of one lap ago come before that number.
        fence(Ordering::AcqRel);
        self.rows.view(|rows| rows.select(0, row))?.write_from(&transition)?;
        // A process that sees the number that marks the row as complete sees every element.
        fence(Ordering::Release);
        self.numbers.set(row, 2 * ticket + 2)?;
        self.numbers.wake(row)
    }

    /// Copies a row, and returns its ticket if it is complete.
    fn sample(&self, row: u64, transition: &mut [f32]) -> Result<Option<u64>> {
        let before = self.numbers.get(row)?;
        if before % 2 == 1 || before == 0 {
            return Ok(None);
        }
        fence(Ordering::Acquire);
        self.rows.view(|rows| rows.select(0, row))?.read_into(transition)?;
        fence(Ordering::Acquire);
        let is_whole = self.numbers.get(row)? == before;
        Ok(is_whole.then_some((before - 2) / 2))
    }
}

/// Returns a synthetic observation. Every element is computed from the first two, so a mixture of rows is detected.
fn transition(actor: usize, ticket: u64) -> Vec<f32> {
    let state = |i: usize| ((ticket as usize * 31 + actor * 7 + i * i) % 1000) as f32;
    [ticket as f32, actor as f32].into_iter().chain((2..COLUMNS).map(state)).collect()
}

/// An actor process.
fn act(path: &str, actor: usize) -> Outcome {
    let ring = Ring::open(path)?;
    for _ in 0..TRANSITIONS {
        ring.push(|ticket| transition(actor, ticket))?;
    }
    Ok(())
}

/// The actors that were started. They are killed on drop, whatever went wrong.
struct Actors(Vec<Child>);

impl Actors {
    /// Returns whether any actor is still running, or an error if one has failed.
    fn are_at_work(&mut self) -> std::result::Result<bool, Box<dyn Error>> {
        let mut are_at_work = false;
        for (actor, process) in self.0.iter_mut().enumerate() {
            match process.try_wait()? {
                None => are_at_work = true,
                Some(status) if status.success() => {}
                Some(status) => {
                    return Err(format!("actor {actor} failed ({status}): the others are ended").into());
                }
            }
        }
        Ok(are_at_work)
    }
}

impl Drop for Actors {
    fn drop(&mut self) {
        for process in &mut self.0 {
            // For a process that has already ended, this may be an error.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// The first process: starts the actors, and samples while they run.
fn learn() -> Outcome {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("replay.smap");
    let path = path.to_str().ok_or("the path is no text")?;
    Ring::create(path)?;
    let ring = Ring::open(path)?;
    let mut actors = Actors(Vec::new());
    for actor in 0..ACTORS {
        actors.0.push(Command::new(env::current_exe()?).arg(path).arg(actor.to_string()).spawn()?);
    }

    let (mut whole, mut refused, mut by_actor) = (0u64, 0u64, [0u64; ACTORS]);
    let mut tickets = BTreeSet::new();
    let mut row = 0;
    let mut sampled = vec![0f32; COLUMNS];
    while actors.are_at_work()? {
        for _ in 0..1000 {
            // Any order is fine; this one reaches every row.
            row = (row + 101) % ROWS as u64;
            match ring.sample(row, &mut sampled)? {
                None => refused += 1,
                Some(ticket) => {
                    let actor = sampled[1] as usize;
                    assert_eq!(sampled, transition(actor, ticket), "half of one transition, half of another");
                    whole += 1;
                    by_actor[actor] += 1;
                    tickets.insert(ticket);
                }
            }
        }
    }
    println!("{whole} whole transitions sampled, {} different ones, by actor {by_actor:?}", tickets.len());
    println!("{refused} times a row was not yet written, or was being written");

    // No ticket was lost, and the ring holds the last transitions.
    let given = (ACTORS * TRANSITIONS) as u64;
    assert_eq!(ring.cursor.get(())?, given);
    let mut last = BTreeSet::new();
    for row in 0..ROWS as u64 {
        let ticket =
            ring.sample(row, &mut sampled)?.ok_or("a row is not complete, although no process is writing")?;
        assert_eq!(sampled, transition(sampled[1] as usize, ticket));
        last.insert(ticket);
    }
    assert!(last.into_iter().eq(given - ROWS as u64..given), "the ring does not hold the last transitions");
    println!("the ring holds the last {ROWS} of {given}");
    Ok(())
}
