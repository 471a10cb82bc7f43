//! The machine that runs a pickle, as far as data needs it. It has a stack, marks and a memo. Calls are matched
//! against known patterns, and nothing is ever called.

use std::collections::{BTreeMap, HashMap};

use stridemap::DType;

use super::instruction::{Instruction, Missing, at_byte, code};
use super::literal::{Literal, literal};
use super::value::{Arena, Budget, Node, Value};
use crate::torch::known::Known;

/// The newest protocol.
const MAX_PROTOCOL: u8 = 5;

/// The memory of a value or a mark in a list that grows by doubling.
const GROWN_BYTES: usize = 2 * size_of::<Value>();

/// The approximate memory of a memo entry outside the consecutive ones.
const FAR_ENTRY_BYTES: usize = 48;

/// The result of a pickle: a value, and everything that it refers to.
#[derive(Debug)]
pub(in super::super) struct Unpickled<'a> {
    bytes: &'a [u8],
    pub(in super::super) arena: Arena,
    pub(in super::super) root: Value,
}

impl<'a> Unpickled<'a> {
    /// Runs a pickle, which must fill `bytes`, in a file of `file_bytes`.
    ///
    /// # Errors
    /// One line: the position and the problem.
    pub(in super::super) fn of(bytes: &'a [u8], file_bytes: u64) -> Result<Self, String> {
        let mut machine = Machine {
            bytes,
            stack: Vec::new(),
            most_values: 0,
            marks: Vec::new(),
            most_marks: 0,
            memo: Vec::new(),
            far_memo: BTreeMap::new(),
            empty_tuple: None,
            roots: HashMap::new(),
            arena: Arena::new(Budget::of(bytes.len(), file_bytes)),
        };
        let mut at = 0;
        loop {
            let instruction = Instruction::read(bytes, at, bytes.len()).map_err(|missing| match missing {
                Missing::Cut => at_byte(at, "it ends before its STOP"),
                Missing::Wrong(what) => at_byte(at, what),
            })?;
            if instruction.code == code::STOP {
                let root = machine.pop().map_err(|e| at_byte(at, e))?;
                let after = bytes.len().saturating_sub(instruction.end);
                return match after {
                    0 => Ok(Unpickled { bytes, arena: machine.arena, root }),
                    _ => Err(at_byte(at, format_args!("{after} bytes follow its STOP"))),
                };
            }
            machine.step(&instruction, at).map_err(|e| at_byte(at, e))?;
            at = instruction.end;
        }
    }

    pub(in super::super) fn length_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the integer, if the whole pickle is one.
    pub(in super::super) fn as_integer(&self) -> Option<i128> {
        match self.literal(self.root)? {
            Literal::Int(int) => Some(int),
            _ => None,
        }
    }

    /// Returns the number, text or bytes of a value.
    pub(in super::super) fn literal(&self, value: Value) -> Option<Literal<'a>> {
        literal_of(self.bytes, value)
    }
}

/// A storage that the pickle has mentioned.
pub(super) struct NamedRoot {
    /// Its root number.
    pub(super) root: usize,
    /// The whole storage as first mentioned, for other tensors that share it.
    pub(super) whole: Option<(Option<DType>, Value)>,
}

pub(super) struct Machine<'a> {
    bytes: &'a [u8],
    pub(super) stack: Vec<Value>,
    /// The maximum length of the stack so far. Its memory is charged once.
    most_values: usize,
    /// Lengths of the stack at each mark.
    marks: Vec<usize>,
    /// The maximum number of marks so far, as for the stack.
    most_marks: usize,
    /// Memo entries with consecutive numbers, as every pickler writes them.
    memo: Vec<Value>,
    /// Memo entries whose number was not the next.
    far_memo: BTreeMap<u64, Value>,
    /// Reused, because one is enough.
    empty_tuple: Option<Value>,
    /// Storages by key.
    pub(super) roots: HashMap<String, NamedRoot>,
    pub(super) arena: Arena,
}

