//! Elements: dtypes, arithmetic, printing, statistics, arrays of other libraries, and hints before reads.

mod arithmetic;
mod arrays;
mod casts;
mod dlpack;
mod prefetch;
mod print;
mod statistics;
mod typed;
