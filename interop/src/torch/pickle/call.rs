//! Interprets the calls of a pickle: for each known name, which arguments produce which value.

use stridemap_format::limits::MAX_STORAGE_BYTES;

use super::literal::Literal;
use super::machine::{Machine, NamedRoot};
use super::value::{Items, Node, Root, StorageRef, TensorRef, Value};
use crate::torch::known::Known;

/// The approximate memory of a newly mentioned storage, without its key.
const ROOT_BYTES: usize = 128;

impl Machine<'_> {
    /// Returns the value that `callable` would return for a tuple of arguments, in Python.
    pub(super) fn call(&mut self, callable: Value, arguments: Value, by: &str) -> Result<Value, String> {
        let Value::Known(known) = callable else {
            return Err(format!("{by} calls {}, which cannot be called", self.arena.kind(callable)));
        };
        let wrong = |what: &str| Err(format!("calls {} with {what}", known.name()));
        let Some(Node::Tuple(items)) = self.arena.node(arguments).cloned() else {
            return wrong("something that is not a tuple");
        };
        let arguments = self.arena.items(items).to_vec();
        if by == "NEWOBJ" && !matches!(known, Known::OrderedDict | Known::Size) {
            return Err(format!("makes an object of {}, which no checkpoint does", known.name()));
        }
        match (known, arguments.as_slice()) {
            (Known::OrderedDict, []) => self.arena.add(Node::Dict(Vec::new())),
            (Known::OrderedDict, &[pairs]) => match self.pairs(pairs)? {
                Some(flat) => {
                    let dict = self.arena.add(Node::Dict(Vec::new()))?;
                    self.arena.insert(dict, &flat)?;
                    Ok(dict)
                }
                None => wrong("something that is not a list of pairs"),
            },
            (Known::Size, []) => self.arena.add(Node::Size(Items::default())),
            (Known::Size, &[sizes]) => match self.integers(sizes)? {
                Some(sizes) => self.arena.add(Node::Size(sizes)),
                None => wrong("something that is not a tuple of integers"),
            },
            (Known::Device, &[kind] | &[kind, _]) if self.text(kind)?.is_some() => {
                self.arena.add(Node::Device(items))
            }
            (Known::RebuildTensor, &[storage, offset, size, stride]) => {
                self.tensor(known, storage, offset, [size, stride], None, Value::None)
            }
            (Known::RebuildTensorV2, &[storage, offset, size, stride, _, _]) => {
                self.tensor(known, storage, offset, [size, stride], None, Value::None)
            }
            (Known::RebuildTensorV2, &[storage, offset, size, stride, _, _, metadata]) => {
                self.tensor(known, storage, offset, [size, stride], None, metadata)
            }
            (Known::RebuildTensorV3, &[storage, offset, size, stride, _, _, dtype]) => {
                self.tensor(known, storage, offset, [size, stride], Some(dtype), Value::None)
            }
            (Known::RebuildTensorV3, &[storage, offset, size, stride, _, _, dtype, metadata]) => {
                self.tensor(known, storage, offset, [size, stride], Some(dtype), metadata)
            }
            (Known::RebuildParameter, &[data, _, _])
            | (Known::RebuildParameterWithState, &[data, _, _, _]) => match self.arena.node(data) {
                Some(Node::Tensor(_)) => Ok(data),
                _ => wrong("something that is not a tensor"),
            },
            (Known::DType(_) | Known::Storage(_), _) => {
                Err(format!("calls {}, which is a type and cannot be called", known.name()))
            }
            _ => wrong(&format!("{} arguments, which it does not take", arguments.len())),
        }
    }

    fn tensor(
        &mut self,
        known: Known,
        storage: Value,
        offset: Value,
        [size, stride]: [Value; 2],
        dtype: Option<Value>,
        metadata: Value,
    ) -> Result<Value, String> {
        let wrong = |what: &str| format!("calls {} with {what}", known.name());
        let Some(&Node::Storage(storage)) = self.arena.node(storage) else {
            return Err(wrong("something that is not a storage"));
        };
        let dtype = match dtype {
            None => self
                .arena
                .storage(storage)
                .and_then(|storage| storage.dtype)
                .ok_or_else(|| wrong("a storage whose elements have no type"))?,
            Some(Value::Known(Known::DType(dtype))) => dtype,
            Some(_) => return Err(wrong("something that is not a dtype")),
        };
        let (Some(size), Some(stride)) = (self.integers(size)?, self.integers(stride)?) else {
            return Err(wrong("a size or stride that is not a tuple of integers"));
        };
        if !matches!(self.literal(offset), Some(Literal::Int(_))) {
            return Err(wrong("an offset that is not an integer"));
        }
        self.arena.add_tensor(TensorRef { storage, dtype, offset, size, stride, metadata })
    }

    /// Returns the items of a tuple of integers. A tuple that is used repeatedly is checked, and charged for, each
    /// time.
    fn integers(&mut self, tuple: Value) -> Result<Option<Items>, String> {
        let Some(items) = self.arena.tuple(tuple) else { return Ok(None) };
        self.arena.charge(size_of::<Value>().saturating_mul(self.arena.items(items).len()))?;
        let is_integer = |&item: &Value| matches!(self.literal(item), Some(Literal::Int(_)));
        Ok(self.arena.items(items).iter().all(is_integer).then_some(items))
    }

    /// Returns the keys and values, alternating, of a list of pairs. Python 2 wrote an OrderedDict this way.
    fn pairs(&mut self, pairs: Value) -> Result<Option<Vec<Value>>, String> {
        let Some(Node::List(list)) = self.arena.node(pairs) else { return Ok(None) };
        let mut flat = Vec::with_capacity(list.len().saturating_mul(2));
        for &pair in list {
            match self.arena.node(pair) {
                Some(Node::List(pair)) if pair.len() == 2 => flat.extend_from_slice(pair),
                Some(&Node::Tuple(pair)) if self.arena.items(pair).len() == 2 => {
                    flat.extend_from_slice(self.arena.items(pair));
                }
                _ => return Ok(None),
            }
        }
        self.arena.charge(size_of::<Value>().saturating_mul(flat.len()))?;
        Ok(Some(flat))
    }

    /// Returns the storage of a persistent id: `("storage", type, key, location, numel)`. The older layout has a
    /// sixth item, which selects a view of the storage.
    pub(super) fn storage_of(&mut self, id: Value) -> Result<Value, String> {
        let wrong = || "a persistent id that does not name a storage".to_owned();
        let items = self.arena.tuple(id).ok_or_else(wrong)?;
        let (&[kind, class, key, _, numel], rest) =
            self.arena.items(items).split_first_chunk().ok_or_else(wrong)?;
        let view = match *rest {
            [] => Value::None,
            [view] => view,
            _ => return Err(wrong()),
        };
        if self.text(kind)?.as_deref() != Some("storage") {
            return Err(wrong());
        }
        let (Value::Known(Known::Storage(dtype)), Some(key)) = (class, self.text(key)?) else {
            return Err(wrong());
        };
        let itemsize = dtype.map_or(1, |dtype| dtype.itemsize() as u64);
        let numel = self
            .count(numel, itemsize)
            .ok_or_else(|| format!("storage {key:?} has a number of elements that no file can hold"))?;
        let length_bytes = numel.saturating_mul(itemsize);

        let (root, whole) = match self.roots.get(&key) {
            Some(named) => (named.root, named.whole),
            None => {
                self.arena.charge(key.len().saturating_mul(2).saturating_add(ROOT_BYTES))?;
                let root = self.arena.roots.len();
                self.roots.insert(key.clone(), NamedRoot { root, whole: None });
                self.arena.roots.push(Root { key: key.clone(), itemsize, numel });
                (root, None)
            }
        };
        let known_bytes = self.arena.roots.get(root).map_or(0, Root::length_bytes);
        if known_bytes != length_bytes {
            return Err(format!("storage {key:?} has {length_bytes} bytes, but had {known_bytes} earlier"));
        }
        let (start_bytes, length_bytes) = self
            .part(view, itemsize, length_bytes)
            .ok_or_else(|| format!("a view of storage {key:?} that reaches past its {length_bytes} bytes"))?;
        match whole {
            Some((whole_dtype, storage)) if whole_dtype == dtype && view == Value::None => {
                return Ok(storage);
            }
            _ => {}
        }
        let storage = self.arena.add_storage(StorageRef { root, dtype, start_bytes, length_bytes })?;
        if view == Value::None
            && let Some(named) = self.roots.get_mut(&key)
        {
            named.whole = Some((dtype, storage));
        }
        Ok(storage)
    }

    /// Returns the bytes of a storage that a view selects: `(key, offset, size)` in elements, or None for all.
    fn part(&self, view: Value, itemsize: u64, length_bytes: u64) -> Option<(u64, u64)> {
        if view == Value::None {
            return Some((0, length_bytes));
        }
        let &[_, offset, size] = self.arena.items(self.arena.tuple(view)?) else { return None };
        let (start, size) = (self.count(offset, itemsize)?, self.count(size, itemsize)?);
        let (start, size) = (start.saturating_mul(itemsize), size.saturating_mul(itemsize));
        (start.saturating_add(size) <= length_bytes).then_some((start, size))
    }

    /// Returns a number of elements that fits in a storage.
    fn count(&self, value: Value, itemsize: u64) -> Option<u64> {
        let Some(Literal::Int(count)) = self.literal(value) else { return None };
        let count = u64::try_from(count).ok()?;
        count.checked_mul(itemsize).filter(|&bytes| bytes <= MAX_STORAGE_BYTES).map(|_| count)
    }
}