impl<'a> Machine<'a> {
    fn step(&mut self, instruction: &Instruction<'a>, at: usize) -> Result<(), String> {
        match literal(instruction)? {
            Some(Literal::Bool(is)) => return self.push(Value::Bool(is)),
            Some(_) => {
                let place = u32::try_from(at).map_err(|_| "it is longer than 4 GiB")?;
                return self.push(Value::Literal(place));
            }
            None => {}
        }
        let argument = instruction.argument;
        match instruction.code {
            code::PROTO if argument.first().is_some_and(|&protocol| protocol > MAX_PROTOCOL) => {
                Err(format!("protocol {}, but the newest supported is {MAX_PROTOCOL}", unsigned(argument)))
            }
            // A frame only says how much to read at once.
            code::PROTO | code::FRAME => Ok(()),
            code::NONE => self.push(Value::None),
            code::NEWTRUE => self.push(Value::Bool(true)),
            code::NEWFALSE => self.push(Value::Bool(false)),

            code::MARK => {
                if self.marks.len() == self.most_marks {
                    self.arena.charge(GROWN_BYTES)?;
                    self.most_marks = self.most_marks.saturating_add(1);
                }
                self.marks.push(self.stack.len());
                Ok(())
            }
            code::POP if self.marks.last() == Some(&self.stack.len()) => self.pop_mark().map(drop),
            code::POP => self.pop().map(drop),
            code::POP_MARK => self.pop_mark().map(drop),
            code::DUP => self.top().and_then(|top| self.push(top)),

            code::GET => self.recall(line_number(argument)?),
            code::BINGET | code::LONG_BINGET => self.recall(unsigned(argument)),
            code::PUT => self.memorize(line_number(argument)?),
            code::BINPUT | code::LONG_BINPUT => self.memorize(unsigned(argument)),
            code::MEMOIZE => self.memorize(self.memo.len().saturating_add(self.far_memo.len()) as u64),

            code::EMPTY_TUPLE => self.push_tuple(self.stack.len()),
            code::TUPLE1 => self.push_tuple(self.start_of(1)?),
            code::TUPLE2 => self.push_tuple(self.start_of(2)?),
            code::TUPLE3 => self.push_tuple(self.start_of(3)?),
            code::TUPLE => {
                let start = self.mark()?;
                self.push_tuple(start)
            }
            code::EMPTY_LIST => self.push_node(Node::List(Vec::new())),
            code::EMPTY_DICT => self.push_node(Node::Dict(Vec::new())),
            code::LIST | code::DICT => {
                let items = self.pop_mark()?;
                if instruction.code == code::LIST {
                    let list = self.arena.add(Node::List(Vec::new()))?;
                    self.arena.append(list, &items)?;
                    return self.push(list);
                }
                let dict = self.arena.add(Node::Dict(Vec::new()))?;
                self.arena.insert(dict, &items)?;
                self.push(dict)
            }
            code::APPEND => {
                let item = self.pop()?;
                self.arena.append(self.top()?, &[item])
            }
            code::APPENDS => {
                let items = self.pop_mark()?;
                self.arena.append(self.top()?, &items)
            }
            code::SETITEM => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.arena.insert(self.top()?, &[key, value])
            }
            code::SETITEMS => {
                let items = self.pop_mark()?;
                self.arena.insert(self.top()?, &items)
            }

            code::GLOBAL | code::INST => {
                let text = String::from_utf8_lossy(argument);
                let (module, name) = text.split_once('\n').unwrap_or((&text, ""));
                let known = Known::of(module, name)?;
                if instruction.code == code::INST {
                    return Err(format!("makes an object of {}, which no checkpoint does", known.name()));
                }
                self.push(Value::Known(known))
            }
            code::STACK_GLOBAL => {
                let (name, module) = (self.pop()?, self.pop()?);
                match (self.text(module)?, self.text(name)?) {
                    (Some(module), Some(name)) => self.push(Value::Known(Known::of(&module, &name)?)),
                    _ => Err("a Python name that is not text".to_owned()),
                }
            }
            code::REDUCE | code::NEWOBJ => {
                let (arguments, callable) = (self.pop()?, self.pop()?);
                let made = self.call(callable, arguments, instruction.name)?;
                self.push(made)
            }
            // The attributes of an OrderedDict. For a state_dict these are the versions of its modules.
            code::BUILD => {
                self.pop()?;
                let top = self.top()?;
                match self.arena.node(top) {
                    Some(Node::Dict(_)) => Ok(()),
                    _ => Err(format!("sets the state of {}, which no checkpoint does", self.arena.kind(top))),
                }
            }
            code::BINPERSID => {
                let id = self.pop()?;
                let storage = self.storage_of(id)?;
                self.push(storage)
            }
            code::EMPTY_SET | code::ADDITEMS | code::FROZENSET => {
                Err("a set, whose members have no names; save a list".to_owned())
            }
            code::OBJ | code::NEWOBJ_EX => {
                Err("makes an object of a class, which no checkpoint does".to_owned())
            }
            code::PERSID => Err("a persistent id that does not name a storage".to_owned()),
            code::NEXT_BUFFER | code::READONLY_BUFFER => {
                Err("a buffer outside the pickle, which the file does not contain".to_owned())
            }
            code::EXT1 | code::EXT2 | code::EXT4 => Err(format!(
                "calls number {} of Python's extension registry, which is code",
                unsigned(argument)
            )),
            _ => Err(format!("{} is not written by torch.save", instruction.name)),
        }
    }

    fn push(&mut self, value: Value) -> Result<(), String> {
        if self.stack.len() == self.most_values {
            self.arena.charge(GROWN_BYTES)?;
            self.most_values = self.most_values.saturating_add(1);
        }
        self.stack.push(value);
        Ok(())
    }

    fn push_node(&mut self, node: Node) -> Result<(), String> {
        let value = self.arena.add(node)?;
        self.push(value)
    }

    /// Pushes a tuple of the values on the stack from `start` on.
    fn push_tuple(&mut self, start: usize) -> Result<(), String> {
        let items = self.stack.get(start..).unwrap_or_default();
        if items.is_empty()
            && let Some(tuple) = self.empty_tuple
        {
            return self.push(tuple);
        }
        let is_empty = items.is_empty();
        let items = self.arena.add_items(items)?;
        self.stack.truncate(start);
        let tuple = self.arena.add(Node::Tuple(items))?;
        self.empty_tuple = self.empty_tuple.or(is_empty.then_some(tuple));
        self.push(tuple)
    }

    /// Returns the position of the last `count` values.
    fn start_of(&self, count: usize) -> Result<usize, String> {
        let start = self.stack.len().checked_sub(count).filter(|&start| start >= self.floor());
        start.ok_or_else(underflow)
    }

    /// Returns the position of the last mark, below which nothing can be popped.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn pop(&mut self) -> Result<Value, String> {
        self.start_of(1)?;
        self.stack.pop().ok_or_else(underflow)
    }

    fn top(&self) -> Result<Value, String> {
        self.start_of(1)?;
        self.stack.last().copied().ok_or_else(underflow)
    }

    fn mark(&mut self) -> Result<usize, String> {
        self.marks.pop().ok_or_else(|| "there is no mark on the stack".to_owned())
    }

    /// Pops the last mark, and the values above it.
    fn pop_mark(&mut self) -> Result<Vec<Value>, String> {
        let start = self.mark()?;
        Ok(self.stack.split_off(start.min(self.stack.len())))
    }

    fn memorize(&mut self, index: u64) -> Result<(), String> {
        let top = self.top()?;
        let place = usize::try_from(index).unwrap_or(usize::MAX);
        if let Some(entry) = self.memo.get_mut(place) {
            *entry = top;
            return Ok(());
        }
        if place == self.memo.len() {
            self.memo.push(top);
            return self.arena.charge(size_of::<Value>());
        }
        match self.far_memo.insert(index, top) {
            Some(_) => Ok(()),
            None => self.arena.charge(FAR_ENTRY_BYTES),
        }
    }

    fn recall(&mut self, index: u64) -> Result<(), String> {
        let near = usize::try_from(index).ok().and_then(|place| self.memo.get(place));
        let value = near.or_else(|| self.far_memo.get(&index)).copied();
        self.push(value.ok_or_else(|| format!("its memo has no entry {index}"))?)
    }

    pub(super) fn literal(&self, value: Value) -> Option<Literal<'a>> {
        literal_of(self.bytes, value)
    }

    /// Returns a copy of text. The same text can be requested repeatedly, so each copy is charged for.
    pub(super) fn text(&mut self, value: Value) -> Result<Option<String>, String> {
        match self.literal(value) {
            Some(Literal::Text(text)) => {
                self.arena.charge(text.len())?;
                Ok(Some(text.into_owned()))
            }
            _ => Ok(None),
        }
    }
}

fn literal_of(bytes: &[u8], value: Value) -> Option<Literal<'_>> {
    let Value::Literal(place) = value else { return None };
    let instruction = Instruction::read(bytes, place as usize, bytes.len()).ok()?;
    literal(&instruction).ok()?
}

fn underflow() -> String {
    "there is nothing on the stack to take".to_owned()
}

fn unsigned(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |high, &byte| high << 8 | u64::from(byte))
}

fn line_number(line: &[u8]) -> Result<u64, String> {
    let parsed = std::str::from_utf8(line).ok().and_then(|digits| digits.parse().ok());
    parsed.ok_or_else(|| format!("{:?} is not a memo index", String::from_utf8_lossy(line)))
}
