//! Exchange of tensors with other libraries in this process, by DLPack.

mod dtype;
mod lend;
