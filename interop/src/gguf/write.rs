//! Writes files.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

#[cfg(doc)]
use stridemap::ErrorKind;
use stridemap::{OnExisting, Result, Tensor};

use super::model::Model;
use crate::file;

/// Options for writing a GGUF file, of version 3. By default, it has no metadata, and replaces an existing file.
///
/// See the [module](crate::gguf) for an example.
#[derive(Clone, Copy, Debug, Default)]
pub struct Export<'a> {
    metadata: Option<&'a BTreeMap<String, String>>,
    types: Option<&'a BTreeMap<String, String>>,
    on_existing: OnExisting,
}

impl<'a> Export<'a> {
    /// Returns the default options.
    #[must_use]
    pub fn new() -> Self {
        Export::default()
    }

    /// Sets the metadata: attributes, as an import of a GGUF file sets them. A text is a string, and what follows `json:` is
    /// a number, a bool or an array. Unless the attribute `gguf.type:KEY` names its type, a whole number is the
    /// first of uint32, int32, uint64 and int64 that can hold it, and others are float32, or float64 if they are too large
    /// for that. Other JSON is a string with its mark. `general.alignment` sets the alignment of the tensors.
    #[must_use]
    pub fn metadata(mut self, metadata: &'a BTreeMap<String, String>) -> Self {
        self.metadata = Some(metadata);
        self
    }

    /// Sets the types of tensors by name, for those whose attribute [`TYPE_KEY`](super::TYPE_KEY) names one: the blocks of
    /// quantized tensors, and long values of the metadata. A type applies only to tensors of `uint8`.
    #[must_use]
    pub fn types(mut self, types: &'a BTreeMap<String, String>) -> Self {
        self.types = Some(types);
        self
    }

    /// Sets whether an existing file may be replaced.
    #[must_use]
    pub fn on_existing(mut self, on_existing: OnExisting) -> Self {
        self.on_existing = on_existing;
        self
    }

    /// Writes tensors and metadata. Views are written in their logical order.
    ///
    /// The file is written under a temporary name and then renamed, so `path` never holds a partial file, and the tensors
    /// may come from the file that is replaced. A symbolic link is replaced, not followed. The file is durable on return.
    /// `progress` is called with the bytes of elements written since the last call.
    ///
    /// If the metadata are those of one of several files, and the tensors are all of the model, the keys that say so are
    /// left out.
    ///
    /// # Errors
    /// [`ErrorKind::BadFile`], before anything is written, for what the format cannot hold: a dtype other than floats of 16
    /// bits or more and signed integers, unless it has a [type](Self::types); more than 4 dimensions; a name that is a
    /// duplicate or has more than 63 bytes; an alignment that is not a power of two or more than 1 MiB; metadata of more
    /// than 256 MiB. [`ErrorKind::AlreadyExists`] with [`OnExisting::Refuse`], and if `path` is not a regular file.
    /// [`ErrorKind::ReadOnly`], [`ErrorKind::Io`], and the errors of reading the elements.
    pub fn write(
        &self,
        path: impl AsRef<Path>,
        tensors: &[(String, Tensor)],
        mut progress: impl FnMut(u64),
    ) -> Result<()> {
        let path = path.as_ref();
        let model = self.model(path, tensors)?;
        file::create(path, self.on_existing, |writer| model.write(path, writer, &mut progress))
    }

    /// Checks what [`write`](Self::write) checks before it writes anything, except whether a file exists. Tensors that are long
    /// values of the metadata are read.
    ///
    /// # Errors
    /// [`ErrorKind::BadFile`] as for [`write`](Self::write), with `path`; the errors of reading the elements.
    pub fn check(&self, path: impl AsRef<Path>, tensors: &[(String, Tensor)]) -> Result<()> {
        self.model(path.as_ref(), tensors).map(drop)
    }

    /// Writes tensors and metadata to any writer, such as a pipe, in one pass and in pieces.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// # use stridemap_interop::gguf;
    /// let mut bytes = Vec::new();
    /// let tensors = [("x".to_owned(), Tensor::from_vec(vec![1i8, 2], &[2])?)];
    /// gguf::Export::new().write_to(&mut bytes, &tensors, |_| ())?;
    /// assert!(bytes.starts_with(b"GGUF\x03\0\0\0"));
    /// # Ok::<(), stridemap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::BadFile`], before anything is written, as for [`write`](Self::write); [`ErrorKind::Io`], whose source
    /// is the error of the writer; the errors of reading the elements.
    pub fn write_to(
        &self,
        mut writer: impl Write,
        tensors: &[(String, Tensor)],
        mut progress: impl FnMut(u64),
    ) -> Result<()> {
        let path = Path::new(file::OUTPUT);
        self.model(path, tensors)?.write(path, &mut writer, &mut progress)
    }

    fn model<'t>(&self, path: &Path, tensors: &'t [(String, Tensor)]) -> Result<Model<'t>> {
        let none = BTreeMap::new();
        let metadata = self.metadata.unwrap_or(&none).clone();
        Model::of(path, metadata, self.types.unwrap_or(&none), tensors)
    }
}
