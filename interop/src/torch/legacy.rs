//! PyTorch's layout until 1.5: several pickles, then the bytes of the storages.
//!
//! The pickles are a magic number, the protocol, a description of the machine, the object, and the keys of the
//! storages. For each key follow the number of elements in eight bytes, and the elements.

use std::collections::HashMap;
use std::sync::Arc;

use stridemap::Result;

use super::flatten::leaves;
use super::pickle::{Literal, Node, Root, Unpickled, Value, pickle_length};
use super::{contents, pickle_limit};
use crate::contents::{Contents, ForeignStorage};
use crate::file::{RawFile, zeroed};

const MAGIC_NUMBER: i128 = 0x1950_a86a_20f9_469c_fc6c;
const PROTOCOL_VERSION: i128 = 1001;

/// The bytes of a pickle that are read first. Most small pickles are shorter.
const FIRST_BYTES: u64 = 16 << 10;

/// The offset of the magic in a tar file.
const TAR_MAGIC_AT_BYTES: u64 = 257;
const TAR_MAGIC: &[u8; 5] = b"ustar";

/// Returns whether a file begins like pickles of protocol 2 or later. A pickle has no instruction 0, but the length of
/// a safetensors header has a 0 there.
pub(crate) fn is_pickle(magic: &[u8]) -> bool {
    matches!(magic, [0x80, 2..=5, 1..=255, ..])
}

/// Returns whether a file is a tar file, such as a checkpoint of PyTorch before 0.1.10.
pub(crate) fn is_tar(file: &RawFile) -> Result<bool> {
    let mut magic = [0; TAR_MAGIC.len()];
    if file.length_bytes() < TAR_MAGIC_AT_BYTES.saturating_add(magic.len() as u64) {
        return Ok(false);
    }
    file.read_at(&mut magic, TAR_MAGIC_AT_BYTES)?;
    Ok(&magic == TAR_MAGIC)
}

/// Returns the error for a tar file.
pub(crate) fn refuse_tar(file: &RawFile) -> stridemap::Error {
    file.bad(
        "a tar file, such as a checkpoint of PyTorch before 0.1.10; load it in PyTorch and save it again",
    )
}

/// Reads a file that begins with a pickle.
pub(crate) fn read(file: &Arc<RawFile>) -> Result<Contents> {
    let mut pickles = Pickles { file, at_bytes: 0 };
    let first = pickles.next()?;
    let magic = Unpickled::of(&first, file.length_bytes()).ok().and_then(|magic| magic.as_integer());
    if magic != Some(MAGIC_NUMBER) {
        return Err(file.bad(
            "a pickle, but not a checkpoint: it does not begin with the magic number of torch.save; load it in \
             Python and save its tensors with torch.save",
        ));
    }
    let version = pickles.next()?;
    match run(file, &version)?.as_integer() {
        Some(PROTOCOL_VERSION) => {}
        version => {
            return Err(file.bad(format!(
                "protocol version {version:?} of torch.save; only {PROTOCOL_VERSION} can be read"
            )));
        }
    }
    let system = pickles.next()?;
    if !is_little_endian(&run(file, &system)?) {
        return Err(file.bad(
            "it does not state that its elements are little-endian; save it again on a little-endian machine",
        ));
    }
    let object = pickles.next()?;
    let object = run(file, &object)?;
    let (leaves, roots) = leaves(object, &file.stem()?).map_err(|e| file.bad(e))?;
    let keys = pickles.next()?;
    let keys = keys_of(&run(file, &keys)?)
        .ok_or_else(|| file.bad("its list of storages is not a list of strings"))?;

    let places = places(file, &roots, keys, pickles.at_bytes)?;
    contents(leaves, &roots, |root| match places.get(&root.key) {
        Some(&offset_bytes) => Ok(ForeignStorage::range(file, offset_bytes, root.length_bytes())),
        None => Err(file.bad(format!("storage {:?} is not in the file", root.key))),
    })
}

fn run<'a>(file: &RawFile, pickle: &'a [u8]) -> Result<Unpickled<'a>> {
    Unpickled::of(pickle, file.length_bytes()).map_err(|e| file.bad(e))
}

