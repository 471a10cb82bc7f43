//! The nodes of a table's file. They are read once, and kept for all handles of this process.

use std::collections::HashMap;
use std::io;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;

use stridemap_format::{self as format, Node, PAGE_BYTES, Rule, TableRef, Uuid};

use crate::disk::{Access, Disk, DiskFile, FileId, OwnerProcess, is_not_regular, read_again};
use crate::error::{Error, IoContext, Result};

/// The limit on pages that this process keeps, of all tables together: 128 MiB, plus at most 64 MiB for
/// the hints by which a [`Node`] finds a key.
const MAX_KEPT_PAGES: u64 = 1 << 15;

/// The limit on slots of one table. The slot of a page can keep the node that begins on that page. A table with more
/// pages has about a hundred million entries, or is malformed.
const MAX_SLOTS: u64 = 1 << 20;

/// A leaf is kept only if at most this many pages, with its own, are kept. The rest is for inner nodes: a scan reads
/// all leaves, and lookups must still find the inner nodes afterwards.
const MAX_KEPT_LEAF_PAGES: u64 = MAX_KEPT_PAGES / 4 * 3;

/// How many slots are allocated together.
const BLOCK_PAGES: u64 = 64;

/// How many times to try to lock the list of open tables. If all tries fail, the table is opened without sharing it.
const MAX_TRIES: u32 = 100;

/// How many pages this process keeps.
static KEPT_PAGES: AtomicU64 = AtomicU64::new(0);

/// The slots of some consecutive pages.
type Block = Box<[OnceLock<Node>]>;

/// The file of a table. It never changes, so a node that was checked stays valid.
#[derive(Debug)]
pub(super) struct Nodes {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    uuid: Uuid,
    generation: u64,
    page_count: u64,
    kept: Vec<OnceLock<Block>>,
    kept_pages: AtomicU64,
    /// The process that fills the slots. A forked child may inherit a slot that its parent was about to fill.
    owner: OwnerProcess,
}

impl Drop for Nodes {
    fn drop(&mut self) {
        KEPT_PAGES.fetch_sub(*self.kept_pages.get_mut(), Ordering::Relaxed);
    }
}

/// A node that is kept, or that was read for one use because the limit is reached.
pub(super) enum Found<'a> {
    Kept(&'a Node),
    Read(Box<Node>),
}

impl Deref for Found<'_> {
    type Target = Node;

    fn deref(&self) -> &Node {
        match self {
            Found::Kept(node) => node,
            Found::Read(node) => node,
        }
    }
}

