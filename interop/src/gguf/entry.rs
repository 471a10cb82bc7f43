//! The headers of tensors to write.

use stridemap::Tensor;

use super::limits::{check_name, check_rank};
use super::types::TensorType;
use super::value::push_text;

/// A tensor that the format can hold.
pub(super) struct Entry<'a> {
    name: &'a str,
    pub(super) tensor: &'a Tensor,
    found: TensorType,
    /// The sizes in elements, also of blocks.
    size: Vec<usize>,
}

impl<'a> Entry<'a> {
    /// `stated` is the type that the attribute of the tensor names.
    pub(super) fn new(name: &'a str, tensor: &'a Tensor, stated: Option<&str>) -> Result<Self, String> {
        let mut size = tensor.size().to_vec();
        let (dtype, shown) = (tensor.dtype(), tensor.size());
        check_name(name)?;
        check_rank(size.len())?;
        let Some(stated) = stated else {
            let found = TensorType::of_dtype(dtype);
            let found = found.ok_or_else(|| {
                format!("GGUF cannot hold {dtype}, except blocks whose type the attribute gguf.type names")
            })?;
            return Ok(Entry { name, tensor, found, size });
        };
        let found = TensorType::of_blocks(stated).ok_or_else(|| {
            format!("its attribute gguf.type is {stated:?}, which is not a type of blocks in GGUF")
        })?;
        let row = size.last_mut().filter(|row| row.is_multiple_of(found.block_bytes)).ok_or_else(|| {
            let block_bytes = found.block_bytes;
            format!(
                "its size {shown:?} is not in rows of whole blocks of {block_bytes} bytes, as {stated} has"
            )
        })?;
        *row = (*row / found.block_bytes)
            .checked_mul(found.block_elems)
            .ok_or_else(|| format!("its size {shown:?} is too large"))?;
        Ok(Entry { name, tensor, found, size })
    }

    pub(super) fn push_to(&self, header: &mut Vec<u8>, offset_bytes: u64) {
        push_text(header, self.name);
        header.extend((self.size.len() as u32).to_le_bytes());
        self.size.iter().rev().for_each(|&n| header.extend((n as u64).to_le_bytes()));
        header.extend(self.found.code.to_le_bytes());
        header.extend(offset_bytes.to_le_bytes());
    }
}
