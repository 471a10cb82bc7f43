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

use super::Tensor;
use crate::error::Result;
use crate::layout::Layout;

impl Tensor {
    /// Returns a view with the same dtype.
    fn viewed(&self, layout: Result<Layout>) -> Result<Tensor> {
        Ok(self.with_layout(self.dtype(), layout?))
    }

    fn views_of(&self, layouts: Result<Vec<Layout>>) -> Result<Vec<Tensor>> {
        Ok(layouts?.into_iter().map(|layout| self.with_layout(self.dtype(), layout)).collect())
    }
}