impl Nodes {
    /// Opens the file of a table, or returns the one that another handle of this process has open.
    pub(super) fn open(
        disk: &dyn Disk,
        path: PathBuf,
        uuid: Uuid,
        reference: &TableRef,
    ) -> Result<Arc<Self>> {
        /// Locked with `try_lock` only: in a forked child it may stay locked forever.
        static OPEN: Mutex<Option<HashMap<FileId, Weak<Nodes>>>> = Mutex::new(None);
        let file = read_again(|| disk.open(&path, Access::Read)).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => {
                let detail = "the manifest refers to this table, and it does not exist";
                Error::corrupt(&path, format::Error::new(Rule::MetadataFile, detail))
            }
            _ if is_not_regular(&e) => {
                Error::corrupt(&path, format::Error::new(Rule::TableFile, format!("open table: {e}")))
            }
            _ => Error::io("open table", &path, e),
        })?;
        let stat = read_again(|| file.stat()).doing("open table", &path)?;
        if stat.size_bytes != reference.length_bytes() {
            let detail =
                format!("{} bytes, but the manifest says {}", stat.size_bytes, reference.length_bytes());
            return Err(Error::corrupt(&path, format::Error::new(Rule::TableFile, detail)));
        }
        let (generation, page_count) = (reference.generation, reference.page_count);
        let blocks = page_count.min(MAX_SLOTS).div_ceil(BLOCK_PAGES);
        let kept = std::iter::repeat_with(OnceLock::new).take(blocks as usize).collect();
        let (kept_pages, owner) = (AtomicU64::new(0), OwnerProcess::current());
        let nodes = Nodes { file, path, uuid, generation, page_count, kept, kept_pages, owner };
        let mut locked = (0..MAX_TRIES).filter_map(|tries| {
            if tries > 0 {
                thread::yield_now();
            }
            OPEN.try_lock().ok()
        });
        let Some(mut open) = locked.next() else { return Ok(Arc::new(nodes)) };
        let open = open.get_or_insert_default();
        if let Some(shared) = open.get(&stat.id()).and_then(Weak::upgrade)
            && shared.is_same(&nodes)
        {
            return Ok(shared);
        }
        let nodes = Arc::new(nodes);
        open.retain(|_, nodes| nodes.strong_count() > 0);
        open.insert(stat.id(), Arc::downgrade(&nodes));
        Ok(nodes)
    }

    fn is_same(&self, other: &Self) -> bool {
        let key = |nodes: &Self| (nodes.uuid, nodes.generation, nodes.page_count, nodes.owner);
        self.path == other.path && key(self) == key(other)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn page_count(&self) -> u64 {
        self.page_count
    }

    /// Returns a node, which is then kept if it fits in the limit.
    pub(super) fn get(&self, page: u64) -> Result<Found<'_>> {
        let Some(slot) = self.slot(page) else { return Ok(Found::Read(Box::new(self.read(page)?))) };
        if let Some(node) = slot.get() {
            return Ok(Found::Kept(node));
        }
        let node = self.read(page)?;
        let pages = node.pages();
        let limit = if node.level() == 0 { MAX_KEPT_LEAF_PAGES } else { MAX_KEPT_PAGES };
        if KEPT_PAGES.fetch_add(pages, Ordering::Relaxed) + pages > limit {
            KEPT_PAGES.fetch_sub(pages, Ordering::Relaxed);
            return Ok(Found::Read(Box::new(node)));
        }
        let mut is_kept = false;
        let kept = slot.get_or_init(|| {
            is_kept = true;
            node
        });
        if is_kept {
            self.kept_pages.fetch_add(pages, Ordering::Relaxed);
        } else {
            // Another thread was faster.
            KEPT_PAGES.fetch_sub(pages, Ordering::Relaxed);
        }
        Ok(Found::Kept(kept))
    }

    fn slot(&self, page: u64) -> Option<&OnceLock<Node>> {
        let block = self.kept.get((page / BLOCK_PAGES) as usize)?;
        let block = block.get_or_init(|| (0..BLOCK_PAGES).map(|_| OnceLock::new()).collect());
        block.get((page % BLOCK_PAGES) as usize)
    }

    /// Announces that pages will be read soon, if that is of use. They are read from memory if they are kept.
    pub(super) fn prefetch(&self, pages: Range<u64>) {
        let end = pages.end.min(self.page_count);
        if self.file.reads_ahead() && pages.start < end {
            self.file.prefetch(pages.start * PAGE_BYTES as u64..end * PAGE_BYTES as u64);
        }
    }

    /// Reads a node from the file.
    ///
    /// # Errors
    /// `Corrupt` if it is damaged or outside the file; `Io`.
    pub(super) fn read(&self, page: u64) -> Result<Node> {
        if page >= self.page_count {
            let detail = format!("page {page} of a table of {} pages", self.page_count);
            return Err(self.corrupt(page, format::Error::new(Rule::NodeChild, detail)));
        }
        let mut bytes = vec![0; PAGE_BYTES];
        self.read_at(&mut bytes, page)?;
        let pages = Node::page_count(&bytes).min(self.page_count - page);
        if pages > 1 {
            bytes.resize(pages as usize * PAGE_BYTES, 0);
            self.read_at(&mut bytes[PAGE_BYTES..], page + 1)?;
        }
        Node::decode(bytes.into(), self.uuid, self.generation, page).map_err(|e| self.corrupt(page, e))
    }

    fn read_at(&self, bytes: &mut [u8], page: u64) -> Result<()> {
        let read = read_again(|| self.file.read_exact_at(bytes, page * PAGE_BYTES as u64));
        read.map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => {
                self.corrupt(page, format::Error::new(Rule::TableFile, "the file became shorter"))
            }
            _ => Error::io("read table", &self.path, e),
        })
    }

    /// Returns the error for a node that breaks a rule.
    pub(super) fn corrupt(&self, page: u64, e: format::Error) -> Error {
        Error::corrupt(&self.path, e.at(page.saturating_mul(PAGE_BYTES as u64)))
    }
}
