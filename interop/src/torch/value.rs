//! The values of a pickle. They refer to each other by number, so no code here recurses, however deep they nest.

use std::borrow::Cow;

use stridemap::DType;

use super::global::Global;
use super::instruction::Instruction;
use super::literal::Literal;
use crate::budget::Budget;

/// A value of eight bytes. Numbers and text stay in the pickle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    None,
    Bool(bool),
    /// A number, text or bytes, by the offset of its instruction.
    Literal(u32),
    Global(Global),
    /// The number of a node.
    Node(u32),
}

/// A value with parts.
#[derive(Debug)]
pub(super) enum Node {
    /// The first item, and the number of items, in the list that holds the items of all tuples.
    Tuple(u32, u32),
    List(Vec<Value>),
    /// Keys and values, alternating.
    Dict(Vec<Value>),
    /// A `torch.Size`, by a tuple of integers.
    Size(Value),
    /// A `torch.device`, by a tuple of its kind and its index.
    Device(Value),
    Storage(StorageRef),
    Tensor(Box<TensorRef>),
    /// Bytes: a literal of bytes, text whose characters are the bytes, or `None` if there are none.
    Bytes(Value),
    /// The name of a class or a function that is not known here.
    Class(Box<str>),
    Object(Box<Object>),
}

/// What Python would get from a class or function that is not known here. It is never called.
#[derive(Clone, Debug)]
pub(super) struct Object {
    /// A class or function, or a known name.
    pub(super) class: Value,
    /// Dicts and lists that hold what is in the object: its items, and its attributes.
    pub(super) parts: Vec<Value>,
    /// The first of these that is a list, and the first that is a dict.
    list: Option<Value>,
    dict: Option<Value>,
}

/// A pickle's reference to a storage, or to a part of one in the older layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StorageRef {
    /// The number of the storage in the file.
    pub(super) number: u32,
    /// The type of the elements; `None` for untyped bytes.
    pub(super) dtype: Option<DType>,
    /// The offset in the storage, and the length, of the bytes that are used.
    pub(super) start_bytes: u64,
    pub(super) length_bytes: u64,
}

/// A storage in the file.
#[derive(Clone, Debug)]
pub(super) struct FileStorage {
    pub(super) key: String,
    /// The number of elements, and the length in bytes, as stated where the pickle first refers to the storage.
    pub(super) numel: u64,
    pub(super) length_bytes: u64,
}

/// The parts of a tensor, as stated in the pickle. They are checked when the tensor gets its name.
#[derive(Clone, Copy, Debug)]
pub(super) struct TensorRef {
    pub(super) storage: StorageRef,
    pub(super) dtype: DType,
    pub(super) offset: Value,
    /// A tuple of integers, like `stride`.
    pub(super) size: Value,
    pub(super) stride: Value,
    /// The key of the first flag that is set. The flags state whether the elements are conjugated or negated.
    pub(super) flag: Option<Value>,
}

/// The approximate overhead of an allocation.
const ALLOCATION_BYTES: usize = 16;

/// A full list of nodes or items grows by its length divided by this. Doubling it would leave more memory unused.
const SPARE_DIVISOR: usize = 4;

/// All values of a pickle, within a memory limit.
#[derive(Debug)]
pub(super) struct Arena<'a> {
    bytes: &'a [u8],
    nodes: Vec<Node>,
    items: Vec<Value>,
    /// The empty tuple is reused, because old checkpoints have one for each scalar.
    empty_tuple: Option<Value>,
    pub(super) storages: Vec<FileStorage>,
    pub(super) budget: Budget,
}

impl<'a> Arena<'a> {
    pub(super) fn new(bytes: &'a [u8], budget: Budget) -> Self {
        Arena { bytes, nodes: Vec::new(), items: Vec::new(), empty_tuple: None, storages: Vec::new(), budget }
    }

