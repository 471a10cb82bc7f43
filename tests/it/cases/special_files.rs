//! Names that look like paths, and paths with something other than the expected file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use stridemap::{ErrorKind, Store, Tensor};
use stridemap_interop::npz;
use stridemap_interop::{ForeignFile, safetensors};

use crate::harness::{filled, new_path, open_mapped};

/// Returns every path below `root`.
fn paths(root: &Path) -> Vec<PathBuf> {
    let (mut found, mut dirs) = (Vec::new(), vec![root.to_path_buf()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path.clone());
            }
            found.push(path);
        }
    }
    found.sort();
    found
}

#[test]
fn names_that_look_like_paths_are_only_names_in_every_format() {
    const NAMES: [&str; 8] = [
        "../x",
        "../../x",
        "/x",
        "a/../../../x",
        "FORMAT",
        "LOCK",
        "meta/0000000000000001.man",
        "storages/x",
    ];
    let dir = tempfile::tempdir().unwrap();
    let inside = dir.path().join("inside");
    fs::create_dir(&inside).unwrap();
    let path = inside.join("x.smap");
    let store = Store::create(&path).unwrap();
    let mut txn = store.begin().unwrap();
    for (i, name) in NAMES.iter().enumerate() {
        txn.save(name, &filled(3, i as u8)).unwrap();
    }
    txn.commit().unwrap();
    let tensors: Vec<_> = NAMES.map(|name| (name.to_owned(), store.load(name).unwrap())).to_vec();
    let (in_zip, in_safetensors) = (inside.join("out.npz"), inside.join("out.safetensors"));
    npz::Export::new().write(&in_zip, &tensors, |_| ()).unwrap();
    safetensors::Export::new().write(&in_safetensors, &tensors, |_| ()).unwrap();
    let again = Store::create(inside.join("again.smap")).unwrap();
    for file in [in_zip, in_safetensors] {
        let mut txn = again.begin().unwrap();
        ForeignFile::open(&file).unwrap().import_into(&mut txn, "", |_| ()).unwrap();
        txn.commit().unwrap();
    }
    // No handle may be left on an older generation.
    drop((tensors, store));
    let mapped = open_mapped(&path);
    for store in [&again, &mapped] {
        for (i, name) in NAMES.iter().enumerate() {
            assert_eq!(store.load(name).unwrap().read::<u8>().unwrap(), [i as u8; 3], "{name}");
            store.rename(name, &format!("{name}/../y")).unwrap();
            store.remove(&format!("{name}/../y")).unwrap();
        }
        // An archive has other names, so that it can be unpacked.
        for name in store.names().unwrap() {
            assert!(!name.starts_with('/') && name.split('/').all(|part| part != ".."), "{name}");
            store.remove(&name).unwrap();
        }
        store.gc().unwrap();
    }
    let outside: Vec<_> = paths(dir.path()).into_iter().filter(|path| !path.starts_with(&inside)).collect();
    assert!(outside.is_empty(), "a name became a path: {outside:?}");
    let beside = fs::read_dir(&inside).unwrap().count();
    assert_eq!(beside, 4, "two stores and two files");
    for store in ["x.smap", "again.smap"].map(|name| inside.join(name)) {
        let known = |path: &PathBuf| {
            let name = path.strip_prefix(&store).unwrap().to_str().unwrap();
            matches!(name, "FORMAT" | "LOCK" | "generations" | "meta" | "storages") || name.ends_with(".man")
        };
        let unknown: Vec<_> = paths(&store).into_iter().filter(|path| !known(path)).collect();
        assert!(unknown.is_empty(), "a name became a path: {unknown:?}");
    }
}

/// Creates a store whose newest manifest refers to a table, with a storage of more than a chunk.
fn store_of_every_file(path: &Path) {
    let store = Store::create(path).unwrap();
    let mut txn = store.begin().unwrap();
    for i in 0..70u8 {
        txn.save(&format!("row.{i}"), &Tensor::from_vec(vec![i], &[1]).unwrap()).unwrap();
    }
    txn.commit().unwrap();
    store.save("large", &filled(5 << 20, 1u8)).unwrap();
}

