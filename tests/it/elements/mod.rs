//! Elements: dtypes, arithmetic, printing, and arrays of other libraries.

mod arithmetic;
mod arrays;
mod casts;
mod dlpack;
mod print;
mod typed;
