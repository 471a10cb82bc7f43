//! `tree`: shows the modules of a store or a file in another format.

use std::io::Write;

use indicatif::{HumanBytes, HumanCount};
use serde_json::{Value, json};
use stridemap::StoreOptions;

use super::counted_once::CountedOnce;
use super::modules::{Node, alike_count};
use super::sharing;
use crate::args::Source;
use crate::error::Result;
use crate::names::{one_line, quoted};
use crate::ui::{Column, MAX_ROWS, Table, examples, width, write_json};

/// Show the modules and tensors of a store or a file as a tree
///
/// Modules are the parts of names before each "." and "/". Modules and tensors that are alike and have consecutive numbers
/// are shown once, with the sizes of one: "layer.0 … layer.5" has "6 × 1,000" parameters. Tensors that share bytes count in
/// each row; if there are any, the last line has the totals without them. In a pipe, each module and each tensor is a row
/// with its whole name.
#[derive(clap::Args)]
#[command(after_help = examples(&["tree model.safetensors", "tree --depth 2 model.smap"]))]
pub(crate) struct TreeArgs {
    /// Show only N levels
    #[arg(long, value_name = "N")]
    depth: Option<usize>,
    /// Show every module and tensor, also those that are alike
    #[arg(long)]
    all: bool,
    /// Print one JSON object; the parts of a module are modules and tensors
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: Source,
}

const COLUMNS: [Column; 5] = [
    Column::new("name").shortenable_names(),
    Column::new("dtype").drop_order(0),
    Column::new("size").shortenable().drop_order(1),
    Column::new("parameters").right().drop_order(2),
    Column::new("bytes").right(),
];

pub(crate) fn run(args: &TreeArgs, out: &mut impl Write) -> Result<()> {
    let input = args.source.open(&StoreOptions::new())?;
    let (mut root, mut counted_once) = (Node::default(), CountedOnce::default());
    for info in input.tensors("")? {
        let info = info?;
        root.add(&info);
        if width().is_some() {
            counted_once.add(&info);
        }
    }
    let path = input.path();
    let name = one_line(&path.file_name().unwrap_or(path.as_os_str()).to_string_lossy());
    if args.json {
        return write_json(out, record(&name, &root, args.depth));
    }
    if width().is_none() {
        print_row(&name, &root, out)?;
        return print_data(&root, "", args.depth, out);
    }
    let mut tree = Tree { args, table: Table::new(&COLUMNS), row_count: 0 };
    tree.add_row(name, &root, 1);
    tree.add_parts(&root, "", 1);
    tree.table.print(tree.row_count, "--all", out)?;
    let (once, undetermined) = counted_once.totals(&input, None)?;
    if once.size_bytes < root.totals.size_bytes {
        let (numel, bytes) = (HumanCount(once.numel), HumanBytes(once.size_bytes));
        writeln!(out, "without views of other tensors: {numel} parameters, {bytes}")?;
    }
    if undetermined > 0 {
        writeln!(out, "{}", sharing::undetermined(undetermined))?;
    }
    Ok(())
}

/// Prints a row for each module and each tensor, with its whole name.
fn print_data(module: &Node, prefix: &str, depth: Option<usize>, out: &mut impl Write) -> Result<()> {
    if depth == Some(0) {
        return Ok(());
    }
    for part in module.parts() {
        print_row(&quoted(&format!("{prefix}{}", part.name())), part.node, out)?;
        print_data(part.node, &format!("{prefix}{}", part.text), depth.map(|depth| depth - 1), out)?;
    }
    Ok(())
}

fn print_row(name: &str, node: &Node, out: &mut impl Write) -> Result<()> {
    let (dtype, size) = dtype_and_size(node);
    Ok(writeln!(out, "{name}\t{dtype}\t{size}\t{}\t{}", node.totals.numel, node.totals.size_bytes)?)
}

fn dtype_and_size(node: &Node) -> (String, String) {
    node.tensor.as_ref().map(|(dtype, size)| (dtype.to_string(), format!("{size:?}"))).unwrap_or_default()
}

struct Tree<'a> {
    args: &'a TreeArgs,
    table: Table<'static>,
    row_count: u64,
}

impl Tree<'_> {
    /// Adds the parts of a module, at this level of the tree. `indent` stands before each line.
    fn add_parts(&mut self, module: &Node, indent: &str, level: usize) {
        if self.args.depth.is_some_and(|depth| level > depth) {
            return;
        }
        let parts = module.parts();
        let mut rest = parts.as_slice();
        while let [part, ..] = rest {
            let alike_count = if self.args.all { 1 } else { alike_count(rest) };
            let alike;
            (alike, rest) = rest.split_at(alike_count);
            let (name, node) = (part.name(), part.node);
            let label = match alike {
                [_, .., last] => format!("{} … {}", one_line(name), one_line(last.name())),
                _ => one_line(name),
            };
            let (branch, below) = if rest.is_empty() { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            self.add_row(format!("{indent}{branch}{label}"), node, alike_count);
            self.add_parts(node, &format!("{indent}{below}"), level + 1);
        }
    }

    fn add_row(&mut self, label: String, node: &Node, alike_count: usize) {
        self.row_count += 1;
        if self.row_count > MAX_ROWS as u64 && !self.args.all {
            return;
        }
        let times =
            if alike_count > 1 { format!("{} × ", HumanCount(alike_count as u64)) } else { String::new() };
        let (dtype, size) = dtype_and_size(node);
        self.table.add_row([
            label,
            dtype,
            size,
            format!("{times}{}", HumanCount(node.totals.numel)),
            format!("{times}{}", HumanBytes(node.totals.size_bytes)),
        ]);
    }
}

/// Returns a module or a tensor, and its parts down to this depth, as JSON.
fn record(name: &str, node: &Node, depth: Option<usize>) -> Value {
    let parts = if depth == Some(0) { Vec::new() } else { node.parts() };
    let depth = depth.map(|depth| depth.saturating_sub(1));
    let parts: Vec<Value> = parts.iter().map(|part| record(part.name(), part.node, depth)).collect();
    // Each value is moved: `json!` would copy all that is below once for each level.
    Value::from_iter([
        ("name", json!(name)),
        ("tensor_count", json!(node.totals.tensor_count)),
        ("numel", json!(node.totals.numel)),
        ("nbytes", json!(node.totals.size_bytes)),
        ("dtype", json!(node.tensor.as_ref().map(|(dtype, _)| dtype.name()))),
        ("size", json!(node.tensor.as_ref().map(|(_, size)| size))),
        ("parts", parts.into()),
    ])
}
