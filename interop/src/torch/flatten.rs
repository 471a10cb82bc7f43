//! Names the values of a pickle. A name is the keys and indices in the nested dicts, lists and tuples, joined by dots.

use stridemap::Header;
use stridemap_format::Extent;
use stridemap_format::limits::MAX_RANK;

use super::collisions::{Kind, LongName, tell_apart};
use super::global::Global;
use super::literal::Literal;
use super::machine::Unpickled;
use super::measure::{Measures, TOO_MANY_VISITS, attribute_bytes, text_bytes};
use super::tree::{MAX_DEPTH, entries, is_container, is_unknown_object, key_text, plain_text, visits};
use super::value::{Arena, FileStorage, Node, TensorRef, Value};
use crate::ForeignOptions;
use crate::budget::Budget;
use crate::contents::{ATTRIBUTE_BYTES, ForeignTensor};

/// The approximate memory of a tensor without its name: a header and its lists.
const TENSOR_BYTES: usize = 200;

/// The maximum number of characters of a name in an error.
const MAX_SHOWN_CHARS: usize = 200;

/// The leaves of a pickle, which are its tensors and plain values, and the storages that the tensors refer to.
#[derive(Debug, Default)]
pub(super) struct Leaves {
    /// The tensors, in the order of the pickle. They refer to their storages by number.
    pub(super) tensors: Vec<ForeignTensor>,
    pub(super) attributes: Vec<(String, String)>,
    /// Bytes, and plain values that are too large for attributes, as text.
    pub(super) bytes: Vec<BytesLeaf>,
    /// The names of the values that were left out, each with the reason.
    pub(super) skipped: Vec<(String, String)>,
    pub(super) storages: Vec<FileStorage>,
}

/// A leaf that becomes a tensor of bytes.
#[derive(Debug)]
pub(super) struct BytesLeaf {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
    /// Whether it is a value that is too large for an attribute.
    pub(super) is_too_long: bool,
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
        let mut budget = arena.budget;
        let measures = Measures::of(&arena, root, pickle.len(), &mut budget)?;
        let mut flattening = Flattening {
            arena: &arena,
            stem,
            options,
            measures,
            next_container: 0,
            name: String::new(),
            long_name: String::new(),
            path: Vec::new(),
            is_within_unreadable: false,
            is_kept: false,
            remaining_visits: pickle.len(),
            budget,
            leaves: Leaves::default(),
            long_names: Vec::new(),
        };
        flattening.visit(root)?;
        for name in tell_apart(&mut flattening.leaves, &flattening.long_names) {
            flattening.skip_or_refuse_named(&name, "is the name of two values")?;
        }
        let mut leaves = flattening.leaves;
        leaves.storages = arena.storages;
        Ok(leaves)
    }
}

struct Flattening<'a> {
    arena: &'a Arena<'a>,
    stem: Result<&'a str, &'a str>,
    options: ForeignOptions,
    measures: Measures,
    /// The index of the measure of the next container.
    next_container: usize,
    /// The name of the value being visited.
    name: String,
    /// The same, with a backslash before each dot that is in a key.
    long_name: String,
    /// The containers around that value.
    path: Vec<Value>,
    /// Whether one of them is an object that cannot be read. Of what is in it, only what is lost is reported, such as a
    /// tensor that cannot be read, and not an object whose parts are read.
    is_within_unreadable: bool,
    /// Whether one of them was found to fit as attributes, so all that is in it does.
    is_kept: bool,
    /// The number of visits that remain. A container in several places is visited in each of them. Without repeats,
    /// each visit corresponds to at least one byte of the pickle.
    remaining_visits: usize,
    budget: Budget,
    leaves: Leaves,
    long_names: Vec<LongName>,
}

