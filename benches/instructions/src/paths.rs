//! The paths whose instructions are counted.

use std::hint::black_box;
use std::path::Path;

use stridemap::{DType, Durability, Store, StoreOptions, Tensor};

use crate::Outcome;

/// Prepares its files in a directory, and does its work some times.
type Run = fn(&Path, u64) -> Outcome;

pub(crate) const PATHS: &[(&str, Run)] = &[
    ("open, load", |dir, times| {
        let path = create(dir)?.path().to_path_buf();
        (0..10 * times).try_for_each(|at| {
            let _ = black_box(open_mapped(&path)?.load(&name(at))?);
            Ok(())
        })
    }),
    ("warm load, 1000 times", |dir, times| {
        let path = create(dir)?.path().to_path_buf();
        let store = open_mapped(&path)?;
        (0..1000 * times).try_for_each(|at| {
            let _ = black_box(store.load(&name(at))?);
            Ok(())
        })
    }),
    ("save 1000 tensors", |dir, times| {
        let store = create(dir)?;
        (0..times).try_for_each(|at| {
            Ok(store
                .write(|txn| (0..1000).try_for_each(|nr| txn.save(&format!("{at}.{nr}"), &[1f32; 64])))?)
        })
    }),
    ("save a view, 20 times", |dir, times| {
        let store = create(dir)?;
        let x = store.load(&name(0))?;
        (0..20 * times)
            .try_for_each(|at| Ok(store.save_view("view", &x.slice(0, 0, 1 + at as isize % 50, 1)?)?))
    }),
    ("append, 20 times", |dir, times| {
        let store = create(dir)?;
        store.create_growable("log", DType::F32, &[0, 128], 10_000)?;
        let row = Tensor::from_vec(vec![1f32; 128], &[1, 128])?;
        (0..20 * times).try_for_each(|_| Ok(store.append("log", &row).map(drop)?))
    }),
    ("copy a transpose", |_, times| {
        let x = Tensor::zeros(DType::F32, &[1024, 1024])?.t()?;
        (0..times).try_for_each(|_| {
            let _ = black_box(x.clone_data()?);
            Ok(())
        })
    }),
    ("gather 1024 rows", |dir, times| {
        let path = create(dir)?.path().to_path_buf();
        Store::open(&path)?.save("x", &Tensor::zeros(DType::F32, &[10_000, 64])?)?;
        let x = open_mapped(&path)?.load("x")?;
        let rows = (0..1024).map(|at| at * 7919 % 10_000).collect();
        let rows = Tensor::from_vec::<i64>(rows, &[1024])?;
        (0..times).try_for_each(|_| {
            let _ = black_box(x.index_select(0, &rows)?);
            Ok(())
        })
    }),
];

/// Creates a store of 1000 tensors, whose commits are not synced.
fn create(dir: &Path) -> Outcome<Store> {
    let store = StoreOptions::new().durability(Durability::Process).create(dir.join("x.smap"))?;
    store.write(|txn| (0..1000).try_for_each(|at| txn.save(&name(at), &[1f32; 64])))?;
    Ok(store)
}

fn name(number: u64) -> String {
    format!("layers.{:03}.weight", number * 37 % 1000)
}

fn open_mapped(path: &Path) -> Outcome<Store> {
    // SAFETY: only stridemap writes the stores of this program.
    Ok(unsafe { Store::open_mapped(path)? })
}
