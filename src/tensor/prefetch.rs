//! Reads of the bytes of views ahead of their use, and hints to the kernel about them.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::Tensor;
use super::copy::MAX_GAP_BYTES;
use crate::error::{Context, Result};
use crate::layout::for_each_range;
use crate::parallel;
use crate::storage::{
    Advice, Hint, READ_AHEAD_GAP_BYTES, READ_AHEAD_RANGE_BYTES, READ_AHEAD_WINDOW_BYTES, Storage,
};

/// The bytes of one hint. Of a longer range, the kernel may read only the beginning: by default 128 KiB, if the disk
/// states no other limit.
const HINT_BYTES: u64 = 64 << 10;

/// How many bytes a thread reads at a time, and the alignment of where it begins.
const PIECE_BYTES: u64 = 4 << 20;

/// A shorter part of a range is read with the piece before or after it. The kernel reads so much at once: a huge page.
const MIN_PIECE_BYTES: u64 = 2 << 20;

/// The number of threads that read ahead. They wait for the disk, so there may be more of them than processors.
const THREADS: usize = 4;

/// Hints to the kernel about how elements on disk will be accessed. They never change a result, so they return no
/// error: the kernel may ignore them. They do nothing for a tensor on the heap.
impl Tensor {
    /// Asks the kernel to read the elements into the page cache, so that a later access need not wait for the disk.
    ///
    /// Of a store that is not in a [file system](crate::replica), it asks for at most 64 MiB.
    ///
    /// Only the bytes of this view are read, and gaps of at most 16 KiB between them. This does not wait until they are
    /// read, but it does wait while the queue of the disk is full. Bytes that are in the page cache already are not
    /// read again. A tensor that is larger than the free memory should be prefetched and read in parts.
    ///
    /// ```
    /// # use stridemap::{Store, Tensor, ix};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("frames", &Tensor::from_vec(vec![1f32; 64 * 1024], &[64, 1024])?)?;
    /// let sample = store.load("frames")?.index(ix![..;16])?; // every 16th frame
    /// sample.prefetch();
    /// // ... do something else ...
    /// assert_eq!(sample.read::<f32>()?.len(), 4 * 1024);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prefetch(&self) {
        let storage = self.storage();
        let (gap_bytes, piece_bytes, mut left_bytes) = match storage.reads_ahead() {
            true => (READ_AHEAD_GAP_BYTES, READ_AHEAD_RANGE_BYTES, READ_AHEAD_WINDOW_BYTES),
            false => (MAX_GAP_BYTES as u64, HINT_BYTES, u64::MAX),
        };
        let inside = for_each_range(self.header(), storage.length_bytes(), gap_bytes, |range| {
            let mut start = range.start;
            while start < range.end && left_bytes > 0 {
                let end = range.end.min(start + piece_bytes);
                storage.advise(start..end, Hint::WillNeed);
                left_bytes = left_bytes.saturating_sub(end - start);
                start = end;
            }
        });
        debug_assert!(inside.is_ok(), "{self:?} leaves its storage");
    }

    /// Reads the elements of many tensors into the page cache, and returns when they are there, so that a later access to
    /// any of them does not wait for the disk. Use it where that wait should be at one known time, before a whole model is
    /// used in whatever order. A model that is in the page cache needs none: this then takes the time of a pass over it.
    ///
    /// The bytes are read in the order in which they are on the disk, by several threads, and those that contiguous
    /// tensors share once. As with [`prefetch`](Self::prefetch), short gaps are read too. Elements that are mapped need no copy, and
    /// touching them is no page fault then. It takes at most 32 MiB of memory. Tensors that are larger than the free memory
    /// should be read in parts: what is read last would replace what was read first. If a handle
    /// [verifies](crate::StoreOptions::verify_on_read) what it reads, this verifies the elements.
    ///
    /// `progress` is called with the bytes that were read since the last call.
    ///
    /// Elements on the heap need no read. Of stores in a [file system of yours](crate::replica), this only asks for the
    /// elements, as `prefetch` does.
    ///
    /// ```
    /// # use stridemap::{Store, Tensor};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// # store.save("encoder.weight", &[1f32, 2.])?;
    /// # store.save("encoder.bias", &[3f32])?;
    /// let snapshot = store.snapshot();
    /// let tensors = snapshot.iter_loaded("encoder.")?.map(|entry| Ok(entry?.1));
    /// let tensors = tensors.collect::<stridemap::Result<Vec<_>>>()?;
    /// let mut read_bytes = 0;
    /// Tensor::prefetch_all(&tensors, |bytes| read_bytes += bytes)?;
    /// assert_eq!(read_bytes, 12);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io); [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) for a file that became
    /// shorter, and for a chunk that was changed if the handle verifies what it reads; [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory).
    pub fn prefetch_all<'a>(
        tensors: impl IntoIterator<Item = &'a Tensor>,
        mut progress: impl FnMut(u64),
    ) -> Result<()> {
        let mut located: Vec<_> = tensors.into_iter().filter_map(Located::of).collect();
        located.sort_unstable_by_key(|located| located.at);
        let thread_count = parallel::waiting_thread_count(THREADS);
        let spare = Mutex::<Vec<Vec<u8>>>::default();
        let lock = || spare.lock().unwrap_or_else(PoisonError::into_inner);
        let read = parallel::in_order(
            thread_count,
            |push| {
                let mut pieces = Pieces { joined: None, push };
                located.iter().try_for_each(|located| pieces.add(located.tensor))?;
                pieces.finish()
            },
            |(storage, range): Piece| {
                let mut buffer = lock().pop().unwrap_or_default();
                let fetched = storage.fetch(range.clone(), &mut buffer);
                lock().push(buffer);
                fetched.map(|()| range.end - range.start)
            },
            |read_bytes| {
                progress(read_bytes?);
                Ok(())
            },
        );
        read.context("prefetch")
    }

    /// Tells the kernel how the elements will be accessed: how far it should read ahead.
    ///
    /// The advice applies to the pages from the first element of this view to the last, for all tensors of this process
    /// on these pages, until they get other advice. If the store is not mapped, or the storage is mutable or live, the
    /// advice applies instead to all reads of this storage's file by [`read`](Self::read) and related methods, through
    /// the same handle. Each range that has its own advice counts as a mapping, and the kernel allows a process 65,530
    /// mappings by default. So advise a whole tensor, not each row.
    ///
    /// ```
    /// # use stridemap::{Advice, Store, Tensor};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("embeddings", &Tensor::from_vec(vec![1f32; 64 * 1024], &[64, 1024])?)?;
    /// let embeddings = store.load("embeddings")?;
    /// embeddings.advise(Advice::Random); // rows are looked up one by one
    /// assert_eq!(embeddings.select(0, 17)?.read::<f32>()?.len(), 1024);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn advise(&self, advice: Advice) {
        if self.numel() > 0
            && let Ok(span) = self.byte_span("advise")
        {
            self.storage().advise(span.start as u64..span.end as u64, Hint::Access(advice));
        }
    }
}

