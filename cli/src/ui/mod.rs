//! What the user sees: standard output, messages, JSON, tables and progress.

mod json;
mod out;
mod progress;
mod table;

pub(crate) use json::{Element, List, TensorRecord, storage_id, write_json};
pub(crate) use out::{Stdout, counted, message};
pub(crate) use progress::progress;
pub(crate) use table::{MAX_ROWS, columns, print_table};
