//! Chains of view operations with the results of PyTorch and NumPy: `torch_views.jsonl` and `torch_more_views.jsonl`
//! in `tests/data`, written by `make_torch_views.py` and `make_torch_more_views.py`. Of 4,400
//! chains those are kept that show an operation, a kind of argument or a result that few others show.
//!
//! `STRIDEMAP_TORCH_VIEWS` names another file of such chains to run instead.

use std::env;
use std::fs;

use serde_json::Value;
use stridemap::{Axis, DType, Result, Tensor};

const CHAINS: &str = include_str!("../../data/torch_views.jsonl");
const MORE_CHAINS: &str = include_str!("../../data/torch_more_views.jsonl");

fn list<T: TryFrom<i64>>(value: &Value) -> Vec<T> {
    let number = |value: &Value| T::try_from(value.as_i64().unwrap()).unwrap_or_else(|_| panic!("{value}"));
    value.as_array().unwrap().iter().map(number).collect()
}

/// The arguments of one operation.
struct Args<'a>(&'a Value);

impl Args<'_> {
    fn int(&self, key: &str) -> isize {
        self.0[key].as_i64().unwrap_or_else(|| panic!("{key} of {}", self.0)) as isize
    }

    fn axis(&self, key: &str) -> Axis<'static> {
        self.int(key).into()
    }

    fn count(&self, key: &str) -> usize {
        self.int(key).try_into().unwrap()
    }

    fn bound(&self, key: &str) -> Option<isize> {
        self.0[key].as_i64().map(|bound| bound as isize)
    }

    fn ints(&self, key: &str) -> Vec<isize> {
        list(&self.0[key])
    }

    /// Returns one number, or several.
    fn axes(&self, key: &str) -> Vec<isize> {
        if self.0[key].is_array() { self.ints(key) } else { vec![self.int(key)] }
    }

    fn sections(&self, key: &str) -> stridemap::Sections {
        if self.0[key].is_array() { self.ints(key).as_slice().into() } else { self.int(key).into() }
    }
}

/// Returns the result of the operation, or `None` for an index past the end of a list, which counts as a refusal.
fn apply(x: &Tensor, op: &str, args: &Args<'_>) -> Option<Result<Tensor>> {
    let pick = |parts: Result<Vec<Tensor>>| match parts {
        Ok(parts) => parts.get(args.count("index")).cloned().map(Ok),
        Err(e) => Some(Err(e)),
    };
    Some(match op {
        "select" => x.select(args.axis("dim"), args.int("index")),
        "narrow" => x.narrow(args.axis("dim"), args.int("start"), args.count("length")),
        "slice" => x.slice(args.axis("dim"), args.bound("start"), args.bound("end"), args.int("step")),
        "transpose" => x.transpose(args.axis("dim0"), args.axis("dim1")),
        "permute" => x.permute(args.ints("dims")),
        "t" => x.t(),
        "mT" if x.ndim() == 0 => Ok(x.clone()),
        "mT" => x.transpose(-2, -1),
        "flip" => x.flip(args.ints("dims")),
        "squeeze_all" => x.squeeze(0..x.ndim()),
        "squeeze" => x.squeeze(args.axes("dim")),
        "unsqueeze" => x.unsqueeze(args.int("dim")),
        "expand" => x.expand(args.ints("size")),
        "view" => x.view(args.ints("shape")),
        "reshape" => x.reshape(args.ints("shape")),
        "flatten" => x.flatten(args.axis("start_dim"), args.axis("end_dim")),
        "unflatten" => x.unflatten(args.axis("dim"), args.ints("sizes")),
        "unfold" => x.unfold(args.axis("dim"), args.count("size"), args.count("step")),
        "sliding_window_view" => x.sliding_window_view(list::<usize>(&args.0["window"]), args.axes("dim")),
        "diagonal" => x.diagonal(args.int("offset"), args.axis("dim1"), args.axis("dim2")),
        "movedim" => x.movedim(args.axes("source"), args.axes("destination")),
        "as_strided" => {
            x.as_strided(list::<usize>(&args.0["size"]), args.ints("stride"), args.count("offset"))
        }
        "chunk" => return pick(x.chunk(args.count("parts"), args.axis("dim"))),
        "split" => return pick(x.split(args.sections("split_size"), args.axis("dim"))),
        "tensor_split" => return pick(x.tensor_split(args.sections("parts"), args.axis("dim"))),
        "unbind" => return pick(x.unbind(args.axis("dim"))),
        "view_dtype" => x.view_dtype(args.0["dtype"].as_str().unwrap().parse::<DType>().unwrap()),
        "view_as_real" => x.view_as_real(),
        "view_as_complex" => x.view_as_complex(),
        "real" if !x.dtype().is_complex() => Ok(x.clone()),
        "real" => x.view_as_real().and_then(|parts| parts.select(-1, 0)),
        "imag" => x.view_as_real().and_then(|parts| parts.select(-1, 1)),
        "contiguous" => x.contiguous(),
        other => panic!("unknown operation {other}"),
    })
}