    pub(super) fn add(&mut self, node: Node) -> Result<Value, String> {
        let boxed_bytes = if matches!(node, Node::Tensor(_)) { size_of::<TensorRef>() } else { 0 };
        self.budget.charge(boxed_bytes)?;
        let spare = self.nodes.capacity() / SPARE_DIVISOR;
        self.budget.reserve(&mut self.nodes, 1, spare)?;
        let index = number(self.nodes.len())?;
        self.nodes.push(node);
        Ok(Value::Node(index))
    }

    pub(super) fn add_tuple(&mut self, items: &[Value]) -> Result<Value, String> {
        if let (Some(tuple), []) = (self.empty_tuple, items) {
            return Ok(tuple);
        }
        let tuple = Node::Tuple(number(self.items.len())?, number(items.len())?);
        let spare = self.items.capacity() / SPARE_DIVISOR;
        self.budget.reserve(&mut self.items, items.len(), spare)?;
        self.items.extend_from_slice(items);
        let tuple = self.add(tuple)?;
        self.empty_tuple = self.empty_tuple.or(items.is_empty().then_some(tuple));
        Ok(tuple)
    }

    /// Adds the name of a class or function.
    pub(super) fn add_class(&mut self, name: String) -> Result<Value, String> {
        self.budget.charge(name.len().saturating_add(ALLOCATION_BYTES))?;
        self.add(Node::Class(name.into()))
    }

    /// Adds an object without parts.
    pub(super) fn add_object(&mut self, class: Value) -> Result<Value, String> {
        self.budget.charge(size_of::<Object>().saturating_add(ALLOCATION_BYTES))?;
        self.add(Node::Object(Box::new(Object { class, parts: Vec::new(), list: None, dict: None })))
    }

    /// Adds a dict or list to the parts of an object.
    pub(super) fn add_part(&mut self, object: Value, part: Value) -> Result<(), String> {
        let (is_list, is_dict) = match self.node(part) {
            Some(Node::List(_)) => (true, false),
            Some(Node::Dict(_)) => (false, true),
            _ => (false, false),
        };
        match self.nodes.get_mut(object.index()) {
            Some(Node::Object(object)) => {
                object.list = object.list.or(is_list.then_some(part));
                object.dict = object.dict.or(is_dict.then_some(part));
                self.budget.extend(&mut object.parts, &[part])
            }
            _ => Err(format!("sets the state of {}, which no checkpoint does", self.kind(object))),
        }
    }

    /// Returns the list of an object that is a list, or the dict of one that is a dict. Its class derives from them.
    fn own_part(&mut self, value: Value, empty: Node) -> Result<Option<Value>, String> {
        let Some(Node::Object(object)) = self.node(value) else { return Ok(None) };
        let found = if matches!(empty, Node::List(_)) { object.list } else { object.dict };
        if let Some(found) = found {
            return Ok(Some(found));
        }
        let part = self.add(empty)?;
        self.add_part(value, part)?;
        Ok(Some(part))
    }

    pub(super) fn append(&mut self, list: Value, items: &[Value]) -> Result<(), String> {
        let list = self.own_part(list, Node::List(Vec::new()))?.unwrap_or(list);
        match self.nodes.get_mut(list.index()) {
            Some(Node::List(list)) => self.budget.extend(list, items),
            _ => Err(format!("appends to {}, which is not a list", self.kind(list))),
        }
    }

    /// Adds keys and values, alternating.
    pub(super) fn insert(&mut self, dict: Value, items: &[Value]) -> Result<(), String> {
        let dict = self.own_part(dict, Node::Dict(Vec::new()))?.unwrap_or(dict);
        match self.nodes.get_mut(dict.index()) {
            Some(Node::Dict(_)) if !items.len().is_multiple_of(2) => Err("a key without a value".to_owned()),
            Some(Node::Dict(dict)) => self.budget.extend(dict, items),
            _ => Err(format!("sets items of {}, which is not a dict", self.kind(dict))),
        }
    }

