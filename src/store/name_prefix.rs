//! Operations on all tensors whose names begin with a prefix.

use super::snapshot::TensorInfo;
use super::transaction::Transaction;
use crate::error::Result;
use crate::generation::Read;

/// Operations on tensors whose names begin with a prefix: any text, or `""` for all tensors.
impl Transaction<'_> {
    /// Returns the headers of the tensors whose names begin with `prefix` in this transaction, by ascending name. A
    /// tensor that was saved in this transaction has a provisional storage id of 2^63 or more.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// let mut txn = store.begin()?;
    /// txn.save("head.bias", &[1f32, 2.])?;
    /// let sizes = txn.iter_tensors("head.")?.map(|info| Ok(info?.header.size().to_vec()));
    /// assert_eq!(sizes.collect::<stridemap::Result<Vec<_>>>()?, [[2]]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Corrupt` for damaged metadata; `Stale`; `Io`. The call and each item can fail.
    pub fn iter_tensors<'a>(
        &'a self,
        prefix: &'a str,
    ) -> Result<impl Iterator<Item = Result<TensorInfo>> + 'a> {
        self.loader.store.check_process()?;
        self.draft.note_prefix(prefix, Read::Headers);
        let entries = self.draft.tensors(prefix)?;
        Ok(entries.map(|entry| entry.map(|(name, record)| TensorInfo::of_record(name, record))))
    }
}