/// Compares a header with the one of a line. NumPy does not normalize strides of dimensions of size 1, and offsets do
/// not matter without elements.
fn has_header(x: &Tensor, line: &Value, is_numpy: bool) -> bool {
    let (size, stride): (Vec<usize>, Vec<isize>) = (list(&line["size"]), list(&line["stride"]));
    let mut strides = x.stride().iter().zip(&stride).zip(&size);
    x.size() == size
        && x.stride().len() == stride.len()
        && strides.all(|((own, expected), &n)| own == expected || is_numpy && n == 1)
        && (x.numel() == 0 || x.storage_offset() as u64 == line["offset"].as_u64().unwrap())
}

/// Returns the bytes of the elements at the end of a chain.
fn bytes(chain: &Value) -> Vec<u8> {
    match chain["bytes"].as_str() {
        Some(hex) => hex
            .as_bytes()
            .chunks(2)
            .map(|digits| u8::from_str_radix(str::from_utf8(digits).unwrap(), 16).unwrap())
            .collect(),
        None => list::<i64>(&chain["values"]).into_iter().flat_map(i64::to_le_bytes).collect(),
    }
}

#[derive(Debug, Default)]
struct Counts {
    chains: usize,
    steps: usize,
    refused: usize,
    copied: usize,
}

/// Runs a chain. Returns the first disagreement as the error.
fn run(chain: &Value, counts: &mut Counts) -> std::result::Result<(), String> {
    let is_numpy = chain["engine"] == "numpy";
    let storage = (0..chain["storage_len"].as_i64().unwrap()).collect();
    let base = Tensor::from_vec(storage, &list::<usize>(&chain["base"]["size"])).unwrap();
    let agree = |what: &str, agrees: bool, seen: &dyn std::fmt::Debug| {
        if agrees { Ok(()) } else { Err(format!("{what}: {seen:?}")) }
    };
    agree("base", has_header(&base, &chain["base"], is_numpy), &base)?;
    let mut x = base.clone();
    for step in chain["steps"].as_array().unwrap() {
        let op = step["op"].as_str().unwrap();
        let context = format!("{x:?}\n{step}\n");
        counts.steps += 1;
        match (apply(&x, op, &Args(&step["args"])), step["refused"] == true) {
            (None | Some(Err(_)), true) => counts.refused += 1,
            (Some(Ok(view)), false) => {
                let (is_contiguous, is_copied) = (step["is_contiguous"] == true, step["copied"] == true);
                let dtype = step["dtype"].as_str().unwrap_or(x.dtype().name());
                agree(&format!("{context}dtype"), view.dtype().name() == dtype, &view)?;
                agree(&format!("{context}header"), has_header(&view, step, is_numpy), &view)?;
                agree(&format!("{context}contiguous"), view.is_contiguous() == is_contiguous, &view)?;
                // A tensor without elements has nothing to copy, so PyTorch's result does not show whether it would be
                // shared.
                let is_shared = view.shares_storage(&x);
                agree(&format!("{context}copied"), view.numel() == 0 || is_shared != is_copied, &view)?;
                counts.copied += usize::from(is_copied);
                x = view;
            }
            (got, is_refused) => {
                agree(&format!("{context}refused: {is_refused}, and gives"), false, &got)?;
            }
        }
    }
    let is_shared = x.shares_storage(&base);
    agree("shared at the end", x.numel() == 0 || is_shared == (chain["shared"] == true), &is_shared)?;
    agree("contiguous at the end", x.is_contiguous() == (chain["is_contiguous"] == true), &x)?;
    let dtype = chain["dtype"].as_str().unwrap_or("int64").parse::<DType>().unwrap();
    agree("dtype", x.dtype() == dtype, &x)?;
    agree("values", x.to_bytes().unwrap() == bytes(chain), &x.to_bytes())?;
    counts.chains += 1;
    Ok(())
}

/// Runs all chains of a file, and asserts that each agrees.
fn run_all(chains: &str) -> Counts {
    let mut counts = Counts::default();
    let disagreement = |line: &str| {
        let e = run(&serde_json::from_str(line).unwrap(), &mut counts).err()?;
        Some(format!("{e}\n{line}\n"))
    };
    let disagreements: Vec<String> = chains.lines().filter_map(disagreement).collect();
    assert!(
        disagreements.is_empty(),
        "{} chains disagree:\n{}",
        disagreements.len(),
        disagreements.join("\n")
    );
    println!("views that agree with PyTorch and NumPy: {counts:?}");
    counts
}

#[test]
fn chains_of_views_agree_with_pytorch_and_numpy() {
    if let Ok(path) = env::var("STRIDEMAP_TORCH_VIEWS") {
        run_all(&fs::read_to_string(path).unwrap());
        return;
    }
    let (chains, more) = (run_all(CHAINS), run_all(MORE_CHAINS));
    assert_eq!((chains.chains, chains.steps, more.chains, more.steps), (458, 1862, 547, 4294));
}
