#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod convert;
mod var_builder;
mod var_map;

pub use convert::{from_candle, to_candle};
pub use var_builder::var_builder;
pub use var_map::{load_var_map, save_var_map};
