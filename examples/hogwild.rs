//! Four processes train one parameter vector at the same time, without a lock (Hogwild).
//!
//! The points of a linear regression are in a sealed storage that all processes map. The parameters are live: each
//! process takes a point, reads the current values of the parameters that it needs, and adds its gradient to them. A
//! step may be computed from parameters that other processes are changing. It usually still reduces the loss, and no
//! addition is lost, so every step counts.
//!
//! ```text
//! cargo run --release --example hogwild
//! ```

use std::error::Error;
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::Duration;
use std::{env, iter};

use stridemap::{DType, StorageKind, Store, Tensor};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const PROCESSES: usize = 4;
const POINTS: usize = 4000;
const PARAMETERS: usize = 64;
/// The number of parameters that a point uses. It is small, so two processes seldom change the same parameter.
const FEATURES: usize = 4;
const EPOCHS: usize = 40;
const RATE: f32 = 0.005;

fn main() -> Outcome {
    let args: Vec<String> = env::args().collect();
    match &args[..] {
        [_, path, process] => train(path, process.parse()?),
        _ => lead(),
    }
}

/// Returns pseudorandom numbers from -1 to 1 that are the same in every run.
fn noise(seed: u64) -> impl Iterator<Item = f32> {
    iter::successors(Some(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)), |state| {
        Some(state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f))
    })
    .map(|state| (state >> 40) as f32 / (1u64 << 23) as f32 - 1.)
    .skip(1)
}

/// The first process: creates the points, starts the workers, and prints the loss as it falls.
fn lead() -> Outcome {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("hogwild.smap");
    let truth: Vec<f32> = noise(1).take(PARAMETERS).collect();

    // For each point: its parameters, their weights, and the target value.
    let known: Vec<i64> =
        noise(2).take(POINTS * FEATURES).map(|x| ((x + 1.) / 2. * PARAMETERS as f32) as i64).collect();
    let weights: Vec<f32> = noise(3).take(POINTS * FEATURES).collect();
    let target = |point: usize| -> f32 {
        let features = point * FEATURES..(point + 1) * FEATURES;
        features.map(|i| weights[i] * truth[known[i] as usize]).sum()
    };
    let targets: Vec<f32> = (0..POINTS).map(target).collect();

    let created = Store::create(&path)?;
    let mut txn = created.begin()?;
    txn.save("known", &Tensor::from_vec(known, &[POINTS, FEATURES])?)?;
    txn.save("weights", &Tensor::from_vec(weights, &[POINTS, FEATURES])?)?;
    txn.save("targets", &Tensor::from_vec(targets, &[POINTS])?)?;
    let _ = txn.create_tensor("parameters", DType::F32, &[PARAMETERS], StorageKind::Live)?;
    let _ = txn.create_tensor("steps", DType::U64, &[PROCESSES], StorageKind::Live)?;
    txn.commit()?;

    // SAFETY: only stridemap writes to this store.
    let store = unsafe { Store::open_mapped(&path)? };
    let parameters = store.load("parameters")?.as_live::<f32>()?;
    let steps = store.load("steps")?.as_live::<u64>()?;
    let first = loss(&store, &parameters.read()?)?;
    println!("{:>7} steps, loss {first:.6}", 0);

    let start =
        |process: usize| Command::new(env::current_exe()?).arg(&path).arg(process.to_string()).spawn();
    let mut others = (0..PROCESSES).map(start).collect::<Result<Vec<Child>, _>>()?;
    // No process waits for another, so a process that dies does not stop the others. Its steps are missing, which is
    // detected below.
    while others.iter_mut().any(|other| matches!(other.try_wait(), Ok(None))) {
        sleep(Duration::from_millis(5));
        // Reads the current values while the workers change them.
        let done: u64 = steps.read()?.iter().sum();
        println!("{done:>7} steps, loss {:.6}", loss(&store, &parameters.read()?)?);
    }
    for (process, other) in others.iter_mut().enumerate() {
        let status = other.wait()?;
        if !status.success() {
            return Err(format!("process {process} failed ({status})").into());
        }
    }

    let found = parameters.read()?;
    let last = loss(&store, &found)?;
    let furthest = found.iter().zip(&truth).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
    println!(
        "{PROCESSES} processes: loss {first:.6} to {last:.6}, every parameter within {furthest:.6} of the truth"
    );
    assert_eq!(steps.read()?, [(EPOCHS * POINTS / PROCESSES) as u64; PROCESSES]);
    assert!(last < first / 1000., "the loss did not fall");
    assert!(furthest < 0.01, "the parameters are not the ones that the points were made with");
    Ok(())
}

/// Returns the mean squared error over all points.
fn loss(store: &Store, parameters: &[f32]) -> Outcome<f32> {
    let (known, weights, targets) = (store.load("known")?, store.load("weights")?, store.load("targets")?);
    let points = known.as_slice::<i64>()?.chunks(FEATURES).zip(weights.as_slice::<f32>()?.chunks(FEATURES));
    let error = |((known, weights), target): ((&[i64], &[f32]), &f32)| {
        let predicted: f32 =
            known.iter().zip(weights).map(|(&i, weight)| weight * parameters[i as usize]).sum();
        (predicted - target).powi(2)
    };
    Ok(points.zip(targets.as_slice::<f32>()?).map(error).sum::<f32>() / POINTS as f32)
}

/// A worker process: trains on its share of the points, once in each epoch.
fn train(path: &str, process: usize) -> Outcome {
    // SAFETY: only stridemap writes to this store.
    let store = unsafe { Store::open_mapped(path)? };
    let (known, weights, targets) = (store.load("known")?, store.load("weights")?, store.load("targets")?);
    let (known, weights) = (known.as_slice::<i64>()?, weights.as_slice::<f32>()?);
    let targets = targets.as_slice::<f32>()?;
    let parameters = store.load("parameters")?.as_live::<f32>()?;
    let steps = store.load("steps")?.as_live::<u64>()?;
    for _ in 0..EPOCHS {
        for point in (process..POINTS).step_by(PROCESSES) {
            let features = point * FEATURES..(point + 1) * FEATURES;
            let mut predicted = 0.;
            for i in features.clone() {
                predicted += weights[i] * parameters.get(known[i])?;
            }
            let error = predicted - targets[point];
            for i in features {
                parameters.fetch_add(known[i], -RATE * error * weights[i])?;
            }
            steps.fetch_add(process, 1)?;
        }
    }
    Ok(())
}
