//! Parses expressions of the command line, and applies them to tensors of every kind.
#![no_main]
#![allow(dead_code, unused_imports, reason = "only some functions of the command line's modules are called")]

#[path = "../../cli/src/error.rs"]
mod error;
#[path = "../../cli/src/expr/mod.rs"]
mod expr;
#[path = "../../cli/src/interrupt.rs"]
mod interrupt;
#[path = "../../cli/src/names/mod.rs"]
mod names;
#[path = "../../cli/src/ui/mod.rs"]
mod ui;
#[path = "../../cli/src/remote/url.rs"]
mod url;

mod remote {
    pub(crate) use crate::url::shown;
}

mod separator {
    /// Returns whether the arguments of the process have a `--`. Those of the fuzzer have none.
    pub(crate) fn has_separator() -> bool {
        false
    }
}

use std::sync::OnceLock;

use libfuzzer_sys::{Corpus, fuzz_target};
use stridemap::{DType, Source as _, Store, Tensor};
use stridemap_fuzz::{elements, scratch};

use expr::{Copies, Expr};
use names::Named;

/// The maximum size in bytes of a view that is read. A view that repeats elements can have any size.
const READ_BYTES: usize = 64 << 10;

/// The maximum length of an expression in bytes, which limits its dimensions and steps to what a shell command could
/// have.
const TEXT_BYTES: usize = 4096;

struct Tensors {
    store: Store,
    named: Vec<(&'static str, Tensor)>,
}

impl Named for Tensors {
    fn contains(&self, name: &str) -> stridemap::Result<bool> {
        Ok(self.named.iter().any(|(known, _)| *known == name))
    }

    fn load(&self, name: &str) -> stridemap::Result<Tensor> {
        match self.named.iter().find(|(known, _)| *known == name) {
            Some((_, tensor)) => Ok(tensor.clone()),
            None => self.store.load(name),
        }
    }

    fn names(&self) -> stridemap::Result<Vec<String>> {
        Ok(self.named.iter().map(|(name, _)| (*name).to_owned()).collect())
    }
}

fn tensors() -> Result<Tensors, Box<dyn std::error::Error>> {
    let counted = |n: i64, size: &[usize]| Tensor::from_vec((0..n).collect(), size);
    let named = [
        ("x", counted(12, &[3, 4])?),
        ("v", counted(7, &[7])?),
        ("images", counted(120, &[2, 3, 4, 5])?.refine_names(&[Some("N"), Some("C"), Some("H"), Some("W")])?),
        ("f", Tensor::from_vec((0..24u8).map(f32::from).collect(), &[2, 3, 4])?.transpose(0, 2)?),
        ("c", Tensor::zeros(DType::C64, &[2, 3])?),
        ("h", Tensor::from_vec((0..16u8).collect(), &[4, 4])?.view_dtype(DType::F16)?),
        ("p", Tensor::from_vec((0..16u8).collect(), &[16])?.view_dtype(DType::F4E2M1FNx2)?),
        ("b", Tensor::from_vec(vec![true, false], &[2])?),
        ("s", counted(1, &[])?),
        ("e", counted(0, &[0, 3])?),
        ("r", counted(12, &[3, 4])?.flip([0])?),
        ("w", counted(3, &[3, 1])?.expand(&[-1, 1 << 10])?),
        ("huge", Tensor::zeros(DType::U8, &[1])?.expand(&[1 << 30, 1 << 30])?),
    ];
    let store = Store::create(scratch("expr")?.join("store.smap"))?;
    Ok(Tensors { store, named: named.into() })
}

fuzz_target!(|bytes: &[u8]| -> Corpus {
    static TENSORS: OnceLock<Tensors> = OnceLock::new();
    let tensors = TENSORS.get_or_init(|| tensors().expect("tensors to work on"));
    let Ok(text) = str::from_utf8(bytes) else { return Corpus::Reject };
    if text.len() > TEXT_BYTES {
        return Corpus::Reject;
    }
    // Every name must parse back.
    let quoted = names::quoted(text);
    match Expr::parse(&quoted) {
        Ok(read) => assert_eq!(read.name, text, "{quoted:?}"),
        Err(e) => panic!("{quoted:?}: {e}"),
    }
    let Ok((_, view)) = expr::view(text, tensors, Copies::Refused) else {
        // An expression that needs a copy is not evaluated: the copy can have any size.
        return Corpus::Keep;
    };
    let (_, copied) =
        expr::view(text, tensors, Copies::Allowed).expect("a view is also allowed when copies are");
    assert_eq!((view.size(), view.dtype(), view.names()), (copied.size(), copied.dtype(), copied.names()));
    if view.nbytes() <= READ_BYTES {
        let read = elements(&view).expect("a view on the heap reads");
        assert_eq!(read, elements(&copied).expect("a view on the heap reads"));
        if view.numel() > 0 {
            assert_eq!(read.len(), view.nbytes());
        }
    }
    let _ = view.to_string();
    let _ = format!("{view:?}");
    Corpus::Keep
});
