//! PyTorch's layout until 1.5: several pickles, then the bytes of the storages.
//!
//! The pickles are a magic number, the protocol, a description of the machine, the object, and the keys of the
//! storages. For each key, eight bytes with the number of elements follow, and then the elements.

use std::collections::HashMap;
use std::sync::Arc;

use stridemap::Result;

use super::instruction::pickle_length;
use super::machine::Unpickled;
use super::value::{FileStorage, Node, Value};
use super::{contents_of, leaves_of, pickle_limit};
use crate::ForeignOptions;
use crate::contents::Contents;
use crate::file::{RawFile, zeroed};
use crate::foreign_storage::ForeignStorage;

const MAGIC_NUMBER: i128 = 0x1950_a86a_20f9_469c_fc6c;
const PROTOCOL_VERSION: i128 = 1001;

/// The number of bytes of a pickle that are read first. Most pickles are shorter, so one read is enough for them.
const FIRST_BYTES: u64 = 16 << 10;

/// The offset of the magic in a tar file.
const TAR_MAGIC_OFFSET: u64 = 257;
const TAR_MAGIC: &[u8; 5] = b"ustar";

/// The length of the first header of a tar file, which holds the magic.
pub(crate) const TAR_HEADER_BYTES: u64 = 512;

/// How a file of protocol 0 or 1 begins: with the magic number as text.
const MAGIC_TEXT: &[u8] = b"L119547037146038801333356L";

/// Returns whether a file begins like a pickle of protocol 2 to 5, and not like a safetensors file that is truncated, or
/// like a checkpoint of an older protocol.
///
/// The third byte of a pickle is an instruction, which is never 0. In the length of a safetensors header, this byte can
/// have any value, but the last four bytes of the length are 0, and a brace follows.
pub(crate) fn is_pickle(magic: &[u8]) -> bool {
    let is_header = matches!(magic, [_, _, _, _, 0, 0, 0, 0, b'{', ..]);
    matches!(magic, [0x80, 2..=5, 1..=255, ..]) && !is_header
        || magic.len() > 8 && magic.iter().zip(MAGIC_TEXT).all(|(found, magic)| found == magic)
}

/// Returns whether a file is a tar file, such as a checkpoint of PyTorch before 0.1.10.
pub(crate) fn is_tar(file: &RawFile) -> Result<bool> {
    let mut magic = [0; TAR_MAGIC.len()];
    if file.length_bytes() < TAR_MAGIC_OFFSET.saturating_add(magic.len() as u64) {
        return Ok(false);
    }
    file.read_at(&mut magic, TAR_MAGIC_OFFSET)?;
    Ok(&magic == TAR_MAGIC)
}

/// Returns the error for a tar file.
pub(crate) fn tar_error(file: &RawFile) -> stridemap::Error {
    file.bad(
        "a tar file, such as a checkpoint of PyTorch before 0.1.10; load it in PyTorch and save it again",
    )
}

/// Reads a file that begins with a pickle.
pub(crate) fn read(file: &Arc<RawFile>, options: ForeignOptions) -> Result<Contents> {
    let mut pickles = Pickles { file, offset: 0 };
    let integer = |pickle: &[u8]| {
        let unpickled = Unpickled::of(pickle, file.length_bytes())?;
        Ok::<_, String>(unpickled.arena.integer(unpickled.root))
    };
    if integer(&pickles.next()?) != Ok(Some(MAGIC_NUMBER)) {
        return Err(file.bad(
            "a pickle, but not a checkpoint: it does not begin with the magic number of torch.save; load it in \
             Python and save its tensors with torch.save",
        ));
    }
    let version = integer(&pickles.next()?).map_err(|e| file.bad(e))?;
    if version != Some(PROTOCOL_VERSION) {
        let stated = version.map_or("no number".to_owned(), |version| version.to_string());
        let what =
            format!("the protocol version of torch.save is {stated}; only {PROTOCOL_VERSION} can be read");
        return Err(file.bad(what));
    }
    if !is_little_endian(file, &pickles.next()?)? {
        return Err(file.bad(
            "it does not state that its elements are little-endian; save it again on a little-endian machine",
        ));
    }
    let leaves = leaves_of(file, &pickles.next()?, options)?;
    let keys = storage_keys(file, &pickles.next()?)?;
    let storage_offsets = storage_offsets(file, &leaves.storages, keys, pickles.offset)?;
    contents_of(file, leaves, |storage| match storage_offsets.get(&storage.key) {
        Some(&offset_bytes) => Ok(ForeignStorage::of_range(file, offset_bytes, storage.length_bytes)),
        None => Err(file.bad(format!("storage {:?} is not in the file", storage.key))),
    })
}

