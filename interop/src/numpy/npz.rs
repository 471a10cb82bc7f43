//! NumPy's `.npz` format: a zip file of named arrays.
//!
//! ```
//! use stridemap_interop::npz;
//! use stridemap::{Store, Tensor};
//!
//! # let dir = tempfile::tempdir()?;
//! # let dir = dir.path();
//! let points = Tensor::from_vec(vec![1f32, 4., 2., 1., 3., 5.], &[3, 2])?;
//! let tensors = [("points".to_owned(), points.clone()), ("points_t".to_owned(), points.t()?)];
//! let path = dir.join("points.npz");
//! npz::Export::new().write(&path, &tensors, |_| ())?;
//!
//! let store = Store::create(dir.join("points.smap"))?;
//! stridemap_interop::import(&store, &path, "")?;
//! assert_eq!(store.load("points_t")?.read::<f32>()?, [1., 2., 3., 4., 1., 5.]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::BTreeSet;
use std::io::Write as _;
use std::iter;
use std::path::Path;
use std::sync::Arc;

use stridemap::{Error, OnExisting, Result, Tensor};
use zip::result::ZipError;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::array::{Array, budget};
use super::header::{ArrayHeader, MAGIC, PREAMBLE_BYTES, Preamble};
use super::npy::{Order, arrange};
use super::text::TextEncoding;
use crate::budget::Budget;
use crate::contents::Contents;
use crate::file::{self, RawFile, check_elements};
use crate::foreign_storage::ForeignStorage;
use crate::zip::Member;
use crate::{FileFormat, ForeignOptions};

/// The suffix that members add to the names of arrays.
const ENDING: &str = ".npy";

/// The alignment of uncompressed members, so that they can be mapped.
const ALIGNMENT_BYTES: u16 = 64;

/// The length from which a member gets the long fields of zip64. It is below 4 GiB, because deflating can make a member
/// slightly longer.
const LARGE_BYTES: u64 = 0xf000_0000;

/// How the arrays of a file are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Packing {
    /// Uncompressed, each at a multiple of 64 bytes.
    #[default]
    Stored,
    /// Compressed, as by `numpy.savez_compressed`.
    Deflated,
}

/// Reads the headers of all arrays, and checks them against the members.
///
/// A string array without dimensions becomes an attribute. Members that are not arrays, which `numpy.load` would return
/// as bytes, are refused, so that nothing is lost silently. An empty member with the name of a directory is ignored.
pub(crate) fn read(file: &Arc<RawFile>, members: Vec<Member>, options: ForeignOptions) -> Result<Contents> {
    let mut contents = Contents::new(FileFormat::Npz);
    let mut budget = budget(file);
    for member in members {
        if member.name.ends_with('/') && member.unpacked_bytes == 0 {
            continue;
        }
        let name = member.name.strip_suffix(ENDING).unwrap_or(&member.name).to_owned();
        if let Err(e) = read_member(file, &member, &name, options, &mut budget, &mut contents) {
            contents.skip(options, name, e)?;
        }
    }
    Ok(contents)
}

/// Reads the header of an array, and checks it against the member.
fn read_member(
    file: &Arc<RawFile>,
    member: &Member,
    name: &str,
    options: ForeignOptions,
    budget: &mut Budget,
    contents: &mut Contents,
) -> Result<()> {
    let bad = |what| file.bad(format!("member {:?} of the zip file: {what}", member.name));
    let mut preamble = [0; PREAMBLE_BYTES];
    if member.unpacked_bytes >= PREAMBLE_BYTES as u64 {
        member.unpack(file).read_exact(&mut preamble)?;
    }
    if !preamble.starts_with(&MAGIC) {
        return Err(bad("it is not a NumPy array; remove it, for example with zip -d".to_owned()));
    }
    let preamble = Preamble::parse(preamble).map_err(bad)?;
    let mut header = vec![0; preamble.header_bytes as usize];
    let mut unpacked = member.unpack(file);
    unpacked.skip(preamble.start_bytes)?;
    unpacked.read_exact(&mut header)?;
    let header = preamble.text(header).map_err(bad)?;
    let header = ArrayHeader::parse(&header).map_err(bad)?;
    let rest_bytes = member.unpacked_bytes.saturating_sub(preamble.elements_offset());
    if let Some((encoding, length_bytes)) = TextEncoding::of(&header) {
        check_elements(rest_bytes, length_bytes).map_err(bad)?;
        if contents.attributes.contains_key(name) {
            return Err(bad("another text has the same name".to_owned()));
        }
        // Both the bytes and the decoded text take memory.
        let length = usize::try_from(rest_bytes).unwrap_or(usize::MAX);
        budget.charge(length.saturating_mul(2)).map_err(bad)?;
        let mut bytes = vec![0; length];
        unpacked.read_exact(&mut bytes)?;
        let text = encoding.decode(bytes).map_err(bad)?;
        contents.attributes.insert(name.to_owned(), text);
        return Ok(());
    }
    let array = Array::of(&header, options, budget).map_err(bad)?;
    check_elements(rest_bytes, array.length_bytes).map_err(bad)?;
    let storage = ForeignStorage::of_member(file, member.clone(), preamble.elements_offset());
    array.add_to(contents, name, storage, bad);
    Ok(())
}

/// Options for writing a `.npz` file. By default it is row-major and uncompressed, and replaces an existing file.
///
/// ```
/// use stridemap::Tensor;
/// use stridemap_interop::npz::{self, Packing};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("zeros.npz");
/// let zeros = [("zeros".to_owned(), Tensor::zeros(stridemap::DType::F32, &[1000])?)];
/// npz::Export::new().packing(Packing::Deflated).write(&path, &zeros, |_| ())?;
/// assert!(std::fs::metadata(&path)?.len() < 400);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Export {
    order: Order,
    packing: Packing,
    on_existing: OnExisting,
}

