//! The extension module of the Python package: stores, transactions and tensors. It contains only what Python could not
//! do equally well. The package in `stridemap/` adds arrays, the mapping interface of a store, and pickling.

mod array;
mod error;
mod file;
mod header;
mod interrupt;
mod lent;
mod live;
mod lock;
mod origin;
mod remote;
mod scalar;
mod snapshot;
mod source;
mod staged_file;
mod store;
mod tensor;
mod transaction;
mod views;

#[pyo3::pymodule]
mod _stridemap {
    #[pymodule_export]
    use super::file::{
        FileHandle, open_bytes, open_file, safetensors_bytes, write_gguf, write_npy, write_npz,
        write_safetensors,
    };
    #[pymodule_export]
    use super::lent::Lent;
    #[pymodule_export]
    use super::live::LiveTensor;
    #[pymodule_export]
    use super::lock::LockHandle;
    #[pymodule_export]
    use super::remote::{follow, open_remote, prune, pull, pull_names};
    #[pymodule_export]
    use super::snapshot::Snapshot;
    #[pymodule_export]
    use super::staged_file::StagedFile;
    #[pymodule_export]
    use super::store::{StoreHandle, create, open};
    #[pymodule_export]
    use super::tensor::Tensor;
    #[pymodule_export]
    use super::transaction::TransactionHandle;
}
