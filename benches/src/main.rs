//! Measures stridemap beside other libraries and beside the bare system calls. See README.md.

mod bench;
mod case;
mod cases;
mod files;
mod formats;
mod machine;
mod plot;
mod processors;
mod python;
mod report;
mod stats;
mod table;
mod worker;

use std::error::Error;
use std::path::PathBuf;

use bench::Bench;
use clap::Parser;
use worker::Job;

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
    /// Write RESULTS.md and plots/ to this directory, by default that of the package.
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = env!("CARGO_MANIFEST_DIR"))]
    report: Option<PathBuf>,
    /// The directory for temporary files. It must be on a disk.
    #[arg(long, default_value = "target/bench")]
    dir: PathBuf,
    /// The Python that runs peers.py. Without it, the libraries in Python are left out.
    #[arg(long, env = "STRIDEMAP_BENCH_PYTHON")]
    python: Option<PathBuf>,
    /// A safetensors file of a real model, for more cases.
    #[arg(long, env = "STRIDEMAP_MODEL")]
    model: Option<PathBuf>,
    /// The size of the model that is read from the disk, in MiB. Three times as much must fit into the free memory.
    #[arg(long, default_value_t = 256)]
    model_mib: usize,
    /// A URL in an S3 bucket, for the cases of remotes. Objects below it are deleted.
    #[arg(long, env = "STRIDEMAP_BENCH_REMOTE")]
    remote: Option<String>,
    /// How much the cases of remotes transfer, in MiB.
    #[arg(long, default_value_t = 256)]
    remote_mib: usize,
    #[command(subcommand)]
    job: Option<Job>,
}

fn main() -> Outcome {
    let args = Args::parse();
    if let Some(job) = args.job {
        return job.run();
    }
    let mut bench = Bench::new(&args)?;
    cases::run(&mut bench)?;
    bench.finish()
}
