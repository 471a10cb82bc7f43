//! Elements: dtypes, arithmetic, printing, statistics, arrays of other libraries, and hints before reads.

mod arithmetic;
mod arrays;
mod casts;
mod dlpack;
mod prefetch;
mod print;
mod statistics;
mod typed;

/// Held by tests that change the number of threads of the process, and by those that count its threads.
static THREAD_LIMIT: std::sync::Mutex<()> = std::sync::Mutex::new(());
