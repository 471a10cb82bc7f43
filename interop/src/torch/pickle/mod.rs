//! A reader of pickles that are data. It has no way to call anything: a name that is not one of a few is an error.

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
