//! The formats of other libraries, and how they are told apart.

use std::fmt;

use super::{gguf, safetensors, torch};

/// The formats that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileFormat {
    /// `.safetensors`: a JSON header, then elements.
    Safetensors,
    /// `.index.json`: an index that says which `.safetensors` or `.bin` file beside it holds which tensor. These files
    /// are opened as one.
    ShardIndex,
    /// `.npy`: one NumPy array.
    Npy,
    /// `.npz`: a zip file of NumPy arrays.
    Npz,
    /// `.pt`, `.pth`: a PyTorch checkpoint.
    PyTorch,
    /// `.gguf`: a model of llama.cpp.
    Gguf,
}

impl FileFormat {
    /// Returns `safetensors`, `shard-index`, `npy`, `npz`, `pytorch` or `gguf`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            FileFormat::Safetensors => "safetensors",
            FileFormat::ShardIndex => "shard-index",
            FileFormat::Npy => "npy",
            FileFormat::Npz => "npz",
            FileFormat::PyTorch => "pytorch",
            FileFormat::Gguf => "gguf",
        }
    }

    /// Returns the format of a file that begins with these bytes, or what it is instead.
    pub(super) fn of(magic: &[u8]) -> Result<Self, &'static str> {
        let is_header = magic.get(8).is_some_and(|byte| b"{ \t\r\n".contains(byte));
        match magic {
            _ if safetensors::is_file(magic, u64::MAX) => Ok(FileFormat::Safetensors),
            [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => Ok(FileFormat::Npy),
            _ if magic.starts_with(gguf::MAGIC) => Ok(FileFormat::Gguf),
            [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] => Ok(FileFormat::Npz),
            _ if torch::is_pickle(magic) => Ok(FileFormat::PyTorch),
            _ if safetensors::is_index(magic) => Ok(FileFormat::ShardIndex),
            _ if is_header && safetensors::is_length(magic) => Ok(FileFormat::Safetensors),
            _ => Err(not_tensors(magic).unwrap_or("not a file of a supported format")),
        }
    }
}

impl fmt::Display for FileFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns what a file is that was meant to hold tensors, if its first bytes tell that it holds none.
pub(super) fn not_tensors(magic: &[u8]) -> Option<&'static str> {
    let is_page =
        |start: &[u8]| magic.get(..start.len()).is_some_and(|magic| magic.eq_ignore_ascii_case(start));
    if magic.starts_with(b"version https://git-lfs") {
        return Some("a pointer of Git LFS, not the file itself; fetch the file with git lfs pull");
    }
    let is_page = is_page(b"<!doctype html") || is_page(b"<html");
    is_page.then_some("a web page, not a file of tensors; a download may have failed")
}
