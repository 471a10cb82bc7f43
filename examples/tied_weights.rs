//! A small language model whose output head shares the bytes of its embedding: two more headers, and no more data.
//!
//! ```text
//! cargo run --release --example tied_weights
//! ```

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use ndarray::{Array1, Array2, ArrayView2};
use stridemap::{DType, StorageKind, Store};

type Outcome = Result<(), Box<dyn Error>>;

const TOKENS: usize = 5000;
const WIDTH: usize = 64;

fn main() -> Outcome {
    match env::args().nth(1) {
        None => write(),
        Some(path) => use_weights(Path::new(&path)),
    }
}

/// The first process: saves the model, and ties its weights.
fn write() -> Outcome {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("model.smap");
    let store = Store::create(&path)?;

    // The embedding has one row per token; the head turns a state into one score per token.
    let embedding =
        Array2::from_shape_fn((TOKENS, WIDTH), |(token, i)| ((token * 31 + i * 17) % 101) as f32 / 50. - 1.);
    let mut txn = store.begin()?;
    txn.save_as("embedding", &embedding, StorageKind::Mutable)?;
    txn.save("layers.0.weight", &Array2::<f32>::eye(WIDTH))?;
    txn.save("layers.0.bias", &Array1::<f32>::zeros(WIDTH))?;
    txn.commit()?;
    let before_bytes = data_bytes(&path)?;
    println!("the model without a head:  {before_bytes:>9} bytes of data");

    // PyTorch's `head.weight = embedding.weight` is a second header. A head that is multiplied from the right needs
    // the transpose, which is a third header, with swapped strides.
    let embedding = store.load("embedding")?;
    let mut txn = store.begin()?;
    txn.save_view("head", &embedding)?;
    txn.save_view("head_t", &embedding.t()?)?;
    txn.commit()?;
    let after_bytes = data_bytes(&path)?;
    println!("with the head, both ways:  {after_bytes:>9} bytes of data");
    assert_eq!(after_bytes, before_bytes);

    let reader = Command::new(env::current_exe()?).arg(&path).status()?;
    if !reader.success() {
        return Err("the second process failed".into());
    }

    // The change that the second process made to the head is visible in the embedding here, too.
    let embedding = store.load("embedding")?;
    assert_eq!(embedding.select(0, 7)?.read::<f32>()?, [0.25; WIDTH]);
    println!(
        "the first process sees the change in the embedding: [7, 0] is {}",
        embedding.get::<f32>(&[7, 0])?
    );
    Ok(())
}

/// Returns the total size of the files that hold elements.
fn data_bytes(path: &Path) -> Result<u64, Box<dyn Error>> {
    let mut total_bytes = 0;
    for file in fs::read_dir(path.join("storages"))? {
        total_bytes += file?.metadata()?.len();
    }
    Ok(total_bytes)
}

/// The second process: checks that the weights are tied, runs them, and trains one row.
fn use_weights(path: &Path) -> Outcome {
    // SAFETY: only stridemap writes to this store.
    let store = unsafe { Store::open_mapped(path)? };
    println!("\nin another process:");
    for tensor in store.snapshot().iter_tensors("")? {
        let tensor = tensor?;
        let (size, stride) = (format!("{:?}", tensor.header.size()), format!("{:?}", tensor.header.stride()));
        println!("{:<16} size {size:<11} stride {stride:<8} storage {}", tensor.name, tensor.storage_id);
        assert_eq!(tensor.header.dtype(), DType::F32);
    }
    let (embedding, head, head_t) = (store.load("embedding")?, store.load("head")?, store.load("head_t")?);
    assert!(head.shares_storage(&embedding) && head_t.shares_storage(&embedding));
    assert_eq!(store.snapshot().overlapping("embedding")?, ["head", "head_t"]);

    // Run one token through the model, on borrowed pages. Meanwhile, the guard keeps writers out.
    let weight = store.load("layers.0.weight")?;
    let weight = ArrayView2::<f32>::try_from(&weight)?;
    {
        let guard = embedding.lock_shared()?;
        let rows = ArrayView2::<f32>::try_from(&guard)?;
        let state = rows.row(42).dot(&weight);
        let scores = state.dot(&rows.t());
        assert_eq!(scores.len(), TOKENS);
        println!("token 42 scores {:.3} for itself", scores[42]);
    }

    // A training step on the head also changes the embedding, because they are the same bytes.
    head_t.select(1, 7)?.lock_exclusive()?.fill_(0.25)?;
    assert_eq!(embedding.select(0, 7)?.read::<f32>()?, [0.25; WIDTH]);
    assert_eq!(head.get::<f32>(&[7, 63])?, 0.25);
    println!("column 7 of head_t was changed, and so row 7 of head and of embedding");
    Ok(())
}
