//! The limits of a file. Those of a header are the same for reading and for writing. Names and dimensions are read as far as a
//! store can hold them, because programs with other limits than llama.cpp write files, too.

/// The maximum length of a header with its metadata. It is read through when a file is opened, and is in memory before it is
/// written. The headers of published models have at most some ten megabytes.
pub(super) const MAX_HEADER_BYTES: u64 = 256 << 20;

/// The maximum alignment of tensors. There can be so many unused bytes after each.
pub(super) const MAX_ALIGNMENT: u64 = 1 << 20;

/// The limits of llama.cpp: dimensions of a tensor, and bytes of its name, after which it has a zero.
const MAX_DIMS: usize = 4;
const MAX_NAME_BYTES: usize = 63;

/// Refuses to write a name that is too long.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    let bytes = name.len();
    match bytes > MAX_NAME_BYTES {
        true => Err(format!("its name has {bytes} bytes, but GGUF allows {MAX_NAME_BYTES}; rename it")),
        false => Ok(()),
    }
}

/// Refuses to write too many dimensions.
pub(super) fn check_rank(rank: usize) -> Result<(), String> {
    match rank > MAX_DIMS {
        true => Err(format!("it has {rank} dimensions, but GGUF has at most {MAX_DIMS}")),
        false => Ok(()),
    }
}

/// Returns whether tensors may have this alignment.
pub(super) fn is_alignment(bytes: u64) -> bool {
    bytes.is_power_of_two() && bytes <= MAX_ALIGNMENT
}
