//! The tree of modules that the names of tensors describe: `encoder.layer.0.weight` is in the module `encoder.layer.0`.

use std::collections::BTreeMap;

use serde::Serialize;
use stridemap::{DType, TensorInfo};

use crate::names::natural;

/// The maximum depth of a tree. Trees are visited recursively, and names in hostile files can have thousands of parts.
const MAX_DEPTH: usize = 64;

/// The totals of a group of tensors.
#[derive(Clone, Copy, Default, Serialize)]
pub(crate) struct Totals {
    pub(crate) tensor_count: u64,
    pub(crate) numel: u64,
    #[serde(rename = "nbytes")]
    pub(crate) size_bytes: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, info: &TensorInfo) {
        self.merge(Totals {
            tensor_count: 1,
            numel: info.header.numel() as u64,
            size_bytes: info.header.nbytes() as u64,
        });
    }

    pub(crate) fn merge(&mut self, other: Totals) {
        self.tensor_count += other.tensor_count;
        self.numel = self.numel.saturating_add(other.numel);
        self.size_bytes = self.size_bytes.saturating_add(other.size_bytes);
    }
}

/// A part of a name between dots: a tensor, or a module.
#[derive(Default)]
pub(crate) struct Node {
    pub(crate) totals: Totals,
    /// The dtype and size of a tensor.
    pub(crate) tensor: Option<(DType, Vec<usize>)>,
    /// The parts of a module. A key is a name and whether the part is a module: a tensor and a module can have the same
    /// name.
    parts: BTreeMap<(String, bool), Node>,
}

impl Node {
    /// Adds a tensor to the modules that its name describes.
    pub(crate) fn add(&mut self, info: &TensorInfo) {
        let mut node = self;
        node.totals.add(info);
        let mut parts = info.name.splitn(MAX_DEPTH, '.').peekable();
        while let Some(part) = parts.next() {
            node = node.parts.entry((part.to_owned(), parts.peek().is_some())).or_default();
            node.totals.add(info);
        }
        node.tensor = Some((info.header.dtype(), info.header.size().to_vec()));
    }

    /// Returns the parts of this module in natural order, a tensor before a module of the same name. A module that
    /// contains only another module is joined with it: `model.encoder`.
    pub(crate) fn parts(&self) -> Vec<(String, &Node)> {
        let mut parts: Vec<(String, &Node)> =
            self.parts.iter().map(|((name, _), node)| joined(name, node)).collect();
        parts.sort_by(|(a, _), (b, _)| natural(a, b));
        parts
    }

    pub(crate) fn is_module(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Returns whether two nodes have the same parts, dtypes and sizes.
    pub(crate) fn is_like(&self, other: &Node) -> bool {
        self.tensor == other.tensor
            && self.parts.len() == other.parts.len()
            && self.parts.iter().zip(&other.parts).all(|((a, x), (b, y))| a == b && x.is_like(y))
    }
}

fn joined<'a>(name: &str, mut node: &'a Node) -> (String, &'a Node) {
    let mut name = name.to_owned();
    while let (1, Some(((part, true), only))) = (node.parts.len(), node.parts.first_key_value()) {
        name.extend([".", part]);
        node = only;
    }
    (name, node)
}
