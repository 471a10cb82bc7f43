//! What the user sees: standard output, messages, JSON, tables and progress.

mod json;
mod out;
mod progress;
mod table;
mod term;
mod wrap;

pub(crate) use json::{
    List, element, float, joined, loaded_record, short_record, storage_id, tensor_record, write_json,
};
pub(crate) use out::{Stdout, counted, message, warn};
pub(crate) use progress::{Progress, advance, progress};
pub(crate) use table::{Column, MAX_ROWS, Table, bytes_cell, print_line, shorten};
pub(crate) use term::{
    Global, examples, gap, has_color, height, help_width, is_verbose, page_width, paint, width,
};
pub(crate) use wrap::wrapped;
