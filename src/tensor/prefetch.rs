//! Hints to the kernel about the bytes of a view.

use super::Tensor;
use super::copy::MAX_GAP_BYTES;
use crate::layout::for_each_range;
use crate::storage::{Advice, Hint, READ_AHEAD_GAP_BYTES, READ_AHEAD_RANGE_BYTES, READ_AHEAD_WINDOW_BYTES};

/// The bytes of one hint. Of a longer range, the kernel may read only the beginning: by default 128 KiB, if the disk
/// states no other limit.
const HINT_BYTES: u64 = 64 << 10;

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
