//! PyTorch's layout since 1.6: a zip file in which each storage is a member.

use std::collections::HashMap;
use std::sync::Arc;

use stridemap::Result;

use super::{contents_of, leaves_of, pickle_limit};
use crate::ForeignOptions;
use crate::contents::Contents;
use crate::file::RawFile;
use crate::foreign_storage::ForeignStorage;
use crate::zip::Member;

/// The name of the pickle in the folder that contains all members.
const PICKLE: &str = "/data.pkl";

/// The maximum length of the member `byteorder`, which holds `little` or `big`.
const MAX_ORDER_BYTES: u64 = 16;

/// Returns whether a zip file is a checkpoint, the remains of a failed torch.save, or a program.
pub(crate) fn is_archive(members: &[Member]) -> bool {
    let is_checkpoint =
        members.iter().any(|member| member.name.ends_with(PICKLE) || member.name.ends_with("/version"));
    is_checkpoint || is_exported(members)
}

/// Returns whether a zip file is a program of torch.export, a `.pt2` file, of any version of PyTorch.
fn is_exported(members: &[Member]) -> bool {
    members.iter().any(|Member { name, .. }| {
        name.ends_with("/archive_format") || name.starts_with("serialized_exported_program")
    })
}

/// Reads a zip file with these members.
pub(crate) fn read(
    file: &Arc<RawFile>,
    mut members: Vec<Member>,
    options: ForeignOptions,
) -> Result<Contents> {
    // PyTorch writes 0 for a member whose checksum it does not compute: with compute_crc32=False, or skip_data.
    for member in &mut members {
        member.crc32 = member.crc32.filter(|&stated| stated != 0);
    }
    let members = members.as_slice();
    if is_exported(members) {
        return Err(file.bad(
            "a program saved by torch.export (.pt2); load it with torch.export.load, and save its state_dict",
        ));
    }
    let pickles: Vec<&Member> = members.iter().filter(|member| member.name.ends_with(PICKLE)).collect();
    if pickles.is_empty() {
        return Err(file.bad("none of its members is named data.pkl; torch.save did not finish"));
    }
    let &[pickle] = pickles.as_slice() else {
        return Err(file
            .bad(format!("{} of its members are named data.pkl, but a checkpoint has one", pickles.len())));
    };
    let folder = pickle.name.strip_suffix(PICKLE).unwrap_or_default();
    let by_name: HashMap<&str, &Member> = members
        .iter()
        .filter_map(|member| Some((member.name.strip_prefix(folder)?.strip_prefix('/')?, member)))
        .collect();
    if by_name.contains_key("constants.pkl") || by_name.keys().any(|name| name.starts_with("code/")) {
        return Err(file.bad(
            "a TorchScript program, which is code; load it with torch.jit.load, and save its state_dict()",
        ));
    }
    if let Some(order) = by_name.get("byteorder") {
        let order = order.read(file, MAX_ORDER_BYTES)?;
        if order != b"little" {
            return Err(file.bad(format!(
                "its elements are {}-endian; save it again on a little-endian machine",
                String::from_utf8_lossy(&order)
            )));
        }
    }
    let pickle = pickle.read(file, pickle_limit(file))?;
    contents_of(file, leaves_of(file, &pickle, options)?, |storage| {
        let name = format!("data/{}", storage.key);
        let member = by_name.get(name.as_str());
        let member = member.ok_or_else(|| file.bad(format!("the zip file has no member {folder}/{name}")))?;
        let (found, stated) = (member.unpacked_bytes, storage.length_bytes);
        if found != stated {
            let key = &storage.key;
            let what =
                format!("storage {key:?} has {found} bytes in the zip file, but {stated} in the pickle");
            return Err(file.bad(what));
        }
        Ok(ForeignStorage::of_member(file, (*member).clone(), 0))
    })
}
