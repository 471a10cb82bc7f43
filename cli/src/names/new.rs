//! Names of tensors that do not exist yet.

use std::path::Path;

use super::{Named, name};
use crate::error::{Error, Result};
use crate::separator::has_separator;

/// The ends of the names of files with tensors.
const FILE_ENDINGS: [&str; 10] =
    [".smap", ".safetensors", ".gguf", ".npy", ".npz", ".pt", ".pth", ".bin", ".ckpt", ".index.json"];

/// Returns whether a path ends like the name of a file with tensors, or of a store.
pub(crate) fn is_like_a_file(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    FILE_ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Returns the new name that an argument stands for, as [`name`] does. Refuses the path of a file, which the user may
/// have meant: `view a.smap x b.smap` does not copy to `b.smap`. A text in quotes or after `--`, and a name that a tensor
/// already has, are always names.
pub(crate) fn new_name(command: &str, text: &str, tensors: &impl Named) -> Result<String> {
    let name = name(text, tensors)?;
    let path = Path::new(text);
    let is_path = path.symlink_metadata().is_ok();
    let is_quoted = name != text;
    if !(is_path || is_like_a_file(path)) || is_quoted || has_separator() || tensors.contains(&name)? {
        return Ok(name);
    }
    let what = if is_path { "the path of an existing file" } else { "like the name of a file" };
    Err(Error::Refused(format!(
        "{command}: the new name {text:?} is {what}, and {command} adds no file, but a name in the store; write -- before \
         the arguments, or the name as \"'{text}'\", if it is meant as a name, or write a file with export"
    )))
}
