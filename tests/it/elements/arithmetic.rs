//! Arithmetic in place, compared with PyTorch: `tests/data/torch_inplace.jsonl`, written by
//! `make_torch_inplace.py` beside it: of 1,500 rows those that show two dtypes, or ranks, that no other shows.
//!
//! `STRIDEMAP_TORCH_INPLACE` names another file of such rows to run instead.

use std::env;
use std::fs;

use num_complex::Complex;
use serde_json::Value;
use stridemap::{DType, Operand, Result, Scalar, StorageKind, Tensor};

use crate::harness::fast;
use crate::support::{from_base64, temporary};

const ROWS: &str = include_str!("../../data/torch_inplace.jsonl");

fn tensor(line: &Value, elements: &Value) -> Tensor {
    let size: Vec<usize> =
        line["size"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect();
    let dtype = line["dtype"].as_str().unwrap().parse().unwrap();
    Tensor::from_bytes(dtype, &size, &from_base64(elements.as_str().unwrap())).unwrap()
}

fn number(line: &Value) -> Scalar {
    let number = &line["number"];
    match line["kind"].as_str().unwrap() {
        "int" => number.as_i64().unwrap().into(),
        "float" => number.as_f64().unwrap().into(),
        "bool" => number.as_bool().unwrap().into(),
        _ => Complex::new(number[0].as_f64().unwrap(), number[1].as_f64().unwrap()).into(),
    }
}

/// Compares bits, but any NaN equals any other, and complex products and quotients may differ by one rounding, because
/// PyTorch computes them in several ways.
fn agree(own: &Tensor, theirs: &Tensor) -> bool {
    let rounding = if own.dtype() == DType::C64 { 1e-6 } else { 1e-14 };
    let (own, theirs) = (own.to_scalars().unwrap(), theirs.to_scalars().unwrap());
    let close =
        |a: f64, b: f64, scale: f64| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= scale * rounding;
    own.iter().zip(&theirs).all(|pair| match pair {
        (Scalar::Complex(re, im), Scalar::Complex(their_re, their_im)) => {
            let scale = their_re.hypot(*their_im);
            close(*re, *their_re, scale) && close(*im, *their_im, scale)
        }
        (Scalar::Float(a), Scalar::Float(b)) => a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(),
        (a, b) => a == b,
    })
}

#[test]
fn changes_in_place_agree_with_pytorch() -> Result<()> {
    let other = env::var("STRIDEMAP_TORCH_INPLACE").ok().map(|path| fs::read_to_string(path).unwrap());
    let dir = temporary();
    let store = fast().create(dir.path().join("x.smap"))?;
    let (mut agreed, mut refused) = (0, 0);
    for line in other.as_deref().unwrap_or(ROWS).lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        store.write(|txn| txn.save_as("x", &tensor(&row, &row["data"]), StorageKind::Mutable))?;
        let x = store.load("x")?;
        let given = row.get("tensor").map(|given| tensor(given, &given["data"]));
        let operand = || given.as_ref().map_or_else(|| Operand::Number(number(&row)), Operand::Tensor);
        let mut guard = x.lock_exclusive()?;
        let changed = match (row["op"].as_str().unwrap(), &given) {
            ("add_", _) => guard.add_(operand()),
            ("sub_", _) => guard.sub_(operand()),
            ("mul_", _) => guard.mul_(operand()),
            ("div_", _) => guard.div_(operand()),
            (_, Some(source)) => guard.copy_(source),
            (op, None) => panic!("{op} of a number"),
        };
        let is_refused = changed.is_err();
        assert_eq!(is_refused, row["refused"] == true, "{:?} {line}", changed.err());
        if is_refused {
            refused += 1;
        } else {
            let expected = tensor(&row, &row["out"]);
            assert!(agree(&guard, &expected), "{}\nPyTorch: {expected}\n{line}", *guard);
            agreed += 1;
        }
    }
    println!("changes in place that agree with PyTorch: {agreed}, refused as by PyTorch: {refused}");
    if other.is_none() {
        assert_eq!((agreed, refused), (433, 291));
    }
    Ok(())
}
