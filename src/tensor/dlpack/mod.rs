//! Tensors from and to other libraries of this process, by DLPack.

mod dtype;
mod lend;
