//! The attributes of the files to import.

use std::collections::BTreeMap;
use std::path::Path;

use stridemap_interop::{FileFormat, ForeignFile};

use super::inputs::Input;
use crate::change::select::Kept;
use crate::error::{Error, Result};
use crate::names::quoted;
use crate::ui::message;

/// Attributes by key, each with the file that it came from.
pub(super) type Merged<'a> = BTreeMap<String, (&'a Path, &'a str)>;

/// Merges the attributes of the files. If two files disagree, the last one wins and a note is printed. If two values of
/// one file get the same key, they are refused.
pub(super) fn merge_attributes<'a>(kept: &Kept, inputs: &'a [Input<'_>]) -> Result<Merged<'a>> {
    let mut merged = Merged::new();
    for (path, file) in inputs {
        for (key, value) in file.attributes().iter().filter(|(key, _)| kept.contains(key)) {
            let is_named = file.format() == FileFormat::PyTorch;
            let key = if is_named { kept.new_name(key) } else { key.clone() };
            let earlier = merged.insert(key.clone(), (path, value));
            if let Some((other, _)) = earlier.filter(|&(_, earlier)| earlier != value) {
                if std::ptr::eq(other, *path) {
                    let why = format!(
                        "--rename gives two of its values the name {key:?}; leave one out with --skip"
                    );
                    return Err(Error::at("import", path, why));
                }
                let (other, path) = (other.display(), path.display());
                message(&format!("note: {other} and {path} disagree on {key:?}; the last wins"));
            }
        }
    }
    Ok(merged)
}

/// Says which values of a file become tensors of bytes.
pub(in crate::change) fn note_long_attributes(path: &Path, file: &ForeignFile) {
    let names = file.long_attributes();
    let shown: Vec<_> = names.iter().take(3).map(|name| quoted(name)).collect();
    let more = if names.len() > shown.len() { ", ..." } else { "" };
    if shown.is_empty() {
        return;
    }
    message(&format!(
        "note: {}: {} too large for an attribute, and saved as a tensor of bytes: {}{more}",
        path.display(),
        if names.len() == 1 { "1 value is".to_owned() } else { format!("{} values are each", names.len()) },
        shown.join(", ")
    ));
}
