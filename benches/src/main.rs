//! Measures stridemap beside other libraries and beside the bare system calls. See README.md.

mod bench;
mod case;
mod cases;
mod machine;
mod python;
mod stats;
mod table;
mod tensors;

use std::error::Error;
use std::path::PathBuf;

use bench::Bench;
use clap::Parser;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Measures stridemap beside other libraries, round by round in one process.
#[derive(Parser)]
struct Args {
    /// Run only the cases whose name contains this text.
    filter: Option<String>,
    /// Print one JSON object per case instead of tables.
    #[arg(long)]
    json: bool,
    /// Use smaller data and fewer rounds.
    #[arg(long)]
    quick: bool,
    /// The directory for temporary files. It must be on a disk.
    #[arg(long, default_value = "target/bench")]
    dir: PathBuf,
    /// The Python that runs peers.py. Without it, the libraries in Python are left out.
    #[arg(long, env = "STRIDEMAP_BENCH_PYTHON")]
    python: Option<PathBuf>,
}

fn main() -> Outcome {
    let args = Args::parse();
    let mut bench = Bench::new(&args)?;
    cases::run(&mut bench)?;
    bench.finish()
}
