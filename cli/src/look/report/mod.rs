//! `report`: writes one HTML file that describes a store or a file in another format.

mod elements;
mod heat;
mod page;
mod rows;

use std::io::Write;
use std::path::{Path, PathBuf};

use indicatif::HumanBytes;

use super::sharing::StorageMap;
use super::summary::Summary;
use crate::args::{Existing, External, Source};
use crate::error::{Error, Result};
use crate::names::{command_line, one_line, shell_word};
use crate::output_file::OutputFile;
use crate::remote::shown;
use crate::size::parse_size;
use crate::ui::{advance, counted, examples, message};
use elements::Elements;
use page::Page;

/// Write an HTML page about a store or a file
///
/// The page is one file that needs no network: totals, warnings, modules, a table of all tensors with statistics and
/// histograms, the bytes that tensors share, and attributes. The largest tensors also have a heat map.
///
/// For the statistics, tensors are read in the order of their names. A tensor that would exceed the limit of --max-read
/// is skipped. If a tensor cannot be read, the page is still written, and the exit code is 2.
#[derive(clap::Args)]
#[command(override_usage = "stridemap report [OPTIONS] -o <FILE.html> <STORE|FILE>")]
#[command(after_help = examples(&["report model.safetensors -o model.html", "report model.smap -o model.html --max-read 0 --force"]))]
pub(crate) struct ReportArgs {
    /// The file to write
    #[arg(short, long, value_name = "FILE.html")]
    out: Option<PathBuf>,
    /// Read at most this many bytes of elements for the statistics: 500MB, 64GiB; with 0, the page has none, and no histograms
    /// and heat maps
    #[arg(long, value_name = "SIZE", value_parser = parse_limit, default_value = "64GiB")]
    max_read: u64,
    #[command(flatten)]
    existing: Existing,
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    external: External,
}

/// Parses a number of bytes, which may be 0.
fn parse_limit(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { parse_size(text) }
}

pub(crate) fn run(args: &ReportArgs, out: &mut impl Write) -> Result<()> {
    let Some(path) = &args.out else {
        let source = shown(&args.source.path);
        let page = Path::new(&*source).with_extension("html");
        let page = page.file_name().unwrap_or_default().to_string_lossy();
        let command = command_line(&format!("report -o {}", shell_word(&page)), &[&source]);
        let why = format!("report: name the file to write: {command}");
        return Err(Error::Refused(why));
    };
    let file = OutputFile::new("report", path, &["html", "htm"], args.existing.force)?;
    let input = args.source.open(&args.external.options())?;
    file.check_unused(&input)?;
    let infos = input.sorted(|_| true)?;
    let max_bytes = args.max_read;
    let all_bytes = infos.iter().map(|info| info.header.nbytes() as u64).fold(0, u64::saturating_add);
    let (read, read_bytes) = elements::tensors_to_read(max_bytes, &infos);
    let (tensors, file_name) = (counted(infos.len() as u64, "tensor"), one_line(&path.to_string_lossy()));
    if args.existing.is_dry_run() {
        let (replacing, read) = (if file.exists { ", replacing it" } else { "" }, HumanBytes(read_bytes));
        return Ok(writeln!(out, "would write {file_name}{replacing}: {tensors}; would read {read}")?);
    }
    let maps = StorageMap::read_all(&input)?;
    let summary = Summary::of(&input, Some(&maps))?;
    let elements = Elements::read(&input, &infos, &read, max_bytes, advance("report", read_bytes));
    let page = Page::new(&input, &summary, &infos, &maps, &elements);
    let size_bytes = file.write(|file| page.write(file))?;
    let (all_bytes, size_bytes) = (HumanBytes(all_bytes), HumanBytes(size_bytes));
    message(&format!("reported {tensors}, {all_bytes}, in {}: {size_bytes}", path.display()));
    match elements.failed.len() {
        0 => Ok(()),
        failed_count => {
            let why = format!("{failed_count} of {tensors} could not be read; {file_name} says why");
            Err(Error::Refused(format!("report: {why}")))
        }
    }
}
