//! Names the values of a pickle: the keys of nested dicts, lists and tuples, joined by dots.

use std::collections::BTreeMap;

use stridemap::import::Layout;
use stridemap_format::Extent;
use stridemap_format::limits::MAX_RANK;

use super::known::Known;
use super::pickle::{Budget, Items, Literal, Node, Root, StorageRef, TensorRef, Unpickled, Value};
use super::text;
use crate::contents::ForeignTensor;

/// The maximum nesting of dicts, lists and tuples.
const MAX_DEPTH: usize = 100;

/// The approximate memory of a tensor without its name: a header and its lists.
const TENSOR_BYTES: usize = 200;

/// The approximate memory of an attribute without its name and text: an entry of a map.
const ATTRIBUTE_BYTES: usize = 96;

/// The most characters of a name in an error.
const MAX_SHOWN_CHARS: usize = 200;

/// All leaves, by name.
#[derive(Debug, Default)]
pub(super) struct Leaves {
    /// The tensors, in the order of the pickle. They refer to their storages by root number.
    pub(super) tensors: Vec<ForeignTensor>,
    pub(super) attributes: BTreeMap<String, String>,
}

/// Returns the leaves of `unpickled`, and its roots. A leaf without a name gets the name `stem`.
///
/// # Errors
/// One line, with the name of the value that cannot be read.
pub(super) fn leaves(unpickled: Unpickled<'_>, stem: &str) -> Result<(Leaves, Vec<Root>), String> {
    let mut flattening = Flattening {
        from: &unpickled,
        stem,
        name: String::new(),
        path: Vec::new(),
        left_visits: unpickled.length_bytes(),
        budget: unpickled.arena.budget,
        leaves: Leaves::default(),
    };
    flattening.visit(unpickled.root)?;
    let leaves = flattening.leaves;
    let mut names: Vec<&str> = leaves.tensors.iter().map(|leaf| leaf.name.as_str()).collect();
    names.extend(leaves.attributes.keys().map(String::as_str));
    names.sort_unstable();
    match names.windows(2).find(|pair| pair.first() == pair.last()) {
        Some(pair) => Err(twice(pair.first().copied().unwrap_or_default())),
        None => Ok((leaves, unpickled.arena.roots)),
    }
}

struct Flattening<'a> {
    from: &'a Unpickled<'a>,
    stem: &'a str,
    /// The name of the value being visited.
    name: String,
    /// The numbers of the containers around it.
    path: Vec<u32>,
    /// The visits left. A container in several places is visited in each. Without such repeats, each visit has at
    /// least one byte in the pickle.
    left_visits: usize,
    budget: Budget,
    leaves: Leaves,
}

