use super::handle::Store;
use crate::error::Result;
use crate::maintenance::{self, Compacted, Materialized};

impl Store {
    /// Writes sealed storages again without the bytes that no tensor reaches: those of which at least a quarter can be
    /// given back, and a block of 4 KiB. Tensors keep their names, sizes and elements, and share what they shared; their
    /// strides and offsets change, and their storages. `progress` is called with the bytes written since the last call;
    /// [`stats`](Self::stats) says how many there will be.
    ///
    /// First it does what [`gc`](Self::gc) does. Then storages are copied, some 64 MiB or 64 of them to a commit, smaller ones
    /// first, so that the space of some is there for the next; so much is needed beside the store, or the length to be of
    /// the longest storage. The old files go with each commit, or once no snapshot in any process needs them. Each commit
    /// is durable before its old files go, unless the handle was opened with
    /// [`Durability::Process`](crate::Durability::Process): then a power cut may take what was durable before. A tensor that was loaded before keeps its elements, but views of it can no longer be saved
    /// without a copy: [`save_view`](Self::save_view) ends in `Conflict`; load it again.
    ///
    /// A storage that others are changing or that is damaged is left as it was, and
    /// [`Compacted::skipped`] says which and why; mutable and live storages are always left.
    ///
    /// ```
    /// use stridemap::{Store, Tensor};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("all", &Tensor::from_vec(vec![1f32; 100_000], &[1000, 100])?)?;
    /// store.save_view("column", &store.load("all")?.select(1, 7)?)?;
    /// store.remove("all")?;
    /// let compacted = store.compact(|_| ())?;
    /// assert_eq!((compacted.before_bytes, compacted.after_bytes), (400_000, 4_028)); // 28 bytes keep the alignment
    /// assert_eq!(store.load("column")?.stride(), [1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`Store`]. What had been compacted until then stays so, and nothing else has changed.
    pub fn compact(&self, mut progress: impl FnMut(u64)) -> Result<Compacted> {
        self.loader.history.check_process()?;
        maintenance::compact(&self.loader.history, &mut progress)
    }

    /// Copies what tensors reach of external storages into sealed storages of the store, so that it needs no file of others
    /// any more. Tensors keep their names, sizes and elements, and two that shared elements share them still; their strides and
    /// offsets can change, as in [`compact`](Self::compact), and their storages do. `progress` is called with the bytes
    /// written since the last call.
    ///
    /// Before a byte is copied, all files are looked at; each is looked at again after it was copied. Some 64 MiB or 64
    /// storages go to a commit, and each is durable, with [`Durability::Full`](crate::Durability::Full). The files
    /// themselves are left as they are. Where another commit came between, a storage stays external, and
    /// [`Materialized::skipped`] says which.
    ///
    /// # Errors
    /// See [`Store`]; `ExternalRefused` when this handle may not open one of the files, and `ExternalChanged` for one that
    /// is not any more what was adopted. What had been copied and committed until then stays so.
    pub fn materialize(&self, mut progress: impl FnMut(u64)) -> Result<Materialized> {
        self.loader.history.check_process()?;
        maintenance::materialize(&self.loader.history, &mut progress)
    }
}
