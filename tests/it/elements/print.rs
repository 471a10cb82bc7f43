//! Printing, compared with PyTorch's output in `tests/data/torch_*prints.jsonl`. The `make_*.py` scripts beside it
//! write these files.

use serde_json::Value;
use stridemap::{DType, PrintOptions, Tensor};

use crate::support::from_base64;

const PRINTS: &str = include_str!("../../data/torch_prints.jsonl");
const EDGE_PRINTS: &str = include_str!("../../data/torch_edge_prints.jsonl");
const OPTION_PRINTS: &str = include_str!("../../data/torch_option_prints.jsonl");

/// Returns the tensor of a line. Its elements are taken from the storage by the line's own strides.
fn tensor_of(line: &Value) -> Tensor {
    let numbers = |key: &str| -> Vec<usize> {
        line[key].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect()
    };
    let (size, stride) = (numbers("size"), numbers("stride"));
    let dtype: DType = line["dtype"].as_str().unwrap().parse().unwrap();
    let storage = from_base64(line["storage"].as_str().unwrap());
    let mut bytes = Vec::new();
    for i in 0..size.iter().product() {
        let (mut rest, mut at) = (i, line["storage_offset"].as_u64().unwrap() as usize);
        for (&n, &step) in size.iter().zip(&stride).rev() {
            at += rest % n * step;
            rest /= n;
        }
        bytes.extend(&storage[at * dtype.itemsize()..][..dtype.itemsize()]);
    }
    Tensor::from_bytes(dtype, &size, &bytes).unwrap()
}

fn assert_prints_agree(lines: &str) {
    for (number, line) in lines.lines().enumerate() {
        let line: Value = serde_json::from_str(line).unwrap();
        let expected = line["text"].as_str().unwrap().replace("dtype=torch.", "dtype=");
        assert_eq!(tensor_of(&line).to_string(), expected, "line {}", number + 1);
    }
    println!("{} prints agree", lines.lines().count());
}

#[test]
fn tensors_print_as_pytorch_prints_them() {
    assert_prints_agree(PRINTS);
    assert_eq!(PRINTS.lines().count(), 218);
}

#[test]
fn values_at_the_limits_of_the_print_modes_print_as_in_pytorch() {
    assert_prints_agree(EDGE_PRINTS);
    assert_eq!(EDGE_PRINTS.lines().count(), 60);
}

#[test]
fn options_change_what_is_printed_as_in_pytorch() {
    for (number, line) in OPTION_PRINTS.lines().enumerate() {
        let line: Value = serde_json::from_str(line).unwrap();
        let option = |key: &str| line["options"][key].as_u64().unwrap() as usize;
        let options = PrintOptions {
            precision: option("precision"),
            threshold: option("threshold"),
            edge_items: option("edgeitems"),
            line_width: option("linewidth"),
        };
        let expected = line["text"].as_str().unwrap().replace("dtype=torch.", "dtype=");
        assert_eq!(tensor_of(&line).to_text(&options).unwrap(), expected, "line {}", number + 1);
    }
}

#[test]
fn dimension_names_are_printed_after_the_dtype() {
    let x = Tensor::zeros(DType::F64, &[1, 2]).unwrap().refine_names(&[Some("row"), None]).unwrap();
    assert_eq!(x.to_string(), "tensor([[0., 0.]], dtype=float64, names=('row', None))");
    assert_eq!(x.select("row", 0).unwrap().to_string(), "tensor([0., 0.], dtype=float64)");
}
