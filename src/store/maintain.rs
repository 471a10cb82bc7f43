use super::handle::Store;
use crate::error::Result;
use crate::maintenance::{self, Compacted, Materialized};

impl Store {
    /// Rewrites sealed storages, dropping the bytes that no tensor reaches. A storage is rewritten if that frees at
    /// least a quarter of it, and at least a block of 4 KiB. Tensors keep their names, sizes and elements, and share
    /// elements as before; their strides, offsets and storages change. `progress` is called with the bytes written
    /// since the last call; [`stats`](Self::stats) returns their total in advance.
    ///
    /// It first collects garbage, as [`gc`](Self::gc) does. Then it copies storages, about 64 MiB or 64 of them per
    /// commit, smaller ones first, so that the space they free is available to the next. It needs that much free
    /// space, or the final length of the longest storage. Old files are deleted with each commit, or once no snapshot
    /// in any process needs them. Each commit is durable before its old files are deleted, unless the handle was
    /// opened with [`Durability::Process`](crate::Durability::Process): then a power cut may lose what was durable
    /// before.
    ///
    /// A tensor that was loaded before keeps its elements, but [`save_view`](Self::save_view) of it or of its views
    /// now fails with `Conflict`: load it again.
    ///
    /// A storage that is damaged or that others are changing is left unchanged, and [`Compacted::skipped`] gives the
    /// reason. Mutable and live storages are never rewritten.
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
    /// See [`Store`]. What was compacted before the error stays compacted, and nothing else has changed.
    pub fn compact(&self, mut progress: impl FnMut(u64)) -> Result<Compacted> {
        let history = &self.loader.history;
        history.check_process()?;
        history.watched(maintenance::compact(history, &mut progress))
    }

    /// Copies the bytes that tensors reach in external storages into sealed storages of the store, so that the store
    /// no longer needs external files. Tensors keep their names, sizes and elements, and share elements as before;
    /// their storages change, and their strides and offsets can change, as in [`compact`](Self::compact). `progress`
    /// is called with the bytes written since the last call.
    ///
    /// All external files are checked before the first byte is copied, and each is checked again after it is copied.
    /// Each commit copies about 64 MiB or 64 storages, and is durable with
    /// [`Durability::Full`](crate::Durability::Full). The external files are not changed. If another commit
    /// interferes, a storage stays external, and [`Materialized::skipped`] lists it.
    ///
    /// # Errors
    /// See [`Store`]; `ExternalRefused` if this handle may not open one of the files; `ExternalChanged` if a file
    /// changed since it was adopted. What was committed before the error stays.
    pub fn materialize(&self, mut progress: impl FnMut(u64)) -> Result<Materialized> {
        let history = &self.loader.history;
        history.check_process()?;
        history.watched(maintenance::materialize(history, &mut progress))
    }
}
