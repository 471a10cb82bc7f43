//! A file in blocks: what a read returns, what is durable, and every version in between.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::io;
use std::sync::{Arc, OnceLock};

/// The bytes that a disk writes at once, with their hash. `None` is all zeros.
type Block = Option<Arc<(u64, Box<[u8]>)>>;

/// The bytes and the length of a file at one moment.
#[derive(Clone, Debug, Default)]
struct Content {
    length_bytes: u64,
    /// The blocks by number. Blocks past the last one are zeros.
    blocks: Vec<Block>,
}

impl Content {
    fn block(&self, number: usize) -> Block {
        self.blocks.get(number).cloned().flatten()
    }

    fn set_block(&mut self, number: usize, block: Block) {
        if self.blocks.len() <= number {
            self.blocks.resize(number + 1, None);
        }
        if let Some(slot) = self.blocks.get_mut(number) {
            *slot = block;
        }
    }
}

/// Which versions of an unsynced file survive. Version 0 is the durable one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) length: usize,
    /// In the order of [`File::dirty_blocks`].
    pub(super) blocks: Vec<usize>,
}

#[derive(Clone, Debug)]
pub(super) struct File {
    block_bytes: usize,
    live: Content,
    durable: Content,
    /// Every version of a block since the last sync.
    written: BTreeMap<usize, Vec<Block>>,
    /// Every length since the last sync.
    lengths: Vec<u64>,
    fingerprint: OnceLock<u64>,
}

impl File {
    pub(super) fn new(block_bytes: usize) -> Self {
        let (live, durable) = Default::default();
        let fingerprint = OnceLock::new();
        File { block_bytes, live, durable, written: BTreeMap::new(), lengths: Vec::new(), fingerprint }
    }

    pub(super) fn length_bytes(&self) -> u64 {
        self.live.length_bytes
    }

    pub(super) fn read(&self, buf: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        if offset_bytes.saturating_add(buf.len() as u64) > self.live.length_bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (number, within, part) in pieces(self.block_bytes, offset_bytes, buf.len()) {
            let Some(into) = buf.get_mut(part) else { break };
            let block = self.live.blocks.get(number).and_then(Option::as_ref);
            match block.and_then(|block| block.1.get(within..within + into.len())) {
                Some(bytes) => into.copy_from_slice(bytes),
                None => into.fill(0),
            }
        }
        Ok(())
    }

    pub(super) fn write(&mut self, bytes: &[u8], offset_bytes: u64) {
        for (number, within, part) in pieces(self.block_bytes, offset_bytes, bytes.len()) {
            if let Some(bytes) = bytes.get(part) {
                self.patch(number, within, |at| at.copy_from_slice(bytes), bytes.len());
            }
        }
        let end = offset_bytes + bytes.len() as u64;
        if end > self.live.length_bytes {
            self.note_length(end);
        }
    }

    pub(super) fn set_length(&mut self, length_bytes: u64) {
        let cut = self.live.length_bytes.saturating_sub(length_bytes) as usize;
        // Bytes that are cut off read as zeros if the file grows again. The zeros are a later version of the block,
        // like any other.
        for (number, within, part) in pieces(self.block_bytes, length_bytes, cut) {
            self.patch(number, within, |at| at.fill(0), part.len());
        }
        if length_bytes != self.live.length_bytes {
            self.note_length(length_bytes);
        }
    }

    fn note_length(&mut self, length_bytes: u64) {
        self.live.length_bytes = length_bytes;
        self.lengths.push(length_bytes);
        self.fingerprint = OnceLock::new();
    }

    fn patch(&mut self, number: usize, within: usize, patch: impl FnOnce(&mut [u8]), length: usize) {
        let before = self.live.block(number);
        let mut bytes = match &before {
            Some(block) => block.1.clone(),
            None => vec![0; self.block_bytes].into_boxed_slice(),
        };
        if let Some(at) = bytes.get_mut(within..within + length) {
            patch(at);
        }
        let after = block_of(bytes);
        if after != before {
            self.live.set_block(number, after.clone());
            self.written.entry(number).or_default().push(after);
            self.fingerprint = OnceLock::new();
        }
    }

    pub(super) fn sync(&mut self) {
        if !self.is_synced() {
            self.durable = self.live.clone();
            self.written.clear();
            self.lengths.clear();
        }
    }

    pub(super) fn is_synced(&self) -> bool {
        self.written.is_empty() && self.lengths.is_empty()
    }

    /// Returns the number of versions of the length that a power cut may leave.
    pub(super) fn length_versions(&self) -> usize {
        1 + self.lengths.len()
    }

    /// Returns the length of a version.
    pub(super) fn length_of(&self, version: usize) -> u64 {
        version
            .checked_sub(1)
            .and_then(|at| self.lengths.get(at))
            .copied()
            .unwrap_or(self.durable.length_bytes)
    }

    /// Returns each block with several versions, as its number and its number of versions, in ascending order. Blocks
    /// past `length_bytes` are left out.
    pub(super) fn dirty_blocks(&self, length_bytes: u64) -> impl Iterator<Item = (usize, usize)> + '_ {
        let end = length_bytes.div_ceil(self.block_bytes as u64) as usize;
        self.written.range(..end).map(|(&number, versions)| (number, 1 + versions.len()))
    }

    /// Returns the file that a power cut leaves.
    pub(super) fn cut(&self, kept: &Kept) -> File {
        let mut left = self.durable.clone();
        left.length_bytes = self.length_of(kept.length);
        for ((number, _), &version) in self.dirty_blocks(left.length_bytes).zip(&kept.blocks) {
            let versions = self.written.get(&number);
            if let Some(block) = version.checked_sub(1).and_then(|at| versions?.get(at)) {
                left.set_block(number, block.clone());
            }
        }
        let blocks = left.length_bytes.div_ceil(self.block_bytes as u64) as usize;
        left.blocks.truncate(blocks);
        let within = (left.length_bytes % self.block_bytes as u64) as usize;
        if within > 0
            && let Some(last) = left.blocks.get_mut(blocks - 1)
            && let Some(block) = last
        {
            let mut bytes = block.1.clone();
            bytes.iter_mut().skip(within).for_each(|byte| *byte = 0);
            *last = block_of(bytes);
        }
        File { live: left.clone(), durable: left, ..File::new(self.block_bytes) }
    }

    /// Returns a fingerprint. Files with the same contents have the same fingerprint.
    pub(super) fn fingerprint(&self) -> u64 {
        *self.fingerprint.get_or_init(|| {
            let mut hasher = DefaultHasher::new();
            self.live.length_bytes.hash(&mut hasher);
            for (number, block) in self.live.blocks.iter().enumerate() {
                if let Some(block) = block {
                    (number, block.0).hash(&mut hasher);
                }
            }
            hasher.finish()
        })
    }
}

fn block_of(bytes: Box<[u8]>) -> Block {
    if bytes.iter().all(|&byte| byte == 0) {
        return None;
    }
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    Some(Arc::new((hasher.finish(), bytes)))
}

/// Splits a range of a file by blocks. Returns each block's number, the offset of the range in the block, and the
/// part of the range that is in the block.
fn pieces(
    block_bytes: usize,
    offset_bytes: u64,
    length: usize,
) -> impl Iterator<Item = (usize, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == length {
            return None;
        }
        let at = offset_bytes as usize + done;
        let within = at % block_bytes;
        let part = done..length.min(done + block_bytes - within);
        done = part.end;
        Some((at / block_bytes, within, part))
    })
}
