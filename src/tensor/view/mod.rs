//! Views: new headers over the same storage. They follow PyTorch in names, argument order and negative axes.
//!
//! There is one file per family of operations, as in `layout`, which does the arithmetic.

mod dtype;
mod names;
mod permute;
mod select;
mod shape;
mod split;
mod window;

use stridemap_format::Header;

use super::Tensor;
use crate::error::Result;

impl Tensor {
    fn viewed(&self, header: Result<Header>) -> Result<Tensor> {
        Ok(self.with_header(header?))
    }

    fn views_of(&self, headers: Result<Vec<Header>>) -> Result<Vec<Tensor>> {
        Ok(headers?.into_iter().map(|header| self.with_header(header)).collect())
    }
}