/// A tensor with elements on disk, and where they begin: in which file, and at which byte of it.
struct Located<'a> {
    at: ((u64, u64), u64),
    tensor: &'a Tensor,
}

impl<'a> Located<'a> {
    /// Returns `None` for a tensor without elements on disk.
    fn of(tensor: &'a Tensor) -> Option<Self> {
        let (file, start) = tensor.storage().place()?;
        let first = tensor.header().byte_range()?.start;
        Some(Located { at: (file, start.saturating_add(first)), tensor })
    }
}

/// Bytes of a storage that one thread reads.
type Piece = (Arc<Storage>, Range<u64>);

/// Joins ranges that are near each other, and divides them into pieces.
struct Pieces<'a> {
    /// The last range.
    joined: Option<Piece>,
    push: &'a mut dyn FnMut(Piece) -> Result<()>,
}

impl Pieces<'_> {
    fn add(&mut self, tensor: &Tensor) -> Result<()> {
        let storage = tensor.storage();
        if storage.reads_ahead() {
            tensor.prefetch();
            return Ok(());
        }
        let mut added = Ok(());
        let inside = for_each_range(tensor.header(), storage.length_bytes(), MAX_GAP_BYTES as u64, |range| {
            if added.is_ok() {
                added = self.add_range(storage, range);
            }
        });
        debug_assert!(inside.is_ok(), "{tensor:?} leaves its storage");
        added
    }

    fn add_range(&mut self, storage: &Arc<Storage>, range: Range<u64>) -> Result<()> {
        if let Some((last, joined)) = &mut self.joined
            && Arc::ptr_eq(last, storage)
            && (joined.start..=joined.end.saturating_add(MAX_GAP_BYTES as u64)).contains(&range.start)
        {
            joined.end = joined.end.max(range.end);
            return Ok(());
        }
        self.finish()?;
        self.joined = Some((Arc::clone(storage), range));
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let Some((storage, mut rest)) = self.joined.take() else { return Ok(()) };
        while rest.start < rest.end {
            let mut end = (rest.start / PIECE_BYTES + 1) * PIECE_BYTES;
            if end - rest.start < MIN_PIECE_BYTES {
                end += PIECE_BYTES;
            }
            if end + MIN_PIECE_BYTES > rest.end {
                end = rest.end;
            }
            (self.push)((Arc::clone(&storage), rest.start..end))?;
            rest.start = end;
        }
        Ok(())
    }
}
