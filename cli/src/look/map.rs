//! `du --map`: shows which tensors share which bytes.

use std::io::Write;
use std::ops::Range;

use serde_json::{Value, json};
use unicode_width::UnicodeWidthStr as _;

use super::sharing::{self, PlacedTensor, StorageMap, StorageUsage};
use crate::error::Result;
use crate::input::Input;
use crate::names::{Named as _, names, quoted};
use crate::ui::{
    Column, MAX_ROWS, Table, bytes_cell, counted, joined, storage_id, width, wrapped, write_json,
};

/// Above this number of storages, those with at most one tensor and no unreachable bytes are not drawn. Above this
/// number of tensors on one storage, those that share no byte are not drawn.
const MANY: usize = 50;

/// The maximum number of runs of bytes of a tensor in JSON.
const MAX_RUNS: u64 = 1000;

/// What is shown.
pub(crate) struct MapOptions<'a> {
    /// Only the storages of these tensors; all if it is empty.
    pub(crate) names: &'a [String],
    /// Draw every storage and every tensor.
    pub(crate) all: bool,
    /// Print one JSON object.
    pub(crate) json: bool,
}

const COLUMNS: [Column; 4] = [
    Column::new("name").shortenable_names(),
    Column::new("map"),
    Column::new("bytes").right(),
    Column::new("").shortenable().drop_order(0),
];

/// Prints which tensors of a store or file share which bytes.
pub(crate) fn print(input: &Input, options: &MapOptions<'_>, out: &mut impl Write) -> Result<()> {
    let selected = names(options.names, input)?;
    for name in &selected {
        if !input.contains(name)? {
            // The error suggests similar names.
            let _ = input.load(name)?;
        }
    }
    let mut maps = StorageMap::read_all(input)?;
    if !selected.is_empty() {
        maps.retain(|map| map.tensors.iter().any(|tensor| selected.contains(&tensor.info.name)));
    }
    if options.json {
        let storages: Vec<Value> = maps.iter().map(|map| record(map, input)).collect();
        return write_json(out, json!({ "storages": storages }));
    }
    let Some(width) = width() else { return print_data(&maps, out) };
    let bar_width = bar_width(&maps, width);
    let mut drawn = Drawn { table: Table::new(&COLUMNS), bar_width, row_count: 0, skipped_tensors: 0 };
    let storage_count = maps.len();
    if storage_count > MANY && !options.all {
        maps.retain(|map| map.tensors.len() > 1 || map.usage.unreachable_bytes > 0);
    }
    let skipped_storages = storage_count - maps.len();
    for map in &maps {
        drawn.add(map, options.all);
    }
    drawn.table.print(drawn.row_count, "--json", out)?;
    let skipped = [
        (skipped_storages as u64, "storage", "with at most one tensor and no unreachable bytes"),
        (drawn.skipped_tensors, "tensor", "in which no shared bytes were found"),
    ];
    let skipped = skipped.into_iter().filter(|&(count, ..)| count > 0);
    let skipped: Vec<String> =
        skipped.map(|(count, noun, what)| format!("{} {what}", counted(count, noun))).collect();
    if !skipped.is_empty() {
        writeln!(out, "... and {}; --all draws them", skipped.join(", "))?;
    }
    print_groups(&maps, width, out)
}

/// Returns the width of the bars: at most 24 columns on a terminal of 80, and fewer if long names or notes need the room.
fn bar_width(maps: &[StorageMap], width: usize) -> u64 {
    let (mut name_width, mut note_width) = (0, 0);
    for map in maps {
        note_width = note_width.max(notes(map).width());
        for tensor in map.tensors.iter().take(MAX_ROWS) {
            name_width = name_width.max(quoted(&tensor.info.name).width() + 3);
            note_width = note_width.max(shared_with(map, tensor).width());
        }
    }
    // The bytes and the gaps take 16 columns.
    let rest = width.saturating_sub(name_width.clamp(16, 40) + note_width.clamp(14, 32) + 16);
    rest.min(width.saturating_sub(40) * 3 / 5).clamp(8, 100) as u64
}

/// The maximum number of groups, and of names in each.
const MAX_GROUPS: usize = 10;
const MAX_NAMES: usize = 8;

