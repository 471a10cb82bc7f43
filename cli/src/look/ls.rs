//! `ls`: lists the tensors of a store or a file in another format.

use std::cmp::Reverse;
use std::io::Write;

use clap::ValueEnum;
use indicatif::HumanBytes;
use stridemap::{DType, StoreOptions, TensorInfo};

use super::size_pattern::{SizePattern, parse_size_pattern};
use crate::args::{Source, parse_dtype};
use crate::error::Result;
use crate::names::{Pattern, listed, pattern, quoted, selecting_hint};
use crate::ui::{Column, Table, bytes_cell, examples, message, tensor_record, width, write_json};

/// List the tensors of a store or a file
///
/// On a terminal, the dtype and the size are beside each name; in a pipe, there are only the names, one on each line.
/// Numbers in names count as numbers: layer.2 comes before layer.10. If a pattern matches nothing, or --dtype and --size
/// leave no tensor, the exit code is 1.
#[derive(clap::Args)]
#[command(after_help = examples(&["ls model.smap", "ls -l --sort bytes model.pt", "ls model.smap '*.weight' encoder.", "ls model.smap --size '*,384' --dtype float32"]))]
pub(crate) struct LsArgs {
    /// Only these tensors, by name, by prefix ('encoder.') or by glob ('*.weight'), in which * is any text and ? is one
    /// character
    #[arg(index = 2, value_name = "NAME")]
    patterns: Vec<String>,
    /// Print the bytes of the elements too, and all of this also in a pipe
    #[arg(short, long, conflicts_with_all = ["one", "null", "json"])]
    long: bool,
    /// With -l, print bytes with units also in a pipe: -lh
    #[arg(long, requires = "long")]
    human_readable: bool,
    /// Print one name on each line, without quotes where possible
    #[arg(short = '1', conflicts_with_all = ["null", "json"])]
    one: bool,
    /// End each name with a zero byte, for xargs -0
    #[arg(short = '0', conflicts_with = "json")]
    null: bool,
    /// Sort by name, or by bytes or number of elements (numel), largest first
    #[arg(long, value_enum, value_name = "KEY", default_value_t = Sort::Name)]
    sort: Sort,
    /// Only tensors of this dtype: float32, f32, torch.float32; can be given more than once
    #[arg(long, value_name = "DTYPE", value_parser = parse_dtype)]
    dtype: Vec<DType>,
    /// Only tensors of these sizes, where * is any: '*,384' for matrices with 384 columns; can be given more than once
    #[arg(long, alias = "shape", value_name = "SIZES", value_parser = parse_size_pattern)]
    size: Vec<SizePattern>,
    /// Print one JSON object per tensor
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: Source,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sort {
    Name,
    #[value(alias = "size")]
    Bytes,
    Numel,
}

const COLUMNS: [Column; 4] = [
    Column::new("name").shortenable_names().down_to(16, 1).whole(),
    Column::new("dtype").drop_order(1),
    Column::new("size").shortenable().drop_order(2),
    Column::new("bytes").right(),
];

/// Runs the command. Returns false if a pattern matches no tensor, or if tensors match but the other options leave
/// none.
pub(crate) fn run(args: &LsArgs, out: &mut impl Write) -> Result<bool> {
    let input = args.source.open(&StoreOptions::new())?;
    let patterns: Vec<Pattern> =
        args.patterns.iter().map(|text| pattern(text, &input)).collect::<Result<_>>()?;
    let mut unmatched = vec![true; patterns.len()];
    let mut infos = input.sorted(|info| {
        let mut is_selected = patterns.is_empty();
        for (pattern, unmatched) in patterns.iter().zip(&mut unmatched) {
            if pattern.matches(&info.name) {
                (is_selected, *unmatched) = (true, false);
            }
        }
        is_selected
    })?;
    let count = infos.len();
    infos.retain(|info| args.dtype.is_empty() || args.dtype.contains(&info.header.dtype()));
    infos.retain(|info| {
        args.size.is_empty() || args.size.iter().any(|pattern| pattern.matches(info.header.size()))
    });
    // Tensors with equal keys stay in the order of their names.
    match args.sort {
        Sort::Name => {}
        Sort::Bytes => infos.sort_by_key(|info| Reverse(info.header.nbytes())),
        Sort::Numel => infos.sort_by_key(|info| Reverse(info.header.numel())),
    }
    print(args, &infos, out)?;
    out.flush()?;
    let is_missing = unmatched.contains(&true);
    let missing = patterns.iter().zip(unmatched).filter(|(_, unmatched)| *unmatched);
    let mut unknown = Vec::new();
    for (pattern, _) in missing {
        match selecting_hint(&pattern.text, &input)? {
            Some(why) => message(&format!("ls {}: {why}", args.source.path.display())),
            None => unknown.push(format!("{:?}", pattern.text)),
        }
    }
    if !unknown.is_empty() {
        message(&format!("ls {}: no tensor matches {}", args.source.path.display(), unknown.join(" or ")));
    } else if !is_missing && infos.is_empty() && count > 0 {
        let given = [(!args.dtype.is_empty(), "--dtype"), (!args.size.is_empty(), "--size")];
        let given = given.into_iter().filter_map(|(is_given, name)| is_given.then_some(name));
        let given = given.collect::<Vec<_>>().join(" and ");
        message(&format!("ls {}: no tensor is left by {given}", args.source.path.display()));
    }
    Ok(!is_missing && (count == 0 || !infos.is_empty()))
}

fn print(args: &LsArgs, infos: &[TensorInfo], out: &mut impl Write) -> Result<()> {
    if args.json {
        return infos.iter().try_for_each(|info| write_json(out, tensor_record(info)));
    }
    if args.null {
        return Ok(infos.iter().try_for_each(|info| write!(out, "{}\0", info.name))?);
    }
    if args.one || !args.long && width().is_none() {
        return infos.iter().try_for_each(|info| Ok(writeln!(out, "{}", listed(&info.name))?));
    }
    let columns = if args.long { &COLUMNS[..] } else { &COLUMNS[..3] };
    let mut table = Table::new(columns);
    for info in infos {
        let bytes = || {
            let bytes = info.header.nbytes() as u64;
            if args.human_readable { HumanBytes(bytes).to_string() } else { bytes_cell(bytes) }
        };
        let (dtype, size) = (info.header.dtype().to_string(), format!("{:?}", info.header.size()));
        let cells = [quoted(&info.name).into_owned(), dtype, size].into_iter();
        table.add_row(cells.chain(args.long.then(bytes)));
    }
    table.print_data(out)
}
