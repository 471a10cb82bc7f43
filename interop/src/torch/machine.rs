//! The machine that runs a pickle, limited to what data needs. It has a stack, marks and a memo. Calls are matched
//! against known patterns, and nothing is ever called.

use std::collections::HashMap;

use super::global::Global;
use super::instruction::{Instruction, ReadError, at_byte, code, unsigned};
use super::literal::Literal;
use super::value::{Arena, Node, Value};
use crate::budget::Budget;

/// The newest supported protocol of pickle.
const MAX_PROTOCOL: u64 = 5;

/// The memory allowed for any file. A pickle states a small number in one or two bytes, and as many attributes as a store
/// holds take about 8 MiB.
const FIXED_BYTES: u64 = 16 << 20;

/// The approximate memory of an entry of `sparse_memo`.
const SPARSE_ENTRY_BYTES: usize = 48;

/// The result of a pickle: a value, and everything that it refers to.
#[derive(Debug)]
pub(super) struct Unpickled<'a> {
    pub(super) arena: Arena<'a>,
    pub(super) root: Value,
}

impl<'a> Unpickled<'a> {
    /// Runs a pickle, which must fill `bytes`, in a file of `file_bytes`.
    ///
    /// # Errors
    /// One line: the position and the problem.
    pub(super) fn of(bytes: &'a [u8], file_bytes: u64) -> Result<Self, String> {
        let mut machine = Machine {
            arena: Arena::new(bytes, Budget::of(bytes.len(), file_bytes, FIXED_BYTES)),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Vec::new(),
            sparse_memo: HashMap::new(),
            storages: HashMap::new(),
        };
        let mut at = 0;
        loop {
            let instruction = Instruction::read(bytes, at, bytes.len()).map_err(|missing| match missing {
                ReadError::Truncated => at_byte(at, "it ends before its STOP"),
                ReadError::Invalid(what) => at_byte(at, what),
            })?;
            if instruction.code == code::STOP {
                let root = machine.pop().map_err(|e| at_byte(at, e))?;
                return match bytes.len().saturating_sub(instruction.end) {
                    0 => Ok(Unpickled { arena: machine.arena, root }),
                    after => Err(at_byte(at, format_args!("{after} bytes follow its STOP"))),
                };
            }
            machine.step(&instruction, at).map_err(|e| at_byte(at, e))?;
            at = instruction.end;
        }
    }
}

pub(super) struct Machine<'a> {
    pub(super) arena: Arena<'a>,
    stack: Vec<Value>,
    /// The length of the stack at each mark.
    marks: Vec<usize>,
    /// The memo entries with consecutive indices, as every pickler writes them.
    memo: Vec<Value>,
    /// The memo entries whose index was not the next.
    sparse_memo: HashMap<u64, Value>,
    /// The first mention of each storage, by key.
    pub(super) storages: HashMap<String, Value>,
}

