//! Interprets the calls of a pickle: for each global name, which arguments produce which value.

use stridemap_format::limits::MAX_STORAGE_BYTES;

use super::global::Global;
use super::literal::Literal;
use super::machine::Machine;
use super::value::{FileStorage, Node, StorageRef, TensorRef, Value};

/// The approximate memory of a newly mentioned storage, without its key.
const STORAGE_BYTES: usize = 128;

impl Machine<'_> {
    /// Returns the value that Python would get by calling `callable` with a tuple of arguments.
    pub(super) fn call(
        &mut self,
        callable: Value,
        arguments: Value,
        is_newobj: bool,
    ) -> Result<Value, String> {
        let Value::Global(global) = callable else {
            let class = self.class_in(callable, arguments);
            let object = self.instance_of(class)?;
            // Protocols 0 and 1 pass the items of a list or dict of a class of its own.
            let items = self.arena.tuple(arguments).and_then(|arguments| arguments.get(2).copied());
            let is_known = |&items: &Value| {
                class != callable && matches!(self.arena.node(items), Some(Node::List(_) | Node::Dict(_)))
            };
            if let Some(items) = items.filter(is_known) {
                self.arena.add_part(object, items)?;
            }
            return Ok(object);
        };
        let wrong = |what: &str| format!("calls {} with {what}", global.name());
        let items = self.arena.tuple(arguments).map(<[Value]>::to_vec);
        let items = items.ok_or_else(|| wrong("something that is not a tuple"))?;
        let has_instances = matches!(global, Global::OrderedDict | Global::Size | Global::Namespace);
        if is_newobj && !has_instances {
            return Err(format!("creates an instance of {}, which no checkpoint does", global.name()));
        }
        match (global, items.as_slice()) {
            (Global::OrderedDict, []) => self.arena.add(Node::Dict(Vec::new())),
            (Global::OrderedDict, &[pairs]) => {
                let items =
                    self.items_of(pairs).ok_or_else(|| wrong("something that is not a list of pairs"))?;
                let dict = self.arena.add(Node::Dict(Vec::new()))?;
                self.arena.insert(dict, &items)?;
                Ok(dict)
            }
            (Global::DefaultDict, [] | [_]) | (Global::Counter, []) => self.arena.add(Node::Dict(Vec::new())),
            (Global::Counter, &[counts]) if matches!(self.arena.node(counts), Some(Node::Dict(_))) => {
                Ok(counts)
            }
            (Global::Namespace, []) => self.arena.add_object(callable),
            (Global::Set, []) => self.arena.add(Node::List(Vec::new())),
            (Global::Set, &[members]) => match self.arena.node(members) {
                Some(Node::List(list)) => {
                    let (list, set) = (list.clone(), self.arena.add(Node::List(Vec::new()))?);
                    self.arena.append(set, &list)?;
                    Ok(set)
                }
                _ => Err(wrong("something that is not a list")),
            },
            (Global::Bytes, []) => self.arena.add(Node::Bytes(Value::None)),
            (Global::Bytes, &[bytes]) if self.is_bytes(bytes) => Ok(bytes),
            (Global::Bytes | Global::Encode, &[text, encoding]) => {
                let characters = self.arena.text(text)?.ok_or_else(|| wrong("something that is not text"))?;
                if !matches!(self.arena.text(encoding)?.as_deref(), Some("latin1" | "latin-1")) {
                    return self.arena.add_object(callable);
                }
                if characters.chars().any(|c| u8::try_from(c).is_err()) {
                    return Err(wrong("text that is not Latin-1"));
                }
                self.arena.add(Node::Bytes(text))
            }
            (Global::Size, []) => self.arena.add(Node::Size(arguments)),
            (Global::Size, &[sizes]) => {
                let sizes = self.integers(sizes)?;
                let sizes = sizes.ok_or_else(|| wrong("something that is not a tuple of integers"))?;
                self.arena.add(Node::Size(sizes))
            }
            (Global::Device, &[kind] | &[kind, _]) if self.arena.text(kind)?.is_some() => {
                self.arena.add(Node::Device(arguments))
            }
            (Global::RebuildParameter, &[data, _, _])
            | (Global::RebuildParameterWithState, &[data, _, _, _]) => match self.arena.node(data) {
                Some(Node::Tensor(_) | Node::Object(_)) => Ok(data),
                _ => Err(wrong("something that is not a tensor")),
            },
            // The attributes are dropped, as those of a parameter.
            (Global::RebuildFromType, &[Value::Global(rebuild), class, arguments, _]) => match class {
                // Not `RebuildFromType` itself, which could nest without end.
                Value::Global(Global::TensorClass) if rebuild.is_rebuild() => {
                    self.call(Value::Global(rebuild), arguments, false)
                }
                _ => self.instance_of(class),
            },
            // A tensor of another kind, such as a sparse one, that has attributes.
            (Global::RebuildFromType, &[rebuild, Value::Global(_), _, _]) => self.instance_of(rebuild),
            (Global::RebuildFromType, &[_, class, _, _]) => self.instance_of(class),
            (Global::RebuildTensor, &[storage, offset, size, stride])
            | (Global::RebuildTensorV2, &[storage, offset, size, stride, _, _]) => {
                self.create_tensor(global, storage, offset, (size, stride), Value::None, Value::None)
            }
            (Global::RebuildTensorV2, &[storage, offset, size, stride, _, _, metadata]) => {
                self.create_tensor(global, storage, offset, (size, stride), Value::None, metadata)
            }
            (Global::RebuildTensorV3, &[storage, offset, size, stride, _, _, dtype]) => {
                self.create_tensor(global, storage, offset, (size, stride), dtype, Value::None)
            }
            (Global::RebuildTensorV3, &[storage, offset, size, stride, _, _, dtype, metadata]) => {
                self.create_tensor(global, storage, offset, (size, stride), dtype, metadata)
            }
            (
                Global::DType(_) | Global::Storage(_) | Global::QuantizedStorage(_) | Global::TensorClass,
                _,
            ) => Err(format!("calls {}, which is a type and cannot be called", global.name())),
            _ => Err(wrong(&format!("{} arguments, which it does not take", items.len()))),
        }
    }

    /// Returns an object of a class that is not known here, or what a function that is not known here returns. Nothing
    /// is called.
    pub(super) fn instance_of(&mut self, class: Value) -> Result<Value, String> {
        match (class, self.arena.node(class)) {
            (_, Some(Node::Class(_))) => self.arena.add_object(class),
            (_, Some(Node::Object(object))) => self.arena.add_object(object.class),
            (Value::Global(known), _) => {
                Err(format!("creates an instance of {}, which no checkpoint does", known.name()))
            }
            _ => Err(format!("calls {}, which cannot be called", self.arena.kind(class))),
        }
    }

    /// Returns the class that the functions of `copyreg` create an object of: their first argument.
    fn class_in(&self, function: Value, arguments: Value) -> Value {
        let name = self.arena.class_name(function).unwrap_or_default();
        let is_known = ["copyreg", "copy_reg"].iter().any(|module| {
            name.strip_prefix(module).is_some_and(|name| [".__newobj__", "._reconstructor"].contains(&name))
        });
        let first = self.arena.tuple(arguments).and_then(|arguments| arguments.first().copied());
        let is_class = |&class: &Value| matches!(self.arena.node(class), Some(Node::Class(_)));
        first.filter(|_| is_known).filter(is_class).unwrap_or(function)
    }

    fn is_bytes(&self, value: Value) -> bool {
        let is_literal = matches!(self.arena.literal(value), Some(Literal::Bytes(_)));
        is_literal || matches!(self.arena.node(value), Some(Node::Bytes(_)))
    }

    /// Creates a tensor. If `dtype` is `None`, the tensor has the dtype of its storage.
    fn create_tensor(
        &mut self,
        global: Global,
        storage: Value,
        offset: Value,
        (size, stride): (Value, Value),
        dtype: Value,
        metadata: Value,
    ) -> Result<Value, String> {
        let wrong = |what: &str| format!("calls {} with {what}", global.name());
        let storage = match self.arena.node(storage) {
            Some(&Node::Storage(storage)) => storage,
            Some(Node::Object(_)) => return self.instance_of(storage),
            _ => return Err(wrong("something that is not a storage")),
        };
        let dtype = match dtype {
            dtype if matches!(self.arena.node(dtype), Some(Node::Class(_))) => {
                return self.instance_of(dtype);
            }
            Value::Global(Global::DType(dtype)) => dtype,
            Value::None if global != Global::RebuildTensorV3 => {
                storage.dtype.ok_or_else(|| wrong("a storage whose elements have no type"))?
            }
            _ => return Err(wrong("something that is not a dtype")),
        };
        let (Some(size), Some(stride)) = (self.integers(size)?, self.integers(stride)?) else {
            return Err(wrong("a size or stride that is not a tuple of integers"));
        };
        if self.arena.integer(offset).is_none() {
            return Err(wrong("an offset that is not an integer"));
        }
        let flag = self.flag(metadata)?;
        let tensor = TensorRef { storage, dtype, offset, size, stride, flag };
        self.arena.add(Node::Tensor(Box::new(tensor)))
    }

    /// Returns the key of the first flag that is set in a dict of flags. A dict that is used repeatedly is charged for
    /// each time.
    fn flag(&mut self, metadata: Value) -> Result<Option<Value>, String> {
        let Some(Node::Dict(flags)) = self.arena.node(metadata) else { return Ok(None) };
        let set = flags.as_chunks().0.iter().find(|&&[_, value]| value != Value::Bool(false));
        let (set, length_bytes) = (set.map(|&[flag, _]| flag), size_of_val(flags.as_slice()));
        self.arena.budget.charge(length_bytes)?;
        Ok(set)
    }

    /// Returns a tuple, or the tuple in a `torch.Size`, if all its items are integers. A value that is used repeatedly
    /// is checked and charged each time.
    fn integers(&mut self, value: Value) -> Result<Option<Value>, String> {
        let Some(items) = self.arena.tuple(value) else { return Ok(None) };
        let (count, are_integers) =
            (items.len(), items.iter().all(|&item| self.arena.integer(item).is_some()));
        self.arena.budget.charge(size_of::<Value>().saturating_mul(count))?;
        let tuple = match self.arena.node(value) {
            Some(&Node::Size(tuple)) => tuple,
            _ => value,
        };
        Ok(are_integers.then_some(tuple))
    }

    /// Returns the keys and values, alternating, of a list of pairs. Python 2 wrote an OrderedDict this way.
    fn items_of(&self, pairs: Value) -> Option<Vec<Value>> {
        let Some(Node::List(list)) = self.arena.node(pairs) else { return None };
        let mut items = Vec::with_capacity(list.len().saturating_mul(2));
        for &pair in list {
            let pair = match self.arena.node(pair)? {
                Node::List(pair) => pair.as_slice(),
                _ => self.arena.tuple(pair)?,
            };
            items.extend_from_slice(<&[Value; 2]>::try_from(pair).ok()?);
        }
        Some(items)
    }

    /// Returns the storage of a persistent id: `("storage", type, key, location, numel)`. The older layout has a
    /// sixth item, which selects a view of the storage.
    pub(super) fn storage_of(&mut self, id: Value) -> Result<Value, String> {
        let wrong = || "a persistent id that does not name a storage".to_owned();
        let (kind, class, key, numel, view) = match *self.arena.tuple(id).ok_or_else(wrong)? {
            [kind, class, key, _, numel] => (kind, class, key, numel, Value::None),
            [kind, class, key, _, numel, view] => (kind, class, key, numel, view),
            _ => return Err(wrong()),
        };
        let is_storage = matches!(self.arena.literal(kind), Some(Literal::Text(kind)) if kind == "storage");
        let (dtype, itemsize) = match class {
            Value::Global(Global::Storage(dtype)) => {
                (dtype, dtype.map_or(1, |dtype| dtype.itemsize() as u64))
            }
            Value::Global(Global::QuantizedStorage(itemsize)) => (None, itemsize.into()),
            _ if is_storage && matches!(self.arena.node(class), Some(Node::Class(_))) => {
                return self.instance_of(class);
            }
            _ => return Err(wrong()),
        };
        let (true, Some(key)) = (is_storage, self.arena.text(key)?) else { return Err(wrong()) };
        let numel = self.count(numel, itemsize);
        let numel =
            numel.ok_or_else(|| format!("storage {key:?} has a number of elements that no file can hold"))?;
        let length_bytes = numel.saturating_mul(itemsize);
        let (start_bytes, part_bytes) = self
            .part(view, itemsize, length_bytes)
            .ok_or_else(|| format!("a view of storage {key:?} that reaches past its {length_bytes} bytes"))?;

        let first = self.storages.get(&key).copied();
        let earlier = match first.and_then(|first| self.arena.node(first)) {
            Some(&Node::Storage(earlier)) => Some(earlier),
            _ => None,
        };
        let number = match earlier {
            Some(earlier) => earlier.number,
            None => {
                self.arena.budget.charge(key.len().saturating_mul(2).saturating_add(STORAGE_BYTES))?;
                let number = u32::try_from(self.arena.storages.len()).map_err(|_| wrong())?;
                self.arena.storages.push(FileStorage { key: key.clone(), numel, length_bytes });
                number
            }
        };
        let earlier_bytes = self.arena.storages.get(number as usize).map_or(0, |found| found.length_bytes);
        if earlier_bytes != length_bytes {
            return Err(format!("storage {key:?} has {length_bytes} bytes, but had {earlier_bytes} earlier"));
        }
        let storage = StorageRef { number, dtype, start_bytes, length_bytes: part_bytes };
        if let Some(first) = first.filter(|_| earlier == Some(storage)) {
            return Ok(first);
        }
        let made = self.arena.add(Node::Storage(storage))?;
        self.storages.entry(key).or_insert(made);
        Ok(made)
    }

    /// Returns the offset and the length, in bytes, of the part of a storage that a view selects. A view is `(key,
    /// offset, size)`, counted in elements, or None for the whole storage.
    fn part(&self, view: Value, itemsize: u64, length_bytes: u64) -> Option<(u64, u64)> {
        if view == Value::None {
            return Some((0, length_bytes));
        }
        let &[_, offset, size] = self.arena.tuple(view)? else { return None };
        let start = self.count(offset, itemsize)?.saturating_mul(itemsize);
        let size = self.count(size, itemsize)?.saturating_mul(itemsize);
        (start.saturating_add(size) <= length_bytes).then_some((start, size))
    }

    /// Returns the value as a number of elements, or `None` if a storage cannot hold that many.
    fn count(&self, value: Value, itemsize: u64) -> Option<u64> {
        let count = u64::try_from(self.arena.integer(value)?).ok()?;
        count.checked_mul(itemsize).filter(|&bytes| bytes <= MAX_STORAGE_BYTES).map(|_| count)
    }
}
