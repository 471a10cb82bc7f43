//! Copies a file from a reader, only as far as it is a file of tensors.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use stridemap::{Error, Result};

use super::file::{MAGIC_BYTES, RawFile};
use super::{FileFormat, ForeignOptions};
use super::{numpy, safetensors, torch};

/// Copies a file into `copy`.
pub(super) fn copy(
    options: ForeignOptions,
    reader: &mut impl Read,
    copy: &mut File,
    path: &Path,
) -> Result<()> {
    let failed = |e| Error::io("copy to a temporary file", path, e);
    let mut pipe = Pipe { reader, copy, done_bytes: 0 };
    let mut magic = Vec::new();
    pipe.reader.take(MAGIC_BYTES).read_to_end(&mut magic).map_err(|e| Error::io("read", path, e))?;
    pipe.copy.write_all(&magic).map_err(failed)?;
    pipe.done_bytes = magic.len() as u64;
    if pipe.done_bytes < MAGIC_BYTES {
        return Ok(()); // That was all, and opening the copy says whether it is a file of tensors.
    }
    let so_far = |pipe: &Pipe<'_, _>| RawFile::from_file(pipe.copy.try_clone().map_err(failed)?, path);
    let format = match FileFormat::of(&magic) {
        Ok(format) => format,
        Err(what) => {
            // A tar file begins with the name of a member, filled up with NULs. The names in a checkpoint are short.
            if matches!(*magic.as_slice(), [first, .., 0] if first != 0) {
                pipe.copy_up_to(torch::TAR_HEADER_BYTES).map_err(failed)?;
            }
            let file = so_far(&pipe)?;
            return Err(if torch::is_tar(&file)? { torch::tar_error(&file) } else { file.bad(what) });
        }
    };
    let header_end_bytes = match format {
        FileFormat::Safetensors => safetensors::header_end_bytes(&so_far(&pipe)?)?,
        FileFormat::Npy => numpy::npy::header_end_bytes(&so_far(&pipe)?)?,
        // The length of these is known only at their end.
        _ => return pipe.copy_up_to(u64::MAX).map_err(failed),
    };
    pipe.copy_up_to(header_end_bytes).map_err(failed)?;
    if pipe.done_bytes < header_end_bytes {
        return Ok(());
    }
    let length_bytes = match format {
        FileFormat::Safetensors => safetensors::stated_bytes(&so_far(&pipe)?)?,
        _ => numpy::npy::stated_bytes(&so_far(&pipe)?, options)?,
    };
    // One byte more, so that a longer input is refused.
    pipe.copy_up_to(length_bytes.saturating_add(1)).map_err(failed)
}

struct Pipe<'a, R> {
    reader: &'a mut R,
    copy: &'a mut File,
    done_bytes: u64,
}

impl<R: Read> Pipe<'_, R> {
    /// Copies until `end_bytes` have been copied in all, or until there are no more.
    fn copy_up_to(&mut self, end_bytes: u64) -> io::Result<()> {
        let rest_bytes = end_bytes.saturating_sub(self.done_bytes);
        self.done_bytes += io::copy(&mut self.reader.take(rest_bytes), self.copy)?;
        Ok(())
    }
}