impl<'a> Machine<'a> {
    fn step(&mut self, instruction: &Instruction<'a>, at: usize) -> Result<(), String> {
        let refused = |what: &str| Err(what.to_owned());
        let argument = instruction.argument;
        let made = match instruction.code {
            code::PROTO if unsigned(argument) > MAX_PROTOCOL => {
                let protocol = unsigned(argument);
                return Err(format!("protocol {protocol}, but the newest supported is {MAX_PROTOCOL}"));
            }
            // A frame only says how much to read at once.
            code::PROTO | code::FRAME => return Ok(()),
            code::MARK => return self.arena.budget.extend(&mut self.marks, &[self.stack.len()]),
            code::POP if self.marks.last() == Some(&self.stack.len()) => return self.take_marked().map(drop),
            code::POP => return self.pop().map(drop),
            code::POP_MARK => return self.take_marked().map(drop),
            code::PUT => return self.memorize(memo_index(argument)?),
            code::BINPUT | code::LONG_BINPUT => return self.memorize(unsigned(argument)),
            code::MEMOIZE => {
                return self.memorize(self.memo.len().saturating_add(self.sparse_memo.len()) as u64);
            }
            code::APPEND => {
                let item = self.pop()?;
                return self.arena.append(self.top()?, &[item]);
            }
            code::APPENDS | code::ADDITEMS => {
                let items = self.take_marked()?;
                return self.arena.append(self.top()?, &items);
            }
            code::SETITEM => {
                let items = self.take(2)?;
                return self.arena.insert(self.top()?, &items);
            }
            code::SETITEMS => {
                let items = self.take_marked()?;
                return self.arena.insert(self.top()?, &items);
            }
            code::BUILD => {
                let state = self.pop()?;
                let top = self.top()?;
                return match self.arena.node(top) {
                    // Drops the attributes of an OrderedDict. For a state_dict, these are the versions of its modules.
                    Some(Node::Dict(_)) => Ok(()),
                    _ => self.arena.add_part(top, state),
                };
            }

            code::NONE => Value::None,
            code::NEWTRUE => Value::Bool(true),
            code::NEWFALSE => Value::Bool(false),
            code::DUP => self.top()?,
            code::GET => self.recall(memo_index(argument)?)?,
            code::BINGET | code::LONG_BINGET => self.recall(unsigned(argument))?,
            code::EMPTY_TUPLE => self.arena.add_tuple(&[])?,
            code::TUPLE | code::TUPLE1 | code::TUPLE2 | code::TUPLE3 => {
                let items = match instruction.code {
                    code::TUPLE1 => self.take(1)?,
                    code::TUPLE2 => self.take(2)?,
                    code::TUPLE3 => self.take(3)?,
                    _ => self.take_marked()?,
                };
                self.arena.add_tuple(&items)?
            }
            // A set is read as a list, in the order of the file.
            code::EMPTY_LIST | code::EMPTY_SET => self.arena.add(Node::List(Vec::new()))?,
            code::EMPTY_DICT => self.arena.add(Node::Dict(Vec::new()))?,
            code::LIST | code::FROZENSET => {
                let (items, list) = (self.take_marked()?, self.arena.add(Node::List(Vec::new()))?);
                self.arena.append(list, &items)?;
                list
            }
            code::DICT => {
                let (items, dict) = (self.take_marked()?, self.arena.add(Node::Dict(Vec::new()))?);
                self.arena.insert(dict, &items)?;
                dict
            }
            code::GLOBAL => self.named_in_lines(argument)?,
            code::STACK_GLOBAL => {
                let (name, module) = (self.pop()?, self.pop()?);
                match (self.arena.text(module)?, self.arena.text(name)?) {
                    (Some(module), Some(name)) => self.named(&module, &name)?,
                    _ => return refused("a Python name that is not text"),
                }
            }
            code::REDUCE | code::NEWOBJ => {
                let (arguments, callable) = (self.pop()?, self.pop()?);
                self.call(callable, arguments, instruction.code == code::NEWOBJ)?
            }
            code::BINPERSID => {
                let id = self.pop()?;
                self.storage_of(id)?
            }
            code::NEWOBJ_EX => {
                let (_, _, class) = (self.pop()?, self.pop()?, self.pop()?);
                self.instance_of(class)?
            }
            code::INST => {
                self.take_marked()?;
                let class = self.named_in_lines(argument)?;
                self.instance_of(class)?
            }
            code::OBJ => {
                let class = self.take_marked()?.first().copied();
                self.instance_of(class.ok_or("there is nothing on the stack to take")?)?
            }
            code::PERSID => return refused("a persistent id that does not name a storage"),
            code::NEXT_BUFFER | code::READONLY_BUFFER => {
                return refused("a buffer outside the pickle, which the file does not contain");
            }
            code::EXT1 | code::EXT2 | code::EXT4 => {
                let number = unsigned(argument);
                self.arena.add_class(format!("number {number} of Python's extension registry"))?
            }
            _ => match Literal::of(instruction)? {
                Some(Literal::Bool(value)) => Value::Bool(value),
                _ => Value::Literal(u32::try_from(at).map_err(|_| "it is longer than 4 GiB")?),
            },
        };
        self.arena.budget.extend(&mut self.stack, &[made])
    }

    /// Returns what a Python name stands for.
    fn named(&mut self, module: &str, name: &str) -> Result<Value, String> {
        Global::of(module, name).map(Value::Global).or_else(|full| self.arena.add_class(full))
    }

    /// Returns what two lines name: a module, and a name in it.
    fn named_in_lines(&mut self, argument: &[u8]) -> Result<Value, String> {
        let text = String::from_utf8_lossy(argument);
        let (module, name) = text.split_once('\n').unwrap_or((&text, ""));
        self.named(module, name)
    }

    /// Takes the last `count` values from the stack. Nothing below the last mark can be taken.
    fn take(&mut self, count: usize) -> Result<Vec<Value>, String> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let start = self.stack.len().checked_sub(count).filter(|&start| start >= floor);
        Ok(self.take_from(start.ok_or("there is nothing on the stack to take")?))
    }

    /// Takes the last mark, and the values above it.
    fn take_marked(&mut self) -> Result<Vec<Value>, String> {
        let start = self.marks.pop().ok_or("there is no mark on the stack")?;
        Ok(self.take_from(start))
    }

    fn take_from(&mut self, start: usize) -> Vec<Value> {
        let items = self.stack.get(start..).unwrap_or_default().to_vec();
        self.stack.truncate(start);
        items
    }

    fn pop(&mut self) -> Result<Value, String> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn top(&self) -> Result<Value, String> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let values = self.stack.get(floor..).unwrap_or_default();
        values.last().copied().ok_or_else(|| "there is nothing on the stack to take".to_owned())
    }

    fn memorize(&mut self, index: u64) -> Result<(), String> {
        let top = self.top()?;
        let position = usize::try_from(index).unwrap_or(usize::MAX);
        if let Some(entry) = self.memo.get_mut(position) {
            *entry = top;
            return Ok(());
        }
        if position == self.memo.len() {
            self.sparse_memo.remove(&index);
            return self.arena.budget.extend(&mut self.memo, &[top]);
        }
        match self.sparse_memo.insert(index, top) {
            Some(_) => Ok(()),
            None => self.arena.budget.charge(SPARSE_ENTRY_BYTES),
        }
    }

    fn recall(&self, index: u64) -> Result<Value, String> {
        let in_memo = usize::try_from(index).ok().and_then(|position| self.memo.get(position));
        in_memo
            .or_else(|| self.sparse_memo.get(&index))
            .copied()
            .ok_or_else(|| format!("its memo has no entry {index}"))
    }
}

fn memo_index(line: &[u8]) -> Result<u64, String> {
    let parsed = str::from_utf8(line).ok().and_then(|digits| digits.parse().ok());
    parsed.ok_or_else(|| format!("{:?} is not a memo index", String::from_utf8_lossy(line)))
}
