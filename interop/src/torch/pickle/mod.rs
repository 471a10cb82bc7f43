//! A reader of pickles as data. It cannot call anything: a name outside a short list is an error.

mod call;
mod instruction;
mod literal;
mod machine;
#[cfg(test)]
mod tests;
mod value;

pub(super) use instruction::pickle_length;
pub(super) use literal::Literal;
pub(super) use machine::Unpickled;
pub(super) use value::{Budget, Items, Node, Root, StorageRef, TensorRef, Value};
