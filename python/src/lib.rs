//! The extension module of the Python package: stores, transactions and tensors, without anything that Python does as
//! well. The package in `stridemap/` builds arrays, mappings of names and pickles on it.

mod error;
mod interrupt;
mod live;
mod lock;
mod scalar;
mod source;
mod store;
mod tensor;
mod transaction;
mod views;

#[pyo3::pymodule]
mod _stridemap {
    #[pymodule_export]
    use super::live::LiveTensor;
    #[pymodule_export]
    use super::lock::Lock;
    #[pymodule_export]
    use super::store::{Snapshot, StoreHandle, create, open};
    #[pymodule_export]
    use super::tensor::{Lent, Tensor};
    #[pymodule_export]
    use super::transaction::Changes;
}