impl Flattening<'_> {
    fn visit(&mut self, value: Value) -> Result<(), String> {
        self.left_visits = self
            .left_visits
            .checked_sub(1)
            .ok_or_else(|| "it repeats the same lists or dicts too many times".to_owned())?;
        let from = self.from;
        match (value, from.arena.node(value)) {
            (Value::None, _) => self.attribute("null".to_owned()),
            (Value::Bool(is), _) => self.attribute(is.to_string()),
            (Value::Literal(_), _) => match from.literal(value).as_ref().and_then(text::attribute) {
                Some(text) => self.attribute(text),
                None => Err(self.refused("contains bytes, which are neither tensors nor text")),
            },
            (Value::Known(Known::DType(dtype)), _) => self.attribute(dtype.name().to_owned()),
            (Value::Known(known), _) => {
                Err(self.refused(&format!("contains {}, which is not a value", known.name())))
            }
            (_, Some(Node::Tensor(index))) => match from.arena.tensor(*index) {
                Some(tensor) => self.tensor(&tensor),
                None => Ok(()),
            },
            (_, Some(&Node::Size(items))) => {
                // A list of strings would take many times the bytes that the sizes have in the pickle.
                let mut sizes = String::from("[");
                for size in from.arena.items(items).iter().filter_map(|&size| self.plain(size)) {
                    let comma = if sizes.len() > 1 { "," } else { "" };
                    sizes.extend([comma, &size]);
                }
                self.attribute(sizes + "]")
            }
            (_, Some(&Node::Device(items))) => {
                let parts: Vec<_> =
                    from.arena.items(items).iter().filter_map(|&part| self.plain(part)).collect();
                self.attribute(parts.join(":"))
            }
            (_, Some(Node::Storage(_))) => Err(self.refused("is a storage without a tensor; save a tensor")),
            (Value::Node(index), Some(node)) => {
                if self.path.contains(&index) {
                    return Err(self.refused(&format!("is {} that contains itself", node.kind())));
                }
                if self.path.len() >= MAX_DEPTH {
                    return Err(self.refused(&format!("is nested deeper than {MAX_DEPTH} lists and dicts")));
                }
                self.path.push(index);
                match node {
                    Node::Dict(pairs) => pairs
                        .iter()
                        .try_for_each(|&(key, value)| self.key(key).and_then(|key| self.child(&key, value))),
                    Node::List(items) => self.children(items),
                    Node::Tuple(items) => self.children(from.arena.items(*items)),
                    _ => Ok(()),
                }?;
                self.path.pop();
                Ok(())
            }
            (Value::Node(_), None) => Ok(()),
        }
    }

    fn children(&mut self, items: &[Value]) -> Result<(), String> {
        items.iter().enumerate().try_for_each(|(index, &item)| self.child(&index.to_string(), item))
    }

    fn child(&mut self, key: &str, value: Value) -> Result<(), String> {
        // One key may be shared by many values without leaves.
        self.budget.charge(key.len())?;
        let length = self.name.len();
        if length > 0 {
            self.name.push('.');
        }
        self.name.push_str(key);
        self.visit(value)?;
        self.name.truncate(length);
        Ok(())
    }

    fn key(&self, key: Value) -> Result<String, String> {
        let named = match key {
            Value::None => Some("None".to_owned()),
            Value::Bool(is) => Some(if is { "True" } else { "False" }.to_owned()),
            _ => self.from.literal(key).as_ref().and_then(text::key),
        };
        named.ok_or_else(|| {
            let what = match self.from.literal(key) {
                Some(_) => "bytes",
                None => self.from.arena.kind(key),
            };
            self.refused(&format!("has {what} as a key, which cannot be part of a name"))
        })
    }

    fn plain(&self, value: Value) -> Option<String> {
        self.from.literal(value).as_ref().and_then(text::attribute)
    }

    fn leaf_name(&self) -> String {
        if self.name.is_empty() { self.stem.to_owned() } else { self.name.clone() }
    }

    fn attribute(&mut self, text: String) -> Result<(), String> {
        let name = self.leaf_name();
        self.budget.charge(ATTRIBUTE_BYTES.saturating_add(name.len()).saturating_add(text.len()))?;
        match self.leaves.attributes.insert(name, text) {
            Some(_) => Err(twice(&self.leaf_name())),
            None => Ok(()),
        }
    }

    fn tensor(&mut self, tensor: &TensorRef) -> Result<(), String> {
        let name = self.leaf_name();
        self.budget.charge(TENSOR_BYTES.saturating_add(name.len()))?;
        let Some(storage) = self.from.arena.storage(tensor.storage) else { return Ok(()) };
        let layout = self.layout(tensor, storage).map_err(|e| self.refused(&e))?;
        let (dtype, storage) = (tensor.dtype, storage.root);
        self.leaves.tensors.push(ForeignTensor { name, dtype, layout, storage });
        Ok(())
    }

    /// Returns the layout over the whole storage.
    fn layout(&self, tensor: &TensorRef, storage: StorageRef) -> Result<Layout, String> {
        if let Some(Node::Dict(pairs)) = self.from.arena.node(tensor.metadata)
            && let Some(&(key, _)) = pairs.iter().find(|&&(_, value)| value != Value::Bool(false))
        {
            return Err(format!(
                "has the {:?} bit set, so its bytes are not its elements; save the result of resolve_conj() or \
                 resolve_neg()",
                self.plain(key).unwrap_or_default()
            ));
        }
        let rank = self.from.arena.items(tensor.size).len().max(self.from.arena.items(tensor.stride).len());
        if rank > MAX_RANK {
            return Err(format!("has {rank} dimensions; at most {MAX_RANK} are allowed"));
        }
        let (size, stride) = (self.integers(tensor.size), self.integers(tensor.stride));
        let offset = self.integer(tensor.offset);
        let beyond = |why: &str| {
            format!(
                "has size {size:?}, stride {stride:?} and offset {offset} in {} bytes of {}: {why}",
                storage.length_bytes, tensor.dtype
            )
        };
        if size.iter().chain(&stride).any(|&n| n < 0) || offset < 0 {
            return Err(beyond("PyTorch allows no negative numbers"));
        }
        if size.len() != stride.len() {
            return Err(beyond("the numbers of sizes and strides differ"));
        }
        let itemsize = tensor.dtype.itemsize() as u64;
        let elements = storage.length_bytes.checked_div(itemsize).unwrap_or(0);
        let start = storage.start_bytes.checked_div(itemsize).unwrap_or(0);
        if start.checked_mul(itemsize) != Some(storage.start_bytes) {
            return Err(beyond("its storage does not begin at an element"));
        }
        // In PyTorch, a tensor without elements may have any offset.
        let offset = if size.contains(&0) { offset.min(elements.into()) } else { offset };
        let dims = size.iter().copied().zip(stride.iter().copied());
        Extent::of(dims, offset, tensor.dtype, storage.length_bytes).map_err(|e| beyond(e.detail()))?;

        let too_large = || beyond("a number that does not fit in 64 bits");
        let sizes = size.iter().map(|&n| usize::try_from(n)).collect::<Result<_, _>>();
        let strides = stride.iter().map(|&n| isize::try_from(n)).collect::<Result<_, _>>();
        let offset =
            u64::try_from(offset).ok().and_then(|offset| usize::try_from(offset.checked_add(start)?).ok());
        let (Ok(sizes), Ok(strides), Some(offset)) = (sizes, strides, offset) else {
            return Err(too_large());
        };
        Layout::new(sizes, strides, offset).map_err(|e| e.to_string())
    }

    fn integer(&self, value: Value) -> i128 {
        match self.from.literal(value) {
            Some(Literal::Int(int)) => int,
            _ => -1,
        }
    }

    fn integers(&self, items: Items) -> Vec<i128> {
        self.from.arena.items(items).iter().map(|&item| self.integer(item)).collect()
    }

    fn refused(&self, what: &str) -> String {
        format!("{} {what}", shown(&self.leaf_name()))
    }
}

fn twice(name: &str) -> String {
    format!("{} is the name of two values", shown(name))
}

/// Returns a name as errors show it.
fn shown(name: &str) -> String {
    let mut chars = name.chars();
    let start: String = chars.by_ref().take(MAX_SHOWN_CHARS).collect();
    let rest = if chars.next().is_some() { "..." } else { "" };
    format!("{start:?}{rest}")
}
