//! Names the values of a pickle. A name is the keys and indices in the nested dicts, lists and tuples, joined by dots.

use std::collections::{BTreeMap, BTreeSet};

use stridemap::import::Layout;
use stridemap_format::Extent;
use stridemap_format::limits::MAX_RANK;

use super::global::Global;
use super::literal::Literal;
use super::machine::Unpickled;
use super::value::{Arena, FileStorage, Node, TensorRef, Value};
use crate::ForeignOptions;
use crate::budget::Budget;
use crate::contents::ForeignTensor;

/// The maximum nesting of dicts, lists and tuples.
const MAX_DEPTH: usize = 100;

/// The approximate memory of a tensor without its name: a header and its lists.
const TENSOR_BYTES: usize = 200;

/// The approximate memory of an attribute without its name and text: an entry of a map.
const ATTRIBUTE_BYTES: usize = 96;

/// The maximum number of characters of a name in an error.
const MAX_SHOWN_CHARS: usize = 200;

/// The leaves of a pickle, which are its tensors and plain values, and the storages that the tensors refer to.
#[derive(Debug, Default)]
pub(super) struct Leaves {
    /// The tensors, in the order of the pickle. They refer to their storages by number.
    pub(super) tensors: Vec<ForeignTensor>,
    pub(super) attributes: BTreeMap<String, String>,
    /// The names of the values that were left out, each with the reason.
    pub(super) skipped: Vec<(String, String)>,
    pub(super) storages: Vec<FileStorage>,
}

impl Leaves {
    /// Returns the leaves of a pickle in a file of `file_bytes`. A leaf without a name gets the name in `stem`; if
    /// `stem` is an error, the leaf is refused for that reason.
    ///
    /// # Errors
    /// One line that says what cannot be read.
    pub(super) fn of(
        pickle: &[u8],
        file_bytes: u64,
        stem: Result<&str, &str>,
        options: ForeignOptions,
    ) -> Result<Leaves, String> {
        let Unpickled { arena, root } = Unpickled::of(pickle, file_bytes)?;
        let mut flattening = Flattening {
            arena: &arena,
            stem,
            options,
            name: String::new(),
            path: Vec::new(),
            remaining_visits: pickle.len(),
            budget: arena.budget,
            leaves: Leaves::default(),
        };
        flattening.visit(root)?;
        let mut leaves = flattening.leaves;
        let mut names = BTreeSet::new();
        let tensors = leaves.tensors.iter().map(|tensor| &tensor.name);
        match tensors.chain(leaves.attributes.keys()).find(|&name| !names.insert(name)) {
            Some(name) => return Err(duplicate_error(name)),
            None => leaves.storages = arena.storages,
        }
        Ok(leaves)
    }
}

struct Flattening<'a> {
    arena: &'a Arena<'a>,
    stem: Result<&'a str, &'a str>,
    options: ForeignOptions,
    /// The name of the value being visited.
    name: String,
    /// The containers around that value.
    path: Vec<Value>,
    /// The number of visits that remain. A container in several places is visited in each of them. Without repeats,
    /// each visit corresponds to at least one byte of the pickle.
    remaining_visits: usize,
    budget: Budget,
    leaves: Leaves,
}

