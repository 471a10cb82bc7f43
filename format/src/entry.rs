//! The trees of a table, and the entries in their leaves.

use std::cmp::Ordering;
use std::fmt;

use serde::Serialize;

use crate::record::{Unchecked, check_storage_id};
use crate::{
    GarbageKey, KeptGeneration, KeptKey, Result, StorageRecord, Tag, TensorRecord, check_text, codec,
};

/// One of the trees in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tree {
    /// Storages by id.
    Storages,
    /// Tensors by name.
    Tensors,
    /// Tags by name.
    Tags,
    /// The generations that tags name, and those that no tag names any more.
    Generations,
    /// The storages to which no tensor refers any more.
    Garbage,
}

impl Tree {
    /// All trees, in the order in which a table contains them.
    pub const ALL: [Tree; 5] = [Tree::Storages, Tree::Tensors, Tree::Tags, Tree::Generations, Tree::Garbage];

    /// Returns whether the tree is in the table of the history, and not in that of storages and tensors.
    #[must_use]
    pub fn is_history(self) -> bool {
        self >= Tree::Tags
    }

    pub(crate) fn code(self) -> u16 {
        self as u16
    }

    pub(crate) fn of(code: u16) -> Option<Tree> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tree::Storages => "storages",
            Tree::Tensors => "tensors",
            Tree::Tags => "tags",
            Tree::Generations => "generations",
            Tree::Garbage => "garbage",
        })
    }
}

/// What the entries of a generation may refer to, as its manifest says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The number of the generation. No entry refers to a later one.
    pub generation: u64,
    /// The next storage id. Every id is below it.
    pub next_storage_id: u64,
}

/// An entry in a leaf of a table: a key and its record.
pub trait Entry: Sized + Serialize {
    /// The key that orders the tree.
    type Key: ?Sized + Ord;

    /// The tree that contains such entries.
    const TREE: Tree;

    /// Returns the key.
    fn key(&self) -> &Self::Key;

    /// Compares the key at the start of an encoded entry with `key`.
    ///
    /// # Errors
    /// [`Rule::Canonical`](crate::Rule::Canonical).
    fn compare(bytes: &[u8], key: &Self::Key) -> Result<Ordering>;

    /// Returns the bytes of a key if it is the name of a tensor, and otherwise `None`.
    fn name(_key: &Self::Key) -> Option<&[u8]> {
        None
    }

    /// Returns the length of the key at the start of an encoded entry, in bytes. The key must be in canonical form.
    ///
    /// # Errors
    /// [`Rule::Canonical`](crate::Rule::Canonical).
    fn key_length(bytes: &[u8]) -> Result<usize>;

    /// Decodes an entry.
    ///
    /// # Errors
    /// [`Rule::Canonical`](crate::Rule::Canonical), and the rules that can be checked without its bounds.
    fn decode(bytes: &[u8]) -> Result<Self>;

    /// Checks the key and the record.
    ///
    /// # Errors
    /// The rules of the key and the record.
    fn check(&self, bounds: Bounds) -> Result<()>;
}

/// The parts of an entry whose key is an integer, or several.
macro_rules! integer_key {
    ($key:ty) => {
        type Key = $key;

        fn key(&self) -> &$key {
            &self.0
        }

        fn compare(bytes: &[u8], key: &$key) -> Result<Ordering> {
            Ok(codec::decode_first::<$key>(bytes)?.cmp(key))
        }

        fn key_length(bytes: &[u8]) -> Result<usize> {
            codec::first_length::<$key>(bytes)
        }

        fn decode(bytes: &[u8]) -> Result<Self> {
            codec::decode(bytes)
        }
    };
}

/// The parts of an entry whose key is a text.
macro_rules! text_key {
    () => {
        type Key = str;

        fn key(&self) -> &str {
            &self.0
        }

        fn compare(bytes: &[u8], key: &str) -> Result<Ordering> {
            // A string is encoded like its UTF-8 bytes, and sorts like them.
            Ok(codec::decode_first_text(bytes)?.cmp(key.as_bytes()))
        }

        fn key_length(bytes: &[u8]) -> Result<usize> {
            codec::first_length::<&str>(bytes)
        }
    };
}

impl Entry for (u64, StorageRecord) {
    integer_key!(u64);
    const TREE: Tree = Tree::Storages;

    fn check(&self, bounds: Bounds) -> Result<()> {
        check_storage_id(self.0, bounds.next_storage_id)?;
        self.1.check()
    }
}

impl Entry for (String, TensorRecord) {
    text_key!();
    const TREE: Tree = Tree::Tensors;

    fn name(key: &str) -> Option<&[u8]> {
        Some(key.as_bytes())
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let (name, record): (String, Unchecked) = codec::decode(bytes)?;
        check_text("name", &name)?;
        Ok((name, record.try_into()?))
    }

    fn check(&self, bounds: Bounds) -> Result<()> {
        check_text("name", &self.0)?;
        check_storage_id(self.1.storage_id, bounds.next_storage_id)
    }
}

impl Entry for (String, Tag) {
    text_key!();
    const TREE: Tree = Tree::Tags;

    fn decode(bytes: &[u8]) -> Result<Self> {
        codec::decode(bytes)
    }

    fn check(&self, bounds: Bounds) -> Result<()> {
        check_text("tag", &self.0)?;
        self.1.check(bounds)
    }
}

impl Entry for (KeptKey, KeptGeneration) {
    integer_key!(KeptKey);
    const TREE: Tree = Tree::Generations;

    fn check(&self, bounds: Bounds) -> Result<()> {
        self.0.check(bounds)?;
        self.1.check(self.0, bounds)
    }
}

impl Entry for (GarbageKey, StorageRecord) {
    integer_key!(GarbageKey);
    const TREE: Tree = Tree::Garbage;

    fn check(&self, bounds: Bounds) -> Result<()> {
        self.0.check(bounds)?;
        self.1.check_garbage()
    }
}
