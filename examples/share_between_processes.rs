//! One process appends batches to a tensor; three others wait for them and read each one as soon as it is committed.
//!
//! ```text
//! cargo run --release --example share_between_processes
//! ```

use std::env;
use std::error::Error;
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use ndarray::{Array2, ArrayView2, Axis};
use stridemap::{DType, Durability, Store, StoreOptions};

type Outcome = Result<(), Box<dyn Error>>;

const CONSUMERS: usize = 3;
const BATCHES: usize = 40;
const BATCH_ROWS: usize = 256;
const COLUMNS: usize = 16;
/// The longest time that a consumer waits for the next batch.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> Outcome {
    let arguments: Vec<String> = env::args().collect();
    match arguments.as_slice() {
        [_, path, name] => consume(Path::new(path), name),
        _ => produce(),
    }
}

/// Returns the value for a position, so that a consumer can check what it reads.
fn sample(row: usize, column: usize) -> f32 {
    (row * COLUMNS + column) as f32
}

/// The first process: starts the others, appends batches, and sets an attribute when it is done.
fn produce() -> Outcome {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("samples.smap");
    // No data here has to survive a power cut, so nothing is synced.
    let store = StoreOptions::new().durability(Durability::Process).create(&path)?;
    // The tensor has no rows yet. Consumers reserve address space for its capacity, so they map the file only once.
    store.create_growable("samples", DType::F32, &[0, COLUMNS], BATCHES * BATCH_ROWS)?;

    let start = |name| Command::new(env::current_exe()?).arg(&path).arg(name).spawn();
    let consumers = ["first", "second", "third"].into_iter().take(CONSUMERS).map(start);
    let mut consumers = consumers.collect::<Result<Vec<Child>, _>>()?;

    for batch in 0..BATCHES {
        let first_row = batch * BATCH_ROWS;
        let rows =
            Array2::from_shape_fn((BATCH_ROWS, COLUMNS), |(row, column)| sample(first_row + row, column));
        if batch + 1 < BATCHES {
            store.append("samples", &rows)?;
            thread::sleep(Duration::from_millis(10));
        } else {
            // The last rows and the attribute that ends the run become visible in one commit.
            let mut txn = store.begin()?;
            txn.append("samples", &rows)?;
            txn.set_attribute("", "state", "complete")?;
            txn.commit()?;
        }
    }
    println!("appended {BATCHES} batches of {BATCH_ROWS} rows, each one commit");

    for (number, consumer) in consumers.iter_mut().enumerate() {
        let status = consumer.wait()?;
        if !status.success() {
            return Err(format!("consumer {number} failed ({status})").into());
        }
    }
    assert_eq!(store.load("samples")?.size(), [BATCHES * BATCH_ROWS, COLUMNS]);
    Ok(())
}

/// The other processes: follow the producer batch by batch, on mapped pages.
fn consume(path: &Path, name: &str) -> Outcome {
    // SAFETY: only stridemap writes to this store.
    let store = unsafe { Store::open_mapped(path)? };
    let (mut seen_rows, mut wakes, mut total) = (0, 0, 0f64);
    loop {
        // A snapshot is one generation: its rows and attributes belong together, whatever is appended in the meantime.
        let snapshot = store.snapshot();
        let samples = snapshot.load("samples")?;
        let rows = samples.size()[0];
        assert!(rows >= seen_rows && rows % BATCH_ROWS == 0, "only whole batches are ever seen");

        // Borrows only the new rows, from the page cache.
        let new = samples.narrow(0, seen_rows, rows - seen_rows)?;
        let new = ArrayView2::<f32>::try_from(&new)?;
        for (row, values) in (seen_rows..).zip(new.axis_iter(Axis(0))) {
            assert!(values.iter().enumerate().all(|(column, &value)| value == sample(row, column)));
        }
        total += new.iter().map(|&value| f64::from(value)).sum::<f64>();
        seen_rows = rows;

        if snapshot.attributes("").get("state").is_some_and(|state| state == "complete") {
            break;
        }
        // Sleeps until another process commits. A commit since the snapshot ends the wait at once, so nothing is
        // missed.
        if !store.wait_for_change(PATIENCE)? {
            return Err(format!("nothing came for {PATIENCE:?}: the producer is gone").into());
        }
        wakes += 1;
    }
    let elems = BATCHES * BATCH_ROWS * COLUMNS;
    assert_eq!(seen_rows * COLUMNS, elems);
    assert_eq!(total, (elems * (elems - 1) / 2) as f64);
    println!("the {name} consumer saw all {seen_rows} rows, and was woken {wakes} times");
    Ok(())
}