impl Flattening<'_> {
    fn visit(&mut self, value: Value) -> Result<(), String> {
        let remaining_visits = self.remaining_visits.checked_sub(1);
        self.remaining_visits =
            remaining_visits.ok_or("it repeats the same lists or dicts too many times")?;
        let arena = self.arena;
        let Some(node) = arena.node(value) else {
            return match (value, self.plain(value)) {
                (Value::None, _) => self.add_attribute("null".to_owned()),
                (Value::Bool(value), _) => self.add_attribute(value.to_string()),
                (Value::Global(Global::DType(dtype)), _) => self.add_attribute(dtype.name().to_owned()),
                (Value::Global(known), _) => {
                    self.skip_or_refuse(&format!("contains {}, which is not a value", known.name()))
                }
                (_, Some(text)) => self.add_attribute(text),
                _ => self.skip_or_refuse("contains bytes, which are neither tensors nor text"),
            };
        };
        match node {
            Node::Tensor(tensor) => return self.add_tensor(tensor),
            Node::Storage(_) => return self.skip_or_refuse("is a storage without a tensor; save a tensor"),
            &Node::Size(sizes) => {
                let text = self.join("[", sizes, ",", "]")?;
                return self.add_attribute(text);
            }
            &Node::Device(parts) => {
                let text = self.join("", parts, ":", "")?;
                return self.add_attribute(text);
            }
            Node::Dict(_) | Node::List(_) | Node::Tuple(..) => {}
        }
        if self.path.contains(&value) {
            return Err(self.refusal(&format!("is {} that contains itself", arena.kind(value))));
        }
        if self.path.len() >= MAX_DEPTH {
            return Err(self.refusal(&format!("is nested deeper than {MAX_DEPTH} lists and dicts")));
        }
        self.path.push(value);
        if let Node::Dict(items) = node {
            for &[key, value] in items.as_chunks().0 {
                let key = self.key(key)?;
                self.visit_child(&key, value)?;
            }
        } else {
            let items =
                if let Node::List(items) = node { Some(items.as_slice()) } else { arena.tuple(value) };
            for (index, &item) in items.unwrap_or_default().iter().enumerate() {
                self.visit_child(&index.to_string(), item)?;
            }
        }
        self.path.pop();
        Ok(())
    }

    fn visit_child(&mut self, key: &str, value: Value) -> Result<(), String> {
        // Keys are charged here too: many empty containers can have the same long key, which is copied for each.
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
            Value::Bool(value) => Some(if value { "True" } else { "False" }.to_owned()),
            _ => self.arena.literal(key).as_ref().and_then(Literal::key),
        };
        named.ok_or_else(|| {
            let what = if matches!(key, Value::Literal(_)) { "bytes" } else { self.arena.kind(key) };
            self.refusal(&format!("has {what} as a key, which cannot be part of a name"))
        })
    }

    /// Returns a number or a string as text, or `None` for any other value.
    fn plain(&self, value: Value) -> Option<String> {
        self.arena.literal(value).as_ref().and_then(Literal::attribute)
    }

    /// Joins the texts of the items of a tuple. The same item can be repeated, so the memory is charged first.
    fn join(&mut self, start: &str, tuple: Value, separator: &str, end: &str) -> Result<String, String> {
        let items = self.arena.tuple(tuple).unwrap_or_default();
        let text = |&item: &Value| self.plain(item).unwrap_or_default();
        let lengths = items.iter().map(|item| text(item).len().saturating_add(separator.len()));
        let length = lengths.fold(start.len().saturating_add(end.len()), usize::saturating_add);
        self.budget.charge(length)?;
        let mut joined = String::with_capacity(length);
        joined.push_str(start);
        for (index, item) in items.iter().enumerate() {
            joined.push_str(if index > 0 { separator } else { "" });
            joined.push_str(&self.plain(*item).unwrap_or_default());
        }
        joined.push_str(end);
        Ok(joined)
    }

    fn leaf_name(&self) -> Result<&str, String> {
        if self.name.is_empty() { self.stem.map_err(str::to_owned) } else { Ok(&self.name) }
    }

    fn add_attribute(&mut self, text: String) -> Result<(), String> {
        let name = self.leaf_name()?.to_owned();
        self.budget.charge(ATTRIBUTE_BYTES.saturating_add(name.len()).saturating_add(text.len()))?;
        match self.leaves.attributes.insert(name, text) {
            Some(_) => Err(duplicate_error(self.leaf_name()?)),
            None => Ok(()),
        }
    }

    fn add_tensor(&mut self, tensor: &TensorRef) -> Result<(), String> {
        let name = self.leaf_name()?.to_owned();
        self.budget.charge(TENSOR_BYTES.saturating_add(name.len()))?;
        let layout = match self.layout(tensor) {
            Ok(layout) => layout,
            Err(e) => return self.skip_or_refuse(&e),
        };
        let storage = tensor.storage.number as usize;
        self.leaves.tensors.push(ForeignTensor { name, dtype: tensor.dtype, layout, storage });
        Ok(())
    }

    /// Returns the layout of a tensor, with the offset counted from the beginning of the storage in the file.
    fn layout(&self, tensor: &TensorRef) -> Result<Layout, String> {
        let (dtype, storage) = (tensor.dtype, tensor.storage);
        if let Some(flag) = tensor.flag {
            return Err(format!(
                "has the {:?} bit set, so its bytes are not its elements; save the result of resolve_conj() or \
                 resolve_neg()",
                self.plain(flag).unwrap_or_default()
            ));
        }
        let (size, stride) =
            [tensor.size, tensor.stride].map(|it| self.arena.tuple(it).unwrap_or_default()).into();
        let rank = size.len().max(stride.len());
        if rank > MAX_RANK {
            return Err(format!("has {rank} dimensions; at most {MAX_RANK} are allowed"));
        }
        // The machine has checked that these are integers.
        let integer = |value: Value| self.arena.integer(value).unwrap_or(-1);
        let integers = |values: &[Value]| values.iter().map(|&value| integer(value)).collect::<Vec<_>>();
        let (size, stride, offset) = (integers(size), integers(stride), integer(tensor.offset));
        let refused_layout = |why: &str| {
            format!(
                "has size {size:?}, stride {stride:?} and offset {offset} in {} bytes of {dtype}: {why}",
                storage.length_bytes
            )
        };
        if size.iter().chain(&stride).any(|&n| n < 0) || offset < 0 {
            return Err(refused_layout("PyTorch allows no negative numbers"));
        }
        if size.len() != stride.len() {
            return Err(refused_layout("the numbers of sizes and strides differ"));
        }
        let itemsize = dtype.itemsize() as u64;
        if !storage.start_bytes.is_multiple_of(itemsize) {
            return Err(refused_layout("its storage does not begin at an element"));
        }
        let [start, elements] =
            [storage.start_bytes, storage.length_bytes].map(|n| n.checked_div(itemsize).unwrap_or(0));
        // In PyTorch, a tensor without elements may have any offset.
        let offset = if size.contains(&0) { offset.min(elements.into()) } else { offset };
        let dims = size.iter().copied().zip(stride.iter().copied());
        Extent::of(dims, offset, dtype, storage.length_bytes).map_err(|e| refused_layout(e.detail()))?;
        let layout = || {
            let size = size.iter().map(|&n| n.try_into().ok()).collect::<Option<_>>()?;
            let stride = stride.iter().map(|&n| n.try_into().ok()).collect::<Option<_>>()?;
            Some(Layout::new(size, stride, offset.checked_add(start.into())?.try_into().ok()?))
        };
        let layout = layout().ok_or_else(|| refused_layout("a number does not fit in 64 bits"))?;
        layout.map_err(|e| e.to_string())
    }

    /// Leaves out a value that cannot be read if the options allow that. Otherwise returns the reason as an error.
    fn skip_or_refuse(&mut self, what: &str) -> Result<(), String> {
        let reason = self.refusal(what);
        if !self.options.is_skipping_unreadable {
            return Err(reason);
        }
        let name = self.leaf_name()?.to_owned();
        self.budget.charge(TENSOR_BYTES.saturating_add(name.len()).saturating_add(reason.len()))?;
        self.leaves.skipped.push((name, reason));
        Ok(())
    }

    fn refusal(&self, what: &str) -> String {
        format!("{} {what}", shown(self.leaf_name().unwrap_or_default()))
    }
}

fn duplicate_error(name: &str) -> String {
    format!("{} is the name of two values", shown(name))
}

/// Returns a name as errors show it.
fn shown(name: &str) -> String {
    let rest = if name.chars().nth(MAX_SHOWN_CHARS).is_some() { "..." } else { "" };
    format!("{:?}{rest}", name.chars().take(MAX_SHOWN_CHARS).collect::<String>())
}
