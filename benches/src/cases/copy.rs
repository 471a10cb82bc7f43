//! Copies strided views to contiguous memory, on 1, 2 and all processors.

use serde_json::json;
use stridemap::{DType, Tensor};

use super::save::MIB;
use crate::Outcome;
use crate::bench::Bench;
use crate::case::Case;
use crate::processors;

/// Dtypes of 1, 2, 4, 8 and 16 bytes.
const DTYPES: [DType; 5] = [DType::U8, DType::I16, DType::F32, DType::F64, DType::C128];
const PLAIN: &str = "floor: plain copy";
type View = fn(&Tensor) -> stridemap::Result<Tensor>;
const PATTERNS: [(&str, View); 6] = [
    ("transposed", |x| x.t()),
    ("permuted", |x| x.unflatten(1, [32, -1])?.permute([1, 2, 0])),
    ("stepped", |x| x.slice(1, 0, None, 2)),
    ("sliced", |x| x.slice(1, 1, -1, 1)),
    ("reversed", |x| x.flip([0, 1])),
    ("broadcast", |x| x.slice(0, 0, 1, 1)?.expand([x.size()[0] as i64, -1])),
];

pub(crate) fn run(bench: &mut Bench) -> Outcome {
    let all = processors::count();
    for side in bench.pick(vec![4096, 8192], vec![4096]) {
        for dtype in [DType::U8, DType::I16, DType::F32, DType::F64] {
            for threads in if all > 1 { vec![1, all] } else { vec![1] } {
                let name = format!("transpose/{side} x {side}, {} bytes on {threads}", dtype.itemsize());
                if bench.wants(&name) {
                    let x = pattern_of(dtype, &[side, side])?;
                    compare(bench, name, &x, "transposed", &x.t()?, threads, true)?;
                }
            }
        }
    }
    for (name, view) in PATTERNS {
        for dtype in DTYPES {
            for threads in processors::counts() {
                let case = format!("copy/{name}/{} bytes on {threads}", dtype.itemsize());
                if bench.wants(&case) {
                    let rows = 2048;
                    let columns = bench.pick(16, 4) * MIB / rows / dtype.itemsize();
                    let x = pattern_of(dtype, &[rows, columns])?;
                    compare(bench, case, &x, name, &view(&x)?, threads, false)?;
                }
            }
        }
    }
    for threads in if all > 1 { vec![1, all] } else { vec![1] } {
        let name = format!("copy/NCHW to NHWC on {threads}");
        if bench.wants(&name) {
            let x = pattern_of(DType::F32, &[bench.pick(64, 8), 128, 56, 56])?;
            compare(bench, name, &x, "channels last", &x.permute([0, 2, 3, 1])?, threads, false)?;
        }
    }
    Ok(())
}

fn pattern_of(dtype: DType, size: &[usize]) -> Outcome<Tensor> {
    let bytes: Vec<u8> =
        (0..size.iter().product::<usize>() * dtype.itemsize()).map(|at| (at / 7) as u8).collect();
    Ok(Tensor::from_bytes(dtype, size, &bytes)?)
}

/// Compares a copy of `view` with a plain copy of as many bytes, and with torch and NumPy.
fn compare(
    bench: &mut Bench,
    name: String,
    x: &Tensor,
    pattern: &str,
    view: &Tensor,
    threads: usize,
    is_beside_plain: bool,
) -> Outcome {
    let bytes = view.to_bytes()?;
    let arguments = json!({
        "pattern": pattern, "size": x.size(), "itemsize": x.dtype().itemsize(), "threads": threads,
    });
    let numpy =
        if threads == 1 { bench.python("numpy (Python)", "copy_numpy", arguments.clone())? } else { None };
    let torch = bench.python("torch (Python)", "copy_torch", arguments)?;
    let mut case = Case::new(name)
        .add("stridemap", |clock| clock.time(|| Ok(view.clone_data()?)).map(drop))
        .add(PLAIN, |clock| clock.time(|| Ok(bytes.clone())).map(drop))
        .add_all(torch)
        .add_all(numpy);
    if is_beside_plain {
        case = case.at_most_times(1.3, PLAIN).at_most_times(1., "torch (Python)");
    }
    if pattern == "channels last" {
        case = case.at_most_times(1., "torch (Python)").at_most_times(1., "numpy (Python)");
    }
    processors::on(threads, || bench.run(case))
}
