//! Elements: dtypes, arithmetic, printing, arrays of other libraries, and hints before reads.

mod arithmetic;
mod arrays;
mod casts;
mod dlpack;
mod prefetch;
mod print;
mod typed;
