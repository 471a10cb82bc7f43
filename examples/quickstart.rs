//! Saves a 3x2 matrix and three views of it in one storage; a second process reads them without a copy.
//!
//! ```text
//! cargo run --release --example quickstart
//! ```

use std::error::Error;
use std::process::Command;
use std::{env, fs};

use ndarray::{ArrayViewD, array};
use stridemap::Store;

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> Outcome {
    match env::args().nth(1) {
        None => write(),
        Some(path) => read(&path),
    }
}

/// The first process: saves a tensor, and views of it.
fn write() -> Outcome {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("points.smap");
    let store = Store::create(&path)?;
    store.save("points", &array![[1f32, 4.], [2., 1.], [3., 5.]])?;

    // The storage is flat: 1 4 2 1 3 5. Both a 3x2 and a 2x3 tensor can refer to it.
    let points = store.load("points")?;
    assert_eq!((points.size(), points.stride(), points.storage_offset()), (&[3, 2][..], &[2, 1][..], 0));
    assert_eq!(points.view([6])?.read::<f32>()?, [1., 4., 2., 1., 3., 5.]);
    store.save_view("as_2x3", &points.view([2, 3])?)?;

    // points[1] is a header with an offset; points.t() is a header with swapped strides.
    let second = points.select(0, 1)?;
    assert_eq!((second.size(), second.stride(), second.storage_offset()), (&[2][..], &[1][..], 2));
    store.save_view("second", &second)?;
    let transposed = points.t()?;
    assert_eq!(
        (transposed.size(), transposed.stride(), transposed.storage_offset()),
        (&[2, 3][..], &[1, 2][..], 0)
    );
    store.save_view("points_t", &transposed)?;

    let mut data_bytes = 0;
    for file in fs::read_dir(path.join("storages"))? {
        data_bytes += file?.metadata()?.len();
    }
    println!("4 tensors in generation {}, over {data_bytes} bytes of data:", store.generation());
    assert_eq!(data_bytes, 24);

    let reader = Command::new(env::current_exe()?).arg(&path).status()?;
    if reader.success() { Ok(()) } else { Err("the second process failed".into()) }
}

/// The second process: maps the storage once, and borrows every view of it.
fn read(path: &str) -> Outcome {
    // SAFETY: only stridemap writes to this store.
    let store = unsafe { Store::open_mapped(path)? };
    let points = store.load("points")?;
    for name in store.names()? {
        let tensor = store.load(&name)?;
        let view = ArrayViewD::<f32>::try_from(&tensor)?;
        println!(
            "\n{name}: size {:?}, stride {:?}, offset {}",
            view.shape(),
            view.strides(),
            tensor.storage_offset()
        );
        println!("{tensor}");
        assert!(tensor.shares_storage(&points));
    }
    let points_t = store.load("points_t")?;
    assert_eq!(ArrayViewD::<f32>::try_from(&points_t)?, array![[1f32, 2., 3.], [4., 1., 5.]].into_dyn());
    Ok(())
}
