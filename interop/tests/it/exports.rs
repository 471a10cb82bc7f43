//! The memory of large exports, for any view.

use std::env;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use stridemap::{DType, Durability, Index, StorageKind, Store, StoreOptions, Tensor};
use stridemap_interop::npz;
use stridemap_interop::safetensors::Export;
use stridemap_interop::{ForeignFile, npy};

use crate::support::{scaled, temporary};

/// The memory limit: the pieces gathered at once, the memory for reading them, and the process itself.
const MAX_BYTES: u64 = 200 << 20;

/// The variables that tell a started process what to write, and where.
const FORMAT: &str = "STRIDEMAP_TEST_EXPORT_FORMAT";
const PLACE: &str = "STRIDEMAP_TEST_EXPORT_PLACE";

const VIEWS: [&str; 4] = ["transposed", "flipped", "repeated", "stepped"];

fn view(name: &str, x: &Tensor) -> Tensor {
    match name {
        "transposed" => x.t(),
        "flipped" => x.flip([0, 1]),
        "repeated" => x.select(0, 1).and_then(|row| row.expand([x.size()[0] as isize, -1])),
        _ => x.slice(1, None, None, 2),
    }
    .unwrap()
}

/// Runs [`exporter`] in a process of its own.
fn export(format: &str, place: &Path) -> ExitStatus {
    let mut exporter = Command::new(env::current_exe().unwrap());
    exporter.args(["--exact", "exports::exporter"]).env(FORMAT, format).env(PLACE, place);
    exporter.stdout(Stdio::null()).status().unwrap()
}

/// Plays the role of a started process. Without one, tests that a process that fails in its role is noticed.
#[test]
fn exporter() {
    let (Ok(format), Some(path)) = (env::var(FORMAT), env::var_os(PLACE)) else {
        return assert!(!export("npy", Path::new("none")).success());
    };
    let path = Path::new(&path);
    let store = Store::open(path.join("x.smap")).unwrap();
    let views: Vec<_> = VIEWS.map(|name| (name.to_owned(), store.load(name).unwrap())).to_vec();
    let out = path.join("out");
    match format.as_str() {
        "safetensors" => drop(Export::new().write(out, &views, |_| ()).unwrap()),
        "npz" => {
            npz::Export::new().write(out, &views, |_| ()).unwrap();
        }
        _ => npy::Export::new().write(out, &views[0].1, |_| ()).unwrap(),
    }
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    fs::write(path.join("peak"), peak.trim_end_matches("kB").trim()).unwrap();
}

/// `STRIDEMAP_TEST_EXPORT_MIB` sets the size of the tensor whose views are exported. The default is 64.
#[test]
fn exporting_views_of_a_large_tensor_takes_the_memory_of_a_few_pieces() {
    let size_bytes = scaled("STRIDEMAP_TEST_EXPORT_MIB", 64) << 20;
    let dir = temporary();
    let store =
        StoreOptions::new().durability(Durability::Process).create(dir.path().join("x.smap")).unwrap();
    // A sparse file of zeros, except for some rows and columns whose values identify their positions.
    let (rows, columns) = (4 << 10, size_bytes / 4 / (4 << 10));
    let x = store.create_tensor("x", DType::I32, &[rows, columns], StorageKind::Mutable).unwrap();
    for at in [1, 1000, -1] {
        let row = Tensor::from_vec((1..=columns as i32).collect(), &[columns]).unwrap();
        let column = Tensor::from_vec((1..=rows as i32).collect(), &[rows]).unwrap();
        x.select(0, at).unwrap().lock_exclusive().unwrap().copy_(&row).unwrap();
        x.select(1, at).unwrap().lock_exclusive().unwrap().copy_(&column).unwrap();
    }
    for name in VIEWS {
        store.save_view(name, &view(name, &x)).unwrap();
    }
    for format in ["safetensors", "npy", "npz"] {
        assert!(export(format, dir.path()).success());
        let peak_kib: u64 = fs::read_to_string(dir.path().join("peak")).unwrap().parse().unwrap();
        let peak_bytes = peak_kib << 10;
        let out = dir.path().join("out");
        println!(
            "{format}: {} bytes written, peak memory {peak_bytes} bytes",
            File::open(&out).unwrap().metadata().unwrap().len()
        );
        assert!(peak_bytes < MAX_BYTES, "{format}: {peak_bytes} bytes of memory");
        let file = ForeignFile::open(&out).unwrap();
        for info in file.tensors() {
            let name = if format == "npy" { "transposed" } else { info.name.as_str() };
            let (expected, written) = (store.load(name).unwrap(), file.load(&info.name).unwrap());
            assert_eq!(written.size(), expected.size(), "{format} {name}");
            // Pieces can begin and end anywhere, so corners and a lattice over the whole tensor are compared.
            let steps = written.size().iter().map(|n| (n / 97).max(1) as isize).collect::<Vec<_>>();
            let lattice = |tensor: &Tensor| {
                let rows =
                    tensor.slice(0, None, None, steps[0]).unwrap().index_select(1, &marked(tensor)).unwrap();
                let columns = tensor.slice(1, None, None, steps[1]).unwrap();
                let columns = columns.index([Index::At(1)]).unwrap();
                (rows.read::<i32>().unwrap(), columns.read::<i32>().unwrap())
            };
            assert!(lattice(&written) == lattice(&expected), "{format} {name}");
        }
        fs::remove_file(out).unwrap();
    }
}

/// Returns the positions along the last dimension that may be marked.
fn marked(tensor: &Tensor) -> Tensor {
    let n = tensor.size()[1] as i64;
    let places = [0, 1, 2, 500, 1000, 1001, n - 1001, n - 1000, n - 2, n - 1];
    Tensor::from_vec(places.to_vec(), &[places.len()]).unwrap()
}