/// Consecutive pickles.
struct Pickles<'a> {
    file: &'a RawFile,
    /// The offset of the next pickle.
    offset: u64,
}

impl Pickles<'_> {
    /// Returns the bytes of the next pickle. Its length is known only when its end is found.
    fn next(&mut self) -> Result<Vec<u8>> {
        let limit_bytes = self.file.length_bytes().saturating_sub(self.offset).min(pickle_limit(self.file));
        let mut seen_bytes = limit_bytes.min(FIRST_BYTES);
        loop {
            let mut bytes = zeroed(seen_bytes as usize)?;
            self.file.read_at(&mut bytes, self.offset)?;
            let length = pickle_length(&bytes, limit_bytes as usize);
            let bad =
                |e| self.file.bad(format!("{e}; the pickle begins at byte {} of the file", self.offset));
            if let Some(length) = length.map_err(bad)? {
                bytes.truncate(length);
                bytes.shrink_to_fit();
                self.offset = self.offset.saturating_add(length as u64);
                return Ok(bytes);
            }
            if seen_bytes == limit_bytes {
                return Err(self.file.bad(format!(
                    "the pickle at byte {} does not end within {limit_bytes} bytes; the file is truncated, or not a \
                     checkpoint",
                    self.offset
                )));
            }
            seen_bytes = seen_bytes.saturating_mul(2).min(limit_bytes);
        }
    }
}

/// Returns whether a dict that describes a machine says that it is little-endian.
fn is_little_endian(file: &RawFile, pickle: &[u8]) -> Result<bool> {
    let Unpickled { mut arena, root } =
        Unpickled::of(pickle, file.length_bytes()).map_err(|e| file.bad(e))?;
    let Some(Node::Dict(items)) = arena.node(root) else { return Ok(false) };
    for [key, value] in items.clone().as_chunks().0 {
        let key = arena.text(*key).map_err(|e| file.bad(e))?;
        if key.as_deref() == Some("little_endian") && *value == Value::Bool(true) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the keys of the storages, which are a list of strings.
fn storage_keys(file: &RawFile, pickle: &[u8]) -> Result<Vec<String>> {
    let Unpickled { mut arena, root } =
        Unpickled::of(pickle, file.length_bytes()).map_err(|e| file.bad(e))?;
    let list = match arena.node(root) {
        Some(Node::List(list)) => list.clone(),
        _ => return Err(file.bad("its list of storages is not a list")),
    };
    let keys = list.into_iter().map(|key| {
        let key = arena.text(key).map_err(|e| file.bad(e))?;
        key.ok_or_else(|| file.bad("its list of storages has an item that is not a string"))
    });
    keys.collect()
}

/// Returns the offset of each storage's elements. Storages follow each other without gaps, to the end of the file.
fn storage_offsets(
    file: &RawFile,
    storages: &[FileStorage],
    keys: Vec<String>,
    start_bytes: u64,
) -> Result<HashMap<String, u64>> {
    let known: HashMap<&str, &FileStorage> =
        storages.iter().map(|storage| (storage.key.as_str(), storage)).collect();
    let file_bytes = file.length_bytes();
    let mut storage_offsets = HashMap::new();
    let mut at_bytes = start_bytes;
    for key in keys {
        let refused = |what: String| Err(file.bad(format!("storage {key:?} {what}")));
        let Some(&&FileStorage { numel, length_bytes, .. }) = known.get(key.as_str()) else {
            return refused("is in the file, but no tensor uses it".to_owned());
        };
        let elements_at_bytes = at_bytes.saturating_add(8);
        let end_bytes = elements_at_bytes.saturating_add(length_bytes);
        if elements_at_bytes > file_bytes {
            return refused(format!(
                "should begin at byte {at_bytes}, but the file ends at byte {file_bytes}"
            ));
        }
        let mut count = [0; 8];
        file.read_at(&mut count, at_bytes)?;
        let count = u64::from_le_bytes(count);
        if count != numel {
            return refused(format!("has {count} elements at byte {at_bytes}, but {numel} in the pickle"));
        }
        if end_bytes > file_bytes {
            return refused(format!(
                "should be {length_bytes} bytes at offset {elements_at_bytes}, but the file ends at byte {file_bytes}"
            ));
        }
        if storage_offsets.contains_key(&key) {
            return refused("is in the file twice".to_owned());
        }
        storage_offsets.insert(key, elements_at_bytes);
        at_bytes = end_bytes;
    }
    match file_bytes.saturating_sub(at_bytes) {
        0 => Ok(storage_offsets),
        rest => Err(file.bad(format!("{rest} bytes follow the last storage, at byte {at_bytes}"))),
    }
}