impl Export {
    /// Returns the default options.
    #[must_use]
    pub fn new() -> Self {
        Export::default()
    }

    /// Sets the order of the elements.
    #[must_use]
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Sets whether the arrays are compressed.
    #[must_use]
    pub fn packing(mut self, packing: Packing) -> Self {
        self.packing = packing;
        self
    }

    /// Sets whether an existing file may be replaced.
    #[must_use]
    pub fn on_existing(mut self, on_existing: OnExisting) -> Self {
        self.on_existing = on_existing;
        self
    }

    /// Writes tensors as a `.npz` file, each under its name and in the format of
    /// [`npy::Export`](super::npy::Export::write). Elements are streamed, so they need not fit in memory. The same
    /// tensors always produce the same file.
    ///
    /// Programs that unpack zip files take the names of members for paths. Names that begin with `/` or a drive letter,
    /// or contain `..` as a part or a backslash, are therefore changed, so that no file is unpacked outside the
    /// directory that the user chose. Returns the changed names: that of the tensor, and that of the array.
    ///
    /// ```
    /// # use stridemap::Tensor;
    /// # use stridemap_interop::npz;
    /// # let dir = tempfile::tempdir()?;
    /// let tensors = [("../x".to_owned(), Tensor::from_vec(vec![1u8], &[1])?)];
    /// let changed = npz::Export::new().write(dir.path().join("x.npz"), &tensors, |_| ())?;
    /// assert_eq!(changed, [("../x".to_owned(), "_/x".to_owned())]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`npy::Export`](super::npy::Export::write), and `BadFile`, before anything is written, for a
    /// duplicate name, a name with a NUL, or a name that NumPy would confuse with another: `x.npy` beside `x`.
    pub fn write(
        &self,
        path: impl AsRef<Path>,
        tensors: &[(String, Tensor)],
        mut progress: impl FnMut(u64),
    ) -> Result<Vec<(String, String)>> {
        let path = path.as_ref();
        let names = member_names(tensors).map_err(|what| file::unwritable(path, what))?;
        let arrays = tensors
            .iter()
            .map(|(name, tensor)| arrange(path, &format!("tensor {name:?}: "), tensor, self.order));
        let arrays = arrays.collect::<Result<Vec<_>>>()?;
        let failed = |e: ZipError| match e {
            ZipError::Io(e) => Error::io("export", path, e),
            e => file::unwritable(path, e.to_string()),
        };
        let method = match self.packing {
            Packing::Stored => CompressionMethod::Stored,
            Packing::Deflated => CompressionMethod::Deflated,
        };
        file::create(path, self.on_existing, |writer| {
            let mut zip = ZipWriter::new(writer);
            for ((name, (_, tensor)), array) in names.iter().zip(tensors).zip(&arrays) {
                let options = SimpleFileOptions::default()
                    .compression_method(method)
                    .with_alignment(ALIGNMENT_BYTES)
                    .large_file(tensor.nbytes() as u64 >= LARGE_BYTES);
                zip.start_file(format!("{name}{ENDING}"), options).map_err(failed)?;
                zip.write_all(&array.header).map_err(|e| failed(e.into()))?;
                file::write_elements(path, &mut zip, &array.elements, &mut progress)?;
            }
            zip.finish().map(drop).map_err(failed)
        })?;
        let pairs = tensors.iter().map(|(name, _)| name.clone()).zip(names);
        Ok(pairs.filter(|(name, member)| name != member).collect())
    }
}

/// Returns the names of the arrays.
fn member_names(tensors: &[(String, Tensor)]) -> Result<Vec<String>, String> {
    let mut given = BTreeSet::new();
    for (name, _) in tensors {
        if !given.insert(name.as_str()) {
            return Err(format!("the name {name:?} is given twice"));
        }
        if name.contains('\0') {
            return Err(format!("the name {name:?} contains a NUL, which would end it"));
        }
    }
    if let Some(name) =
        given.iter().find(|name| name.strip_suffix(ENDING).is_some_and(|name| given.contains(name)))
    {
        return Err(format!("NumPy would confuse the name {name:?} with the one without {ENDING:?}"));
    }
    let mut taken: BTreeSet<String> =
        given.into_iter().filter(|name| within_directory(name) == *name).map(str::to_owned).collect();
    let mut member_name = |name: &str| {
        let within = within_directory(name);
        if within == name {
            return within;
        }
        let candidates = (2u64..).map(|number| format!("{within}_{number}"));
        let is_free = |name: &String| {
            let without = name.strip_suffix(ENDING).unwrap_or(name);
            ![name, without, &format!("{name}{ENDING}")].into_iter().any(|name| taken.contains(name))
        };
        let free = iter::once(within.clone()).chain(candidates).find(is_free).unwrap_or(within);
        taken.insert(free.clone());
        free
    };
    Ok(tensors.iter().map(|(name, _)| member_name(name)).collect())
}

/// Returns a name as a path that does not lead out of a directory, on any system.
fn within_directory(name: &str) -> String {
    let name = name.replace('\\', "_");
    let relative = name.trim_start_matches('/');
    let relative = match relative.as_bytes() {
        [letter, b':', ..] if letter.is_ascii_alphabetic() => relative.replacen(':', "_", 1),
        _ => relative.to_owned(),
    };
    let parts = relative.split('/').map(|part| if part == ".." { "_" } else { part });
    let within = parts.collect::<Vec<_>>().join("/");
    if within.is_empty() { "_".repeat(name.len().min(1)) } else { within }
}