/// Opens the store in every way, runs every operation, and returns the kinds of the errors.
fn errors_of_each_operation(path: &Path) -> Vec<ErrorKind> {
    let mut errors = Vec::new();
    // SAFETY: no process writes the store while it is mapped.
    for store in [Store::open(path), unsafe { Store::open_mapped(path) }] {
        let store = match store {
            Ok(store) => store,
            Err(e) => {
                errors.push(e);
                continue;
            }
        };
        let large = store.load("large");
        let done = [
            large.as_ref().map(drop).map_err(Clone::clone),
            store.load("row.3").map(drop),
            store.verify(|_| ()).map(drop),
            store.save("row.4", &Tensor::from_vec(vec![1u8], &[1]).unwrap()),
            store.append("large", &Tensor::from_vec(vec![1u8], &[1]).unwrap()).map(drop),
            store.gc().map(drop),
            store.disk_usage().map(drop),
        ];
        errors.extend(done.into_iter().filter_map(Result::err));
    }
    for error in &errors {
        assert!(!error.to_string().contains('\n'), "{error}");
    }
    errors.iter().map(stridemap::Error::kind).collect()
}

/// Opening a FIFO for reading blocks until a process opens it for writing. No operation may wait for that.
#[test]
fn fifo_device_or_directory_in_place_of_any_file_is_refused_at_once() {
    let made = tempfile::tempdir().unwrap();
    let model = made.path().join("x.smap");
    store_of_every_file(&model);
    let files: Vec<_> = paths(&model).into_iter().filter(|path| path.is_file()).collect();
    let ending = |path: &PathBuf| path.extension().map(|ending| ending.to_str().unwrap().to_owned());
    for known in ["man", "tab", "bin", "sum"] {
        assert!(files.iter().any(|path| ending(path).as_deref() == Some(known)), "no .{known}: {files:?}");
    }
    for file in files {
        for what in ["FIFO", "device", "directory", "link to a device", "link to a FIFO"] {
            let (dir, path) = new_path();
            let copied = Command::new("cp").arg("-a").args([&model, &path]).status().unwrap();
            assert!(copied.success());
            let place = path.join(file.strip_prefix(&model).unwrap());
            fs::remove_file(&place).unwrap();
            let fifo = |path: &Path| mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
            match what {
                "FIFO" => fifo(&place),
                "directory" => fs::create_dir(&place).unwrap(),
                "link to a device" => std::os::unix::fs::symlink("/dev/zero", &place).unwrap(),
                "link to a FIFO" => {
                    fifo(&dir.path().join("fifo"));
                    std::os::unix::fs::symlink(dir.path().join("fifo"), &place).unwrap();
                }
                _ => {
                    // The device /dev/zero. Only root can create one.
                    let device = rustix::fs::makedev(1, 5);
                    let mode = Mode::RUSR | Mode::WUSR;
                    if let Err(e) = mknodat(CWD, &place, FileType::CharacterDevice, mode, device) {
                        println!("skipped a device in the place of {}: {e}", file.display());
                        continue;
                    }
                }
            }
            let errors = errors_of_each_operation(&path);
            let about = format!("{what} for {}", file.file_name().unwrap().to_str().unwrap());
            assert!(!errors.is_empty(), "{about}: not detected");
            let typed = |kind: &ErrorKind| {
                matches!(
                    kind,
                    ErrorKind::Corrupt
                        | ErrorKind::NotAStore
                        | ErrorKind::Stale
                        | ErrorKind::Io
                        | ErrorKind::Poisoned
                )
            };
            assert!(errors.iter().all(typed), "{about}: {errors:?}");
            let now = fs::symlink_metadata(&place).unwrap().file_type();
            assert!(!now.is_file(), "{about}: it was written over");
        }
    }
}