/// Consecutive pickles.
struct Pickles<'a> {
    file: &'a RawFile,
    at_bytes: u64,
}

impl Pickles<'_> {
    /// Returns the bytes of the next pickle. Its length is known only when its end is found.
    fn next(&mut self) -> Result<Vec<u8>> {
        let limit_bytes = self.file.length_bytes().saturating_sub(self.at_bytes).min(pickle_limit(self.file));
        let mut seen_bytes = limit_bytes.min(FIRST_BYTES);
        loop {
            let mut bytes = zeroed(seen_bytes as usize)?;
            self.file.read_at(&mut bytes, self.at_bytes)?;
            let length = pickle_length(&bytes, limit_bytes as usize);
            match length
                .map_err(|e| self.file.bad(format!("{e}, in the pickle at byte {}", self.at_bytes)))?
            {
                Some(length) => {
                    bytes.truncate(length);
                    bytes.shrink_to_fit();
                    self.at_bytes = self.at_bytes.saturating_add(length as u64);
                    return Ok(bytes);
                }
                None if seen_bytes < limit_bytes => {
                    seen_bytes = seen_bytes.saturating_mul(2).min(limit_bytes)
                }
                None => {
                    return Err(self.file.bad(format!(
                        "the pickle at byte {} does not end within {limit_bytes} bytes; the file is truncated, or \
                         not a checkpoint",
                        self.at_bytes
                    )));
                }
            }
        }
    }
}

fn is_little_endian(system: &Unpickled<'_>) -> bool {
    let Some(Node::Dict(pairs)) = system.arena.node(system.root) else { return false };
    let is_order = |key| matches!(system.literal(key), Some(Literal::Text(text)) if text == "little_endian");
    pairs.iter().any(|&(key, value)| is_order(key) && value == Value::Bool(true))
}

fn keys_of(keys: &Unpickled<'_>) -> Option<Vec<String>> {
    let Some(Node::List(list)) = keys.arena.node(keys.root) else { return None };
    let text = |&key: &Value| match keys.literal(key) {
        Some(Literal::Text(text)) => Some(text.into_owned()),
        _ => None,
    };
    list.iter().map(text).collect()
}

/// Returns the offset of each storage's elements. Storages follow each other without gaps, to the end of the file.
fn places(
    file: &RawFile,
    roots: &[Root],
    keys: Vec<String>,
    start_bytes: u64,
) -> Result<HashMap<String, u64>> {
    let known: HashMap<&str, &Root> = roots.iter().map(|root| (root.key.as_str(), root)).collect();
    let mut places = HashMap::new();
    let mut at_bytes = start_bytes;
    for key in keys {
        let root = known.get(key.as_str());
        let root =
            root.ok_or_else(|| file.bad(format!("storage {key:?} is in the file, but no tensor uses it")))?;
        let mut count = [0; 8];
        if at_bytes.saturating_add(count.len() as u64) > file.length_bytes() {
            return Err(
                file.bad(format!("the file ends at byte {}, before storage {key:?}", file.length_bytes()))
            );
        }
        file.read_at(&mut count, at_bytes)?;
        let count = u64::from_le_bytes(count);
        if count != root.numel {
            return Err(file.bad(format!(
                "storage {key:?} has {count} elements at byte {at_bytes}, but {} in the pickle",
                root.numel
            )));
        }
        let elements_at_bytes = at_bytes.saturating_add(8);
        at_bytes = elements_at_bytes.saturating_add(root.length_bytes());
        if at_bytes > file.length_bytes() {
            return Err(file.bad(format!(
                "storage {key:?} should be {} bytes at offset {elements_at_bytes}, but the file ends at byte {}",
                root.length_bytes(),
                file.length_bytes()
            )));
        }
        if places.contains_key(&key) {
            return Err(file.bad(format!("storage {key:?} is in the file twice")));
        }
        places.insert(key, elements_at_bytes);
    }
    match file.length_bytes().saturating_sub(at_bytes) {
        0 => Ok(places),
        rest => Err(file.bad(format!("{rest} bytes follow the last storage, at byte {at_bytes}"))),
    }
}