    pub(super) fn node(&self, value: Value) -> Option<&Node> {
        self.nodes.get(value.index())
    }

    /// Returns the items of a tuple or a `torch.Size`.
    pub(super) fn tuple(&self, value: Value) -> Option<&[Value]> {
        let tuple = match *self.node(value)? {
            Node::Size(tuple) => self.node(tuple)?,
            _ => self.node(value)?,
        };
        let &Node::Tuple(start, count) = tuple else { return None };
        self.items.get(start as usize..)?.get(..count as usize)
    }

    /// Returns the number, text or bytes of a value.
    pub(super) fn literal(&self, value: Value) -> Option<Literal<'a>> {
        let Value::Literal(place) = value else { return None };
        let instruction = Instruction::read(self.bytes, place as usize, self.bytes.len()).ok()?;
        Literal::of(&instruction).ok()?
    }

    pub(super) fn integer(&self, value: Value) -> Option<i128> {
        match self.literal(value)? {
            Literal::Int(int) => Some(int),
            _ => None,
        }
    }

    /// Returns a copy of text. The same text can be requested repeatedly, so each copy counts towards the memory limit.
    pub(super) fn text(&mut self, value: Value) -> Result<Option<String>, String> {
        let Some(Literal::Text(text)) = self.literal(value) else { return Ok(None) };
        self.budget.charge(text.len())?;
        Ok(Some(text.into_owned()))
    }

    /// Returns the name of a class or function.
    pub(super) fn class_name(&self, value: Value) -> Option<Cow<'_, str>> {
        match (value, self.node(value)) {
            (Value::Global(known), _) => Some(known.name().into()),
            (_, Some(Node::Class(name))) => Some(Cow::Borrowed(name)),
            _ => None,
        }
    }

    /// Returns bytes, or `None` for a value that is not bytes. The caller charges their length.
    pub(super) fn bytes(&self, value: Value) -> Option<Cow<'a, [u8]>> {
        let content = match self.node(value) {
            Some(&Node::Bytes(Value::None)) => return Some(Cow::Borrowed(&[])),
            Some(&Node::Bytes(content)) => content,
            _ => value,
        };
        match (self.literal(content)?, content == value) {
            (Literal::Bytes(bytes), _) => Some(Cow::Borrowed(bytes)),
            (Literal::Text(text), false) => text
                .chars()
                .map(|c| u8::try_from(u32::from(c)).ok())
                .collect::<Option<Vec<u8>>>()
                .map(Cow::Owned),
            _ => None,
        }
    }

    /// Returns the kind of a value as errors show it.
    pub(super) fn kind(&self, value: Value) -> &'static str {
        match (value, self.node(value)) {
            (Value::None, _) => "None",
            (Value::Bool(_), _) => "a bool",
            (Value::Literal(_), _) => "a number or text",
            (Value::Global(_), _) => "a class or a function",
            (_, Some(Node::Tuple(..)) | None) => "a tuple",
            (_, Some(Node::List(_))) => "a list",
            (_, Some(Node::Dict(_))) => "a dict",
            (_, Some(Node::Size(_))) => "a torch.Size",
            (_, Some(Node::Device(_))) => "a torch.device",
            (_, Some(Node::Storage(_))) => "a storage",
            (_, Some(Node::Tensor(_))) => "a tensor",
            (_, Some(Node::Bytes(_))) => "bytes",
            (_, Some(Node::Class(_))) => "a class or a function",
            (_, Some(Node::Object(_))) => "an object",
        }
    }
}

impl Value {
    /// Returns the number of a node, or a number that no node has.
    fn index(self) -> usize {
        match self {
            Value::Node(index) => index as usize,
            _ => usize::MAX,
        }
    }
}

fn number(count: usize) -> Result<u32, String> {
    u32::try_from(count).map_err(|_| "it has more than four billion values".to_owned())
}
