//! The values of a pickle. They refer to each other by number, so no code here recurses, however deep they nest.

use crate::torch::known::Known;

/// A value of eight bytes. Numbers and text stay in the pickle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Value {
    None,
    Bool(bool),
    /// A number, text or bytes, by the offset of its instruction.
    Literal(u32),
    Known(Known),
    /// The number of a node.
    Node(u32),
}

/// A value with parts.
#[derive(Clone, Debug)]
pub(in super::super) enum Node {
    Tuple(Items),
    List(Vec<Value>),
    Dict(Vec<(Value, Value)>),
    /// A `torch.Size`.
    Size(Items),
    /// A `torch.device`, by its text.
    Device(Items),
    /// The number of a storage reference.
    Storage(u32),
    /// The number of a tensor.
    Tensor(u32),
}

impl Node {
    /// Returns the kind as errors show it.
    pub(in super::super) fn kind(&self) -> &'static str {
        match self {
            Node::Tuple(_) => "a tuple",
            Node::List(_) => "a list",
            Node::Dict(_) => "a dict",
            Node::Size(_) => "a torch.Size",
            Node::Device(_) => "a torch.device",
            Node::Storage(_) => "a storage",
            Node::Tensor(_) => "a tensor",
        }
    }
}

/// A range of the list that holds the items of all tuples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Items {
    start: u32,
    count: u32,
}

/// A pickle's reference to a storage, or to a part of one if it was written by Python 2.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct StorageRef {
    /// The number of the root.
    pub(in super::super) root: usize,
    /// The type of the elements; `None` for untyped bytes.
    pub(in super::super) dtype: Option<stridemap_format::DType>,
    /// The first byte of the root that is used.
    pub(in super::super) start_bytes: u64,
    pub(in super::super) length_bytes: u64,
}

/// A storage in the file.
#[derive(Clone, Debug)]
pub(in super::super) struct Root {
    pub(in super::super) key: String,
    /// The bytes of an element, and the number of elements, at the first mention.
    pub(in super::super) itemsize: u64,
    pub(in super::super) numel: u64,
}

impl Root {
    pub(in super::super) fn length_bytes(&self) -> u64 {
        self.itemsize.saturating_mul(self.numel)
    }
}

/// The parts of a tensor, as the pickle states them. They are checked when a name refers to the tensor.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct TensorRef {
    /// The number of the storage reference.
    pub(in super::super) storage: u32,
    pub(in super::super) dtype: stridemap_format::DType,
    pub(in super::super) offset: Value,
    pub(in super::super) size: Items,
    pub(in super::super) stride: Items,
    /// A dict of flags: whether the elements are to be conjugated or negated.
    pub(in super::super) metadata: Value,
}

/// All values of a pickle, within a limit of memory.
#[derive(Debug)]
pub(in super::super) struct Arena {
    nodes: Vec<Node>,
    items: Vec<Value>,
    storages: Vec<StorageRef>,
    tensors: Vec<TensorRef>,
    pub(in super::super) roots: Vec<Root>,
    /// The memory left.
    pub(in super::super) budget: Budget,
}

/// A limit of memory.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Budget {
    left_bytes: u64,
}

/// Bytes of memory per byte of input.
const BYTES_A_BYTE: u64 = 8;

/// The bytes of a file that count as one byte of its pickle: a large file does not need gigabytes for its names.
const FILE_BYTES_A_BYTE: u64 = 4;

/// The approximate overhead of an allocation.
const ALLOCATION_BYTES: usize = 16;

/// The bytes of memory allowed for any file.
const FIXED_BYTES: u64 = 2 << 20;

impl Budget {
    /// Returns the budget of a pickle of `pickle_bytes` in a file of `file_bytes`.
    pub(in super::super) fn of(pickle_bytes: usize, file_bytes: u64) -> Self {
        let counted_bytes = (pickle_bytes as u64).saturating_mul(FILE_BYTES_A_BYTE).min(file_bytes);
        Budget { left_bytes: counted_bytes.saturating_mul(BYTES_A_BYTE).saturating_add(FIXED_BYTES) }
    }

    /// Takes memory from the budget.
    pub(in super::super) fn charge(&mut self, bytes: usize) -> Result<(), String> {
        self.left_bytes = self.left_bytes.checked_sub(bytes as u64).ok_or_else(|| {
            format!(
                "it needs more memory than {BYTES_A_BYTE} times the file plus {FIXED_BYTES} bytes; if it is a \
                 checkpoint of very many very small tensors, save them in several files, or as rows of one tensor"
            )
        })?;
        Ok(())
    }
}

impl Arena {
    pub(super) fn new(budget: Budget) -> Self {
        Arena {
            nodes: Vec::new(),
            items: Vec::new(),
            storages: Vec::new(),
            tensors: Vec::new(),
            roots: Vec::new(),
            budget,
        }
    }