/// Prints a line for each group of tensors that are connected by shared bytes. If there is no group, says so.
fn print_groups(maps: &[StorageMap], width: usize, out: &mut impl Write) -> Result<()> {
    let groups: Vec<Vec<&str>> = maps.iter().flat_map(StorageMap::groups).collect();
    let undetermined: u64 = maps.iter().map(StorageMap::undetermined_count).sum();
    if undetermined > 0 {
        writeln!(out, "{}", sharing::undetermined(undetermined))?;
    } else if groups.is_empty() {
        return Ok(writeln!(out, "no tensors share bytes")?);
    }
    for names in groups.iter().take(MAX_GROUPS) {
        let shown: Vec<_> = names.iter().take(MAX_NAMES).map(|name| quoted(name)).collect();
        let more = match names.len() - shown.len() {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        let line = format!("share bytes: {}{more}", shown.join(", "));
        wrapped(&line, width).iter().try_for_each(|line| writeln!(out, "{line}"))?;
    }
    match groups.len().saturating_sub(MAX_GROUPS) {
        0 => Ok(()),
        count => Ok(writeln!(out, "... and {}", counted(count as u64, "more group"))?),
    }
}

/// Prints a row for each storage and each tensor. The second cell of a tensor's row is its name.
fn print_data(maps: &[StorageMap], out: &mut impl Write) -> Result<()> {
    for map in maps {
        let id = storage_id(map.storage.id);
        writeln!(out, "{id}\t\t{}\t{}", map.storage.size_bytes, notes(map))?;
        for tensor in &map.tensors {
            let (name, bytes) = (quoted(&tensor.info.name), tensor.info.header.nbytes());
            writeln!(out, "{id}\t{name}\t{bytes}\t{}", shared_with(map, tensor))?;
        }
    }
    Ok(())
}

struct Drawn {
    table: Table<'static>,
    bar_width: u64,
    row_count: u64,
    skipped_tensors: u64,
}

impl Drawn {
    fn add(&mut self, map: &StorageMap, is_complete: bool) {
        let (storage, size_bytes) = (&map.storage, map.storage.size_bytes);
        let cells = Cells { count: self.bar_width, size_bytes: size_bytes.max(1) };
        self.add_row(|| [storage_id(storage.id), cells.of_storage(map), bytes_cell(size_bytes), notes(map)]);
        let is_drawn =
            |tensor: &&PlacedTensor| is_complete || map.tensors.len() <= MANY || !tensor.sharers.is_empty();
        let tensors: Vec<&PlacedTensor> = map.tensors.iter().filter(is_drawn).collect();
        self.skipped_tensors += (map.tensors.len() - tensors.len()) as u64;
        for (index, tensor) in tensors.iter().enumerate() {
            let branch = if index + 1 == tensors.len() { "└─" } else { "├─" };
            self.add_row(|| {
                [
                    format!("{branch} {}", quoted(&tensor.info.name)),
                    cells.of_tensor(tensor),
                    bytes_cell(tensor.info.header.nbytes() as u64),
                    shared_with(map, tensor),
                ]
            });
        }
    }

    fn add_row(&mut self, cells: impl FnOnce() -> [String; 4]) {
        self.row_count += 1;
        if self.row_count <= MAX_ROWS as u64 {
            self.table.add_row(cells());
        }
    }
}

fn notes(map: &StorageMap) -> String {
    let mut notes = map.storage.kind.to_string();
    let StorageUsage { padding_bytes, unreachable_bytes, .. } = map.usage;
    for (bytes, what) in [(padding_bytes, "padding"), (unreachable_bytes, "unreachable")] {
        if bytes > 0 {
            notes += &format!(", {} {what}", bytes_cell(bytes));
        }
    }
    notes
}

fn shared_with(map: &StorageMap, tensor: &PlacedTensor) -> String {
    let undetermined = if tensor.is_undetermined { "sharing not determined" } else { "" };
    let [first, rest @ ..] = tensor.sharers.as_slice() else { return undetermined.to_owned() };
    let Some(first) = map.tensors.get(*first) else { return String::new() };
    let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
    let separator = if tensor.is_undetermined { "; " } else { "" };
    format!("shares with {}{more}{separator}{undetermined}", quoted(&first.info.name))
}

/// The cells of a bar. Each stands for the same number of bytes of the storage.
struct Cells {
    count: u64,
    size_bytes: u64,
}

/// How the bytes of one cell are used.
#[derive(Clone, Copy, Default)]
struct Cell {
    used_bytes: u64,
    /// The number of sharing tensors with bytes in the cell, counted up to 2.
    sharer_count: u8,
    /// Whether the range of a tensor, from its first byte to its last, covers the whole cell.
    is_in_range: bool,
}

impl Cells {
    fn of_tensor(&self, tensor: &PlacedTensor) -> String {
        let bar: String = self.fill(&[tensor]).iter().map(|cell| self.glyph(cell, ' ')).collect();
        bar.trim_end().to_owned()
    }

    fn of_storage(&self, map: &StorageMap) -> String {
        let tensors: Vec<&PlacedTensor> = map.tensors.iter().collect();
        self.fill(&tensors).iter().map(|cell| self.glyph(cell, '·')).collect()
    }

    fn glyph(&self, cell: &Cell, none: char) -> char {
        let is_sparse = cell.is_in_range && cell.used_bytes < self.size_bytes / self.count / 2;
        match cell {
            Cell { used_bytes: 0, is_in_range: false, .. } => none,
            _ if is_sparse => '░',
            Cell { sharer_count: 2.., .. } => '▓',
            _ => '█',
        }
    }

    /// Returns the cells of a bar that shows these tensors.
    fn fill(&self, tensors: &[&PlacedTensor]) -> Vec<Cell> {
        let mut cells = vec![Cell::default(); self.count as usize];
        for tensor in tensors.iter().filter(|tensor| !tensor.range.is_empty()) {
            let is_sharing = !tensor.sharers.is_empty();
            let mut last_counted = None;
            for run in tensor.info.byte_runs(self.size_bytes / self.count / 8) {
                for index in self.covered(&run) {
                    let (Some(cell), bytes) = (cells.get_mut(index), self.bytes(index)) else { continue };
                    cell.used_bytes +=
                        run.end.min(bytes.end).saturating_sub(run.start.max(bytes.start)).max(1);
                    if is_sharing && last_counted < Some(index) {
                        cell.sharer_count = (cell.sharer_count + 1).min(2);
                        last_counted = Some(index);
                    }
                }
            }
            for index in self.covered(&tensor.range) {
                let (Some(cell), bytes) = (cells.get_mut(index), self.bytes(index)) else { continue };
                cell.is_in_range |= tensor.range.start <= bytes.start && bytes.end <= tensor.range.end;
            }
        }
        cells
    }

    /// Returns the bytes that a cell stands for.
    fn bytes(&self, index: usize) -> Range<u64> {
        let byte =
            |cell: u64| (u128::from(cell) * u128::from(self.size_bytes) / u128::from(self.count)) as u64;
        byte(index as u64)..byte(index as u64 + 1)
    }

    /// Returns the cells that contain a byte of the range.
    fn covered(&self, range: &Range<u64>) -> Range<usize> {
        let (count, size_bytes) = (u128::from(self.count), u128::from(self.size_bytes));
        let first = (u128::from(range.start) * count / size_bytes).min(count - 1);
        let end = (u128::from(range.end) * count).div_ceil(size_bytes).min(count);
        first as usize..end as usize
    }
}

/// Returns a storage and its tensors as JSON.
fn record(map: &StorageMap, input: &Input) -> Value {
    let tensor = |tensor: &PlacedTensor| {
        let PlacedTensor { info, range, sharers, is_undetermined } = tensor;
        let name = |&other: &usize| Some(&map.tensors.get(other)?.info.name);
        // Runs are joined if the gap between them is at most a thousandth of the range.
        let runs = info.byte_runs((range.end - range.start) / MAX_RUNS);
        json!({
            "name": info.name,
            "dtype": info.header.dtype().name(),
            "size": info.header.size(),
            "first_byte": range.start,
            "end_byte": range.end,
            "runs": runs.into_iter().map(|run| [run.start, run.end]).collect::<Vec<_>>(),
            "shares_with": sharers.iter().filter_map(name).collect::<Vec<_>>(),
            // False if it could not be found out for another tensor.
            "is_sharing_determined": !is_undetermined,
        })
    };
    let tensors: Value = map.tensors.iter().map(tensor).collect();
    joined(map.record(input), json!({ "tensors": tensors }))
}