impl Flattening<'_> {
    fn visit(&mut self, value: Value) -> Result<(), String> {
        self.remaining_visits =
            self.remaining_visits.checked_sub(visits(self.arena, value)).ok_or(TOO_MANY_VISITS)?;
        if is_container(self.arena, value) { self.visit_container(value) } else { self.visit_leaf(value) }
    }

    fn visit_leaf(&mut self, value: Value) -> Result<(), String> {
        let arena = self.arena;
        if let Some(Node::Tensor(tensor)) = arena.node(value) {
            return self.add_tensor(tensor);
        }
        if let Some(length_bytes) = text_bytes(arena, value) {
            return self.add_text(value, length_bytes);
        }
        if let Some(bytes) = arena.bytes(value) {
            return self.add_bytes(bytes.into_owned(), false);
        }
        if let Some(Node::Storage(_)) = arena.node(value) {
            return self.skip_or_refuse("is a storage without a tensor; save a tensor");
        }
        // The class of a part says nothing that the class of the object does not.
        match (value, arena.class_name(value)) {
            (_, Some(_)) if self.is_within_unreadable => Ok(()),
            (Value::Global(_), Some(name)) => {
                self.skip_or_refuse(&format!("contains {name}, which is not a value"))
            }
            (_, Some(name)) => self.skip_or_refuse(&Global::refusal(&name)),
            _ => self.skip_or_refuse(&format!("contains {}, which is not a value", arena.kind(value))),
        }
    }

    fn visit_container(&mut self, value: Value) -> Result<(), String> {
        let arena = self.arena;
        if self.path.contains(&value) {
            // An object and its parts often refer to each other. All of them are read in another place.
            if self.is_within_unreadable {
                return Ok(());
            }
            return self.skip_or_refuse(&format!("is {} that contains itself", arena.kind(value)));
        }
        if self.path.len() >= MAX_DEPTH {
            return self.skip_or_refuse(&format!("is nested deeper than {MAX_DEPTH} lists and dicts"));
        }
        let measure = self.measures.containers.get(self.next_container).copied();
        let measure = measure.ok_or("a container was not measured")?;
        let was_kept = self.is_kept;
        if let Some(bytes) = measure.bytes.filter(|_| !was_kept) {
            self.is_kept = self.measures.fit(bytes);
        }
        if measure.bytes.is_some() && !self.is_kept {
            self.next_container = measure.end;
            let mut json = Vec::new();
            self.write_json(value, &mut json)?;
            return self.add_bytes(json, true);
        }
        self.next_container = self.next_container.saturating_add(1);
        let was_within = self.is_within_unreadable;
        if let Some(Node::Object(object)) = arena.node(value)
            && is_unknown_object(arena, value)
        {
            if !was_within || object.parts.is_empty() {
                let class = arena.class_name(object.class).unwrap_or_default();
                self.skip_or_refuse(&Global::refusal(&class))?;
            }
            self.is_within_unreadable = true;
        }
        self.path.push(value);
        for (key, child) in entries(arena, value) {
            match key_text(arena, &key) {
                Ok(key) => self.visit_child(&key, child)?,
                Err(what) => {
                    self.skip_or_refuse(&format!("has {what} as a key, which cannot be part of a name"))?;
                }
            }
        }
        self.path.pop();
        self.is_within_unreadable = was_within;
        self.is_kept = was_kept;
        Ok(())
    }

    fn visit_child(&mut self, key: &str, value: Value) -> Result<(), String> {
        // Keys are charged here too: many empty containers can have the same long key, which is copied for each.
        self.budget.charge(key.len())?;
        let (length, long_length) = (self.name.len(), self.long_name.len());
        if length > 0 {
            self.name.push('.');
            self.long_name.push('.');
        }
        self.name.push_str(key);
        for c in key.chars() {
            self.long_name.extend(['\\'].into_iter().filter(|_| matches!(c, '.' | '\\')));
            self.long_name.push(c);
        }
        self.visit(value)?;
        self.name.truncate(length);
        self.long_name.truncate(long_length);
        Ok(())
    }

    /// Writes plain values as JSON, in the style of Python's `json.dumps`.
    fn write_json(&mut self, value: Value, out: &mut Vec<u8>) -> Result<(), String> {
        self.remaining_visits =
            self.remaining_visits.checked_sub(visits(self.arena, value)).ok_or(TOO_MANY_VISITS)?;
        let arena = self.arena;
        if !is_container(arena, value) {
            let is_text = matches!(arena.literal(value), Some(Literal::Text(_)))
                || matches!(arena.node(value), Some(Node::Device(_)))
                || matches!(value, Value::Global(_));
            let text = plain_text(arena, value).unwrap_or_default();
            let text = if is_text { as_json(&text) } else { text };
            return self.budget.extend(out, text.as_bytes());
        }
        let is_list = matches!(arena.node(value), Some(Node::List(_) | Node::Tuple(..)));
        self.budget.extend(out, if is_list { b"[" } else { b"{" })?;
        for (index, (key, child)) in entries(arena, value).enumerate() {
            self.budget.extend(out, if index > 0 { b", " } else { b"" })?;
            if !is_list {
                let key = as_json(&key_text(arena, &key).unwrap_or_default());
                self.budget.extend(out, key.as_bytes())?;
                self.budget.extend(out, b": ")?;
            }
            self.write_json(child, out)?;
        }
        self.budget.extend(out, if is_list { b"]" } else { b"}" })
    }

    fn leaf_name(&self) -> Result<&str, String> {
        if self.name.is_empty() { self.stem.map_err(str::to_owned) } else { Ok(&self.name) }
    }

    /// Returns the name of a new leaf of this kind, which has this index. Its memory is charged.
    fn new_name(&mut self, kind: Kind, index: usize) -> Result<String, String> {
        let name = self.leaf_name()?.to_owned();
        self.budget.charge(name.len())?;
        if self.long_name != self.name {
            self.budget.charge(self.long_name.len())?;
            let long_name = LongName { kind, index, name: self.long_name.clone() };
            self.budget.reserve(&mut self.long_names, 1, 1)?;
            self.long_names.push(long_name);
        }
        Ok(name)
    }

    fn add_text(&mut self, value: Value, length_bytes: usize) -> Result<(), String> {
        self.budget.charge(ATTRIBUTE_BYTES.saturating_add(length_bytes))?;
        let text = plain_text(self.arena, value).unwrap_or_default();
        if !self.is_kept && !self.measures.fit(attribute_bytes(self.name.len(), length_bytes)) {
            return self.add_bytes(text.into_bytes(), true);
        }
        let name = self.new_name(Kind::Attribute, self.leaves.attributes.len())?;
        self.leaves.attributes.push((name, text));
        Ok(())
    }

    fn add_bytes(&mut self, bytes: Vec<u8>, is_too_long: bool) -> Result<(), String> {
        self.budget.charge(TENSOR_BYTES.saturating_add(bytes.len()))?;
        let name = self.new_name(Kind::Bytes, self.leaves.bytes.len())?;
        self.leaves.bytes.push(BytesLeaf { name, bytes, is_too_long });
        Ok(())
    }

    fn add_tensor(&mut self, tensor: &TensorRef) -> Result<(), String> {
        self.budget.charge(TENSOR_BYTES)?;
        let header = match self.header(tensor) {
            Ok(header) => header,
            Err(e) => return self.skip_or_refuse(&e),
        };
        let name = self.new_name(Kind::Tensor, self.leaves.tensors.len())?;
        let storage = tensor.storage.number as usize;
        self.leaves.tensors.push(ForeignTensor::new(name, header, storage));
        Ok(())
    }

    /// Returns the header of a tensor, with the offset counted from the beginning of the storage in the file.
    fn header(&self, tensor: &TensorRef) -> Result<Header, String> {
        let (dtype, storage) = (tensor.dtype, tensor.storage);
        if let Some(flag) = tensor.flag {
            return Err(format!(
                "has the {:?} bit set, so its bytes are not its elements; save the result of resolve_conj() or \
                 resolve_neg()",
                plain_text(self.arena, flag).unwrap_or_default()
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
        let refused_header = |why: &str| {
            format!(
                "has size {size:?}, stride {stride:?} and offset {offset} in {} bytes of {dtype}: {why}",
                storage.length_bytes
            )
        };
        if size.iter().chain(&stride).any(|&n| n < 0) || offset < 0 {
            return Err(refused_header("PyTorch allows no negative numbers"));
        }
        if size.len() != stride.len() {
            return Err(refused_header("the numbers of sizes and strides differ"));
        }
        let itemsize = dtype.itemsize() as u64;
        if !storage.start_bytes.is_multiple_of(itemsize) {
            return Err(refused_header("its storage does not begin at an element"));
        }
        let [start, elements] =
            [storage.start_bytes, storage.length_bytes].map(|n| n.checked_div(itemsize).unwrap_or(0));
        // In PyTorch, a tensor without elements may have any offset.
        let offset = if size.contains(&0) { offset.min(elements.into()) } else { offset };
        let dims = size.iter().copied().zip(stride.iter().copied());
        Extent::of(dims, offset, dtype, storage.length_bytes).map_err(|e| refused_header(e.detail()))?;
        let header = || {
            let size = size.iter().map(|&n| n.try_into().ok()).collect::<Option<Vec<usize>>>()?;
            let stride = stride.iter().map(|&n| n.try_into().ok()).collect::<Option<Vec<isize>>>()?;
            Some(Header::new(dtype, size, stride, offset.checked_add(start.into())?.try_into().ok()?))
        };
        let header = header().ok_or_else(|| refused_header("a number does not fit in 64 bits"))?;
        header.map_err(|e| e.to_string())
    }

    /// Leaves out a value that cannot be read if the options allow that. Otherwise returns the reason as an error.
    fn skip_or_refuse(&mut self, what: &str) -> Result<(), String> {
        let name = self.leaf_name().unwrap_or_default().to_owned();
        self.skip_or_refuse_named(&name, what)
    }

    fn skip_or_refuse_named(&mut self, name: &str, what: &str) -> Result<(), String> {
        let reason = format!("{} {what}", shown(name));
        if !self.options.is_skipping_unreadable {
            return Err(reason);
        }
        self.budget.charge(TENSOR_BYTES.saturating_add(name.len()).saturating_add(reason.len()))?;
        self.leaves.skipped.push((name.to_owned(), reason));
        Ok(())
    }
}

fn as_json(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Returns a name as errors show it.
fn shown(name: &str) -> String {
    let rest = if name.chars().nth(MAX_SHOWN_CHARS).is_some() { "..." } else { "" };
    format!("{:?}{rest}", name.chars().take(MAX_SHOWN_CHARS).collect::<String>())
}