    pub(in super::super) fn charge(&mut self, bytes: usize) -> Result<(), String> {
        self.budget.charge(bytes)
    }

    fn charge_for<T>(&mut self, count: usize) -> Result<(), String> {
        self.charge(size_of::<T>().saturating_mul(count))
    }

    pub(in super::super) fn add(&mut self, node: Node) -> Result<Value, String> {
        self.charge_for::<Node>(1)?;
        let index = number(self.nodes.len())?;
        self.nodes.push(node);
        Ok(Value::Node(index))
    }

    pub(in super::super) fn add_items(&mut self, items: &[Value]) -> Result<Items, String> {
        self.charge_for::<Value>(items.len())?;
        let (start, count) = (number(self.items.len())?, number(items.len())?);
        self.items.extend_from_slice(items);
        Ok(Items { start, count })
    }

    pub(in super::super) fn add_storage(&mut self, storage: StorageRef) -> Result<Value, String> {
        self.charge_for::<StorageRef>(1)?;
        let index = number(self.storages.len())?;
        self.storages.push(storage);
        self.add(Node::Storage(index))
    }

    pub(in super::super) fn add_tensor(&mut self, tensor: TensorRef) -> Result<Value, String> {
        self.charge_for::<TensorRef>(1)?;
        let index = number(self.tensors.len())?;
        self.tensors.push(tensor);
        self.add(Node::Tensor(index))
    }

    pub(in super::super) fn append(&mut self, list: Value, items: &[Value]) -> Result<(), String> {
        let grown_bytes = match self.node_mut(list) {
            Some(Node::List(list)) => extended(list, items.iter().copied()),
            _ => return Err(format!("appends to {}, which is not a list", self.kind(list))),
        };
        self.charge(grown_bytes)
    }

    pub(in super::super) fn insert(&mut self, dict: Value, items: &[Value]) -> Result<(), String> {
        let grown_bytes = match self.node_mut(dict) {
            Some(Node::Dict(dict)) => {
                let (pairs, rest) = items.as_chunks::<2>();
                if !rest.is_empty() {
                    return Err("a key without a value".to_owned());
                }
                extended(dict, pairs.iter().map(|&[key, value]| (key, value)))
            }
            _ => return Err(format!("sets items of {}, which is not a dict", self.kind(dict))),
        };
        self.charge(grown_bytes)
    }

    pub(in super::super) fn node(&self, value: Value) -> Option<&Node> {
        match value {
            Value::Node(index) => self.nodes.get(index as usize),
            _ => None,
        }
    }

    fn node_mut(&mut self, value: Value) -> Option<&mut Node> {
        match value {
            Value::Node(index) => self.nodes.get_mut(index as usize),
            _ => None,
        }
    }

    pub(in super::super) fn items(&self, items: Items) -> &[Value] {
        let end = items.start.saturating_add(items.count);
        self.items.get(items.start as usize..end as usize).unwrap_or_default()
    }

    pub(in super::super) fn tuple(&self, value: Value) -> Option<Items> {
        match self.node(value) {
            Some(&(Node::Tuple(items) | Node::Size(items))) => Some(items),
            _ => None,
        }
    }

    pub(in super::super) fn storage(&self, index: u32) -> Option<StorageRef> {
        self.storages.get(index as usize).copied()
    }

    pub(in super::super) fn tensor(&self, index: u32) -> Option<TensorRef> {
        self.tensors.get(index as usize).copied()
    }

    /// Returns the kind of a value as errors show it.
    pub(in super::super) fn kind(&self, value: Value) -> &'static str {
        match value {
            Value::None => "None",
            Value::Bool(_) => "a bool",
            Value::Literal(_) => "a number or text",
            Value::Known(_) => "a class or a function",
            Value::Node(_) => self.node(value).map_or("nothing", Node::kind),
        }
    }
}

/// Extends a list of a pickle, and returns the memory that this took. Most lists have few items. With spare capacity
/// and the overhead of an allocation, a hostile list would take several times the memory of its items.
fn extended<T>(list: &mut Vec<T>, items: impl ExactSizeIterator<Item = T>) -> usize {
    let (had, overhead_bytes) = match list.capacity() {
        0 => {
            list.reserve_exact(items.len());
            (0, if items.len() == 0 { 0 } else { ALLOCATION_BYTES })
        }
        had => (had, 0),
    };
    list.extend(items);
    list.capacity().saturating_sub(had).saturating_mul(size_of::<T>()).saturating_add(overhead_bytes)
}

fn number(count: usize) -> Result<u32, String> {
    u32::try_from(count).map_err(|_| "it has more than four billion values".to_owned())
}
