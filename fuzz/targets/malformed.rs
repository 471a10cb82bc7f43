//! Correct stores with some errors: fields with wrong values under correct digests, and files that are truncated,
//! swapped, or replaced by links, FIFOs or directories.
#![no_main]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use stridemap_format::{DType, Extent};
use stridemap_fuzz::exercise::{Work, exercise};
use stridemap_fuzz::model::{Garbage, Kept, Model, Storage, Table, Tag, Tensor};
use stridemap_fuzz::{fix_digest, scratch, table};

#[derive(Arbitrary, Debug)]
struct Plan {
    generation: u8,
    storages: Vec<PlannedStorage>,
    tensors: Vec<PlannedTensor>,
    attributes: Vec<(u8, String)>,
    table: Option<(u8, u8, u8)>,
    removals: Vec<(u8, bool)>,
    garbage: Vec<u8>,
    wrong_values: Vec<(Field, Number)>,
    damages: Vec<Damage>,
    has_older: bool,
    work: u8,
    tags: Vec<(u8, Option<String>)>,
    released: Option<u8>,
    history: Option<u8>,
}

#[derive(Arbitrary, Debug)]
struct PlannedStorage {
    kind: u8,
    length: Length,
    reserved: u16,
}

#[derive(Arbitrary, Debug)]
enum Length {
    Tiny(u8),
    Small(u16),
    /// About the length of a chunk.
    Chunk(u8),
}

#[derive(Arbitrary, Debug)]
struct PlannedTensor {
    name: u8,
    text: Option<String>,
    dtype: u8,
    size: Vec<u8>,
    storage: u8,
    offset: u8,
    view: View,
    is_named: bool,
}

#[derive(Arbitrary, Debug)]
enum View {
    Contiguous,
    Transposed,
    Reversed,
    Expanded,
    Stepped(u8),
    Strides(Vec<i16>),
}

/// A field with a wrong value.
#[derive(Arbitrary, Debug)]
enum Field {
    Generation,
    TableRoot,
    NextId,
    TableGeneration,
    TableStorages,
    TableTensors,
    TablePages,
    TableDigest,
    NodeField(u8),
    Id(u8),
    Length(u8),
    Count(u8),
    Kind(u8),
    Access(u8),
    Reserved(u8),
    Chunks(u8),
    Tail(u8),
    ExternalOffset(u8),
    ExternalSize(u8),
    DType(u8),
    Size(u8, u8),
    Stride(u8, u8),
    Offset(u8),
    On(u8),
    MoreDims(u8),
    DimNames(u8),
    Garbage(u8),
    IsRestored(u8),
    TagGeneration(u8),
    KeptGeneration(u8),
    KeptNextId(u8),
    KeptTable(u8),
    TagCount(u8),
    KeptIsTagged(u8),
    GarbageId(u8),
    GarbageLength(u8),
    GarbageIsTagged(u8),
    HistoryGeneration,
    HistoryRoot,
    HistoryTags,
    HistoryGarbage,
    HistoryPages,
    HistoryDigest,
    HistoryField(u8),
}

#[derive(Arbitrary, Debug)]
enum Number {
    Small(u8),
    Any(u64),
    /// Added to the correct value.
    Off(i8),
    /// A power of two, plus an offset.
    Power(u8, i8),
}

#[derive(Arbitrary, Debug)]
enum Damage {
    Flip { file: u8, at: u16, bit: u8, is_mended: bool },
    Set { file: u8, at: u16, to: u32, is_mended: bool },
    Cut { file: u8, at: u16 },
    Extend { file: u8, by: u16 },
    Delete { file: u8 },
    Swap { one: u8, other: u8 },
    Copy { from: u8, to: u8 },
    Link { from: u8, to: u8 },
    Symlink { from: u8, to: u8 },
    Directory { file: u8 },
    Fifo { file: u8 },
}

impl Number {
    fn of(&self, right: u64) -> u64 {
        match *self {
            Number::Small(n) => n.into(),
            Number::Any(n) => n,
            Number::Off(by) => right.wrapping_add_signed(by.into()),
            Number::Power(power, by) => (1u64 << (power % 64)).wrapping_add_signed(by.into()),
        }
    }
}

impl PlannedStorage {
    fn storage(&self, id: u64) -> Storage {
        let length = match self.length {
            Length::Tiny(n) => n.into(),
            Length::Small(n) => n.into(),
            Length::Chunk(n) => (1 << 20) - 8 + usize::from(n),
        };
        let bytes = (0..length).map(|i| (i as u8 ^ (i >> 8) as u8) & 1).collect();
        let mut storage = Storage::sealed(id, bytes);
        storage.reserved_bytes = u64::from(self.reserved) << 6;
        match self.kind % 8 {
            5 => storage.kind = 1,
            6 => (storage.kind, storage.access_bytes) = (2, 1 << (self.reserved % 4)),
            7 => storage.kind = 3,
            _ => {}
        }
        if storage.kind != 0 {
            storage.sum.clear();
        }
        storage
    }
}

impl PlannedTensor {
    /// Returns a tensor that is inside its storage.
    fn tensor(&self, storages: &[Storage]) -> Option<Tensor> {
        let storage = storages.get(usize::from(self.storage) % storages.len().max(1))?;
        let dtype = DType::ALL[usize::from(self.dtype) % DType::ALL.len()];
        let size: Vec<u64> = self.size.iter().take(6).map(|&n| u64::from(n % 24)).collect();
        let mut stride: Vec<i64> = Vec::new();
        for i in 0..size.len() {
            stride.push(size[i + 1..].iter().map(|&n| n.max(1) as i64).product());
        }
        let mut tensor = Tensor {
            name: self
                .text
                .as_ref()
                .map_or(format!("t{}", self.name), |text| text.chars().take(40).collect())
                .into(),
            dtype: dtype.code(),
            offset_elems: self.offset.into(),
            storage_id: storage.id,
            dim_names: self
                .is_named
                .then(|| (0..size.len()).map(|i| (i % 3 != 0).then(|| format!("d{i}"))).collect()),
            size,
            stride,
        };
        let Tensor { size, stride, offset_elems, .. } = &mut tensor;
        match &self.view {
            View::Contiguous => {}
            View::Transposed => {
                size.reverse();
                stride.reverse();
            }
            View::Reversed => {
                if let (Some(n), Some(step)) = (size.first(), stride.first_mut()) {
                    *offset_elems += n.saturating_sub(1) * *step as u64;
                    *step = -*step;
                }
            }
            View::Expanded => {
                if let (Some(n), Some(step)) = (size.first_mut(), stride.first_mut()) {
                    (*n, *step) = (*n << (self.offset % 40), 0);
                }
            }
            View::Stepped(by) => stride.iter_mut().for_each(|step| *step *= i64::from(by % 4 + 1)),
            View::Strides(given) => {
                for (step, &given) in stride.iter_mut().zip(given) {
                    *step = given.into();
                }
            }
        }
        let dims = tensor.size.iter().zip(&tensor.stride).map(|(&n, &step)| (n.into(), step.into()));
        let extent = Extent::of(dims, tensor.offset_elems.into(), dtype, storage.length_bytes);
        extent.is_ok().then_some(tensor)
    }
}

impl Plan {
    fn model(&self) -> Model {
        let storages: Vec<Storage> =
            (1..).zip(self.storages.iter().take(4)).map(|(id, planned)| planned.storage(id)).collect();
        let tensors = self.tensors.iter().take(8).filter_map(|planned| planned.tensor(&storages));
        let tensors: BTreeMap<Vec<u8>, Tensor> =
            tensors.map(|tensor| (tensor.name.clone(), tensor)).collect();
        let mut model = Model {
            uuid: *b"a store of lies.",
            generation: u64::from(self.generation % 16) + 2,
            next_id: storages.len() as u64 + 3,
            tensors: tensors.into_values().filter(|tensor| !tensor.name.is_empty()).collect(),
            storages,
            ..Model::default()
        };
        for storage in &mut model.storages {
            let on = |tensor: &&Tensor| tensor.storage_id == storage.id;
            storage.tensor_count = model.tensors.iter().filter(on).count() as u64;
        }
        model.table = self.table.map(|(storages, tensors, before)| Table {
            generation: model.generation - u64::from(before % 2),
            storages: usize::from(storages) % (model.storages.len() + 1),
            tensors: usize::from(tensors) % (model.tensors.len() + 1),
            entries_per_node: usize::from(before / 2 % 8) + 1,
            ..Table::default()
        });
        let attributes = self.attributes.iter().take(4).map(|(key, value)| {
            let scope = ["", "t0", "t", "other"][usize::from(key % 4)];
            ((scope.to_owned(), format!("k{key}")), value.clone())
        });
        model.attributes = attributes.collect::<BTreeMap<_, _>>().into_iter().collect();
        // Ids that no storage has, and names that may or may not be in the table.
        for &(n, is_name) in self.removals.iter().take(3) {
            if is_name {
                let name = format!("u{n}").into_bytes();
                if !model.removed_tensors.contains(&name) {
                    model.removed_tensors.push(name);
                }
            } else if model.removed_storages.is_empty() {
                model.removed_storages.push(model.next_id - 1);
            }
        }
        self.add_history(&mut model);
        self.wrong_values
            .iter()
            .take(4)
            .for_each(|(field, number)| set_wrong_value(&mut model, field, number));
        model
    }
}

/// The history.
impl Plan {
    /// Adds tags, the generations that they keep, and the garbage.
    fn add_history(&self, model: &mut Model) {
        let mut tags: BTreeMap<Vec<u8>, Tag> = BTreeMap::new();
        for (n, message) in self.tags.iter().take(4) {
            let name = format!("v{}", n % 16).into_bytes();
            let generation = u64::from(n / 16) % model.generation + 1;
            let message = message.as_ref().map(|text| text.chars().take(40).collect());
            tags.insert(name.clone(), Tag { name, generation, message });
        }
        let mut counts: BTreeMap<(u8, u64), u64> = BTreeMap::new();
        tags.values().for_each(|tag| *counts.entry((1, tag.generation)).or_default() += 1);
        if let Some(n) = self.released {
            let generation = u64::from(n) % model.generation + 1;
            if !counts.contains_key(&(1, generation)) {
                counts.insert((0, generation), 0);
            }
        }
        // An earlier generation has no newer table.
        let table_at =
            |generation| model.table.as_ref().map(|table| table.generation).filter(|&t| t <= generation);
        let kept = counts.iter().map(|(&(is_tagged, generation), &tag_count)| Kept {
            is_tagged,
            generation,
            time_ns: -1 - i64::try_from(generation).unwrap_or_default(),
            next_id: model.next_id,
            table: table_at(generation),
            tag_count,
        });
        model.kept = kept.collect();
        if let Some(&n) = self.garbage.first() {
            let (dropped, id) = (u64::from(n) % model.generation + 1, model.next_id - 2);
            let is_tagged = tags.values().any(|tag| tag.generation < dropped);
            let bytes = (0..n).map(|i| i & 1).collect();
            model.garbage.push(Garbage {
                is_tagged: is_tagged.into(),
                dropped,
                storage: Storage::sealed(id, bytes),
            });
        }
        model.history = self.history.map(|n| Table {
            generation: model.generation - u64::from(n % 2),
            entries_per_node: usize::from(n / 2 % 4) + 1,
            ..Table::default()
        });
        model.tags = tags.into_values().collect();
        (model.time_ns, model.message) = (-1, model.tags.first().and_then(|tag| tag.message.clone()));
    }
}

fn nth<T>(list: &mut [T], n: u8) -> Option<&mut T> {
    let count = list.len().max(1);
    list.get_mut(usize::from(n) % count)
}

fn set_wrong_value(model: &mut Model, field: &Field, number: &Number) {
    let set = |field: Option<&mut u64>| field.into_iter().for_each(|field| *field = number.of(*field));
    let storages = &mut model.storages;
    let tensors = &mut model.tensors;
    match *field {
        Field::Generation => set(Some(&mut model.generation)),
        Field::TableRoot => set(model.table.as_mut().map(|table| &mut table.more_root)),
        Field::NextId => set(Some(&mut model.next_id)),
        Field::TableGeneration => set(model.table.as_mut().map(|table| &mut table.generation)),
        Field::TableStorages => set(model.table.as_mut().map(|table| &mut table.more_first)),
        Field::TableTensors => set(model.table.as_mut().map(|table| &mut table.more_last)),
        Field::TablePages => set(model.table.as_mut().map(|table| &mut table.more_pages)),
        Field::TableDigest => model.table.iter_mut().for_each(|table| table.is_damaged = true),
        Field::NodeField(n) => {
            model.table.iter_mut().for_each(|table| table.fields.push((n.into(), number.of(60))))
        }
        Field::Id(n) => set(nth(storages, n).map(|storage| &mut storage.id)),
        Field::Length(n) => set(nth(storages, n).map(|storage| &mut storage.length_bytes)),
        Field::Count(n) => set(nth(storages, n).map(|storage| &mut storage.tensor_count)),
        Field::Kind(n) => set(nth(storages, n).map(|storage| &mut storage.kind)),
        Field::Access(n) => {
            nth(storages, n).into_iter().for_each(|storage| storage.access_bytes = number.of(4) as u8);
        }
        Field::Reserved(n) => set(nth(storages, n).map(|storage| &mut storage.reserved_bytes)),
        Field::Chunks(n) => {
            nth(storages, n).into_iter().for_each(|storage| storage.chunks[0] ^= number.of(1) as u8);
        }
        Field::Tail(n) => {
            nth(storages, n).into_iter().for_each(|storage| storage.tail[0] ^= number.of(1) as u8)
        }
        Field::ExternalOffset(n) => set(nth(storages, n).map(|storage| &mut storage.offset_bytes)),
        Field::ExternalSize(n) => set(nth(storages, n).map(|storage| &mut storage.stamp[1])),
        Field::DType(n) => nth(tensors, n).into_iter().for_each(|tensor| tensor.dtype = number.of(11) as u8),
        Field::Size(n, dim) => set(nth(tensors, n).and_then(|tensor| nth(&mut tensor.size, dim))),
        Field::Stride(n, dim) => {
            let stride = nth(tensors, n).and_then(|tensor| nth(&mut tensor.stride, dim));
            stride.into_iter().for_each(|stride| *stride = number.of(*stride as u64) as i64);
        }
        Field::Offset(n) => set(nth(tensors, n).map(|tensor| &mut tensor.offset_elems)),
        Field::On(n) => set(nth(tensors, n).map(|tensor| &mut tensor.storage_id)),
        Field::MoreDims(n) => {
            let count = number.of(1) as usize % 70;
            nth(tensors, n).into_iter().for_each(|tensor| {
                tensor.size.extend(vec![1; count]);
                tensor.stride.extend(vec![i64::MIN; count]);
            });
        }
        Field::DimNames(n) => nth(tensors, n).into_iter().for_each(|tensor| {
            tensor.dim_names = Some(vec![Some("d".into()); number.of(2) as usize % 70]);
        }),
        Field::Garbage(n) => set(nth(&mut model.garbage, n).map(|garbage| &mut garbage.dropped)),
        Field::IsRestored(n) => {
            nth(storages, n).into_iter().for_each(|storage| storage.is_restored = number.of(1) as u8);
        }
        Field::TagGeneration(n) => set(nth(&mut model.tags, n).map(|tag| &mut tag.generation)),
        Field::KeptGeneration(n) => set(nth(&mut model.kept, n).map(|kept| &mut kept.generation)),
        Field::KeptNextId(n) => set(nth(&mut model.kept, n).map(|kept| &mut kept.next_id)),
        Field::KeptTable(n) => set(nth(&mut model.kept, n).and_then(|kept| kept.table.as_mut())),
        Field::TagCount(n) => set(nth(&mut model.kept, n).map(|kept| &mut kept.tag_count)),
        Field::KeptIsTagged(n) => {
            nth(&mut model.kept, n).into_iter().for_each(|kept| kept.is_tagged = number.of(1) as u8);
        }
        Field::GarbageId(n) => set(nth(&mut model.garbage, n).map(|garbage| &mut garbage.storage.id)),
        Field::GarbageLength(n) => {
            set(nth(&mut model.garbage, n).map(|garbage| &mut garbage.storage.length_bytes));
        }
        Field::GarbageIsTagged(n) => {
            nth(&mut model.garbage, n).into_iter().for_each(|garbage| garbage.is_tagged = number.of(1) as u8);
        }
        Field::HistoryGeneration => set(model.history.as_mut().map(|table| &mut table.generation)),
        Field::HistoryRoot => set(model.history.as_mut().map(|table| &mut table.more_root)),
        Field::HistoryTags => set(model.history.as_mut().map(|table| &mut table.more_first)),
        Field::HistoryGarbage => set(model.history.as_mut().map(|table| &mut table.more_last)),
        Field::HistoryPages => set(model.history.as_mut().map(|table| &mut table.more_pages)),
        Field::HistoryDigest => model.history.iter_mut().for_each(|table| table.is_damaged = true),
        Field::HistoryField(n) => {
            model.history.iter_mut().for_each(|table| table.fields.push((n.into(), number.of(60))));
        }
    }
}

fn damage(root: &Path, paths: &[PathBuf], damage: &Damage) -> std::io::Result<()> {
    let path = |n: u8| root.join(&paths[usize::from(n) % paths.len()]);
    let change = |file: u8, is_mended: bool, change: &dyn Fn(&mut Vec<u8>)| {
        let path = path(file);
        let mut bytes = fs::read(&path)?;
        change(&mut bytes);
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("tab" | "his") if is_mended => table::mend(&mut bytes),
            Some("man") | None if is_mended => fix_digest(&mut bytes),
            _ => {}
        }
        fs::write(path, bytes)
    };
    // A reader of a FIFO would block.
    let is_file = |n: u8| fs::symlink_metadata(path(n)).is_ok_and(|stat| stat.is_file());
    let remove = |n: u8| fs::remove_file(path(n));
    match *damage {
        Damage::Flip { file, at, bit, is_mended } if is_file(file) => change(file, is_mended, &|bytes| {
            let length = bytes.len().max(1);
            bytes.get_mut(usize::from(at) % length).into_iter().for_each(|byte| *byte ^= 1 << (bit % 8));
        }),
        Damage::Set { file, at, to, is_mended } if is_file(file) => change(file, is_mended, &|bytes| {
            let at = usize::from(at) % bytes.len().max(1);
            bytes.iter_mut().skip(at).zip(to.to_le_bytes()).for_each(|(byte, to)| *byte = to);
        }),
        Damage::Cut { file, at } if is_file(file) => change(file, false, &|bytes| bytes.truncate(at.into())),
        Damage::Extend { file, by } if is_file(file) => {
            change(file, false, &|bytes| bytes.extend(vec![1; by.into()]))
        }
        Damage::Delete { file } => remove(file),
        Damage::Swap { one, other } => {
            let aside = root.join("aside");
            fs::rename(path(one), &aside)?;
            fs::rename(path(other), path(one))?;
            fs::rename(aside, path(other))
        }
        Damage::Copy { from, to } if is_file(from) && is_file(to) => fs::copy(path(from), path(to)).map(drop),
        Damage::Link { from, to } => {
            remove(to)?;
            fs::hard_link(path(from), path(to))
        }
        Damage::Symlink { from, to } => {
            remove(to)?;
            unix::fs::symlink(path(from), path(to))
        }
        Damage::Directory { file } => {
            remove(file)?;
            fs::create_dir(path(file))
        }
        Damage::Fifo { file } => {
            remove(file)?;
            rustix::fs::mknodat(
                rustix::fs::CWD,
                path(file),
                rustix::fs::FileType::Fifo,
                rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
                0,
            )?;
            Ok(())
        }
        _ => Ok(()),
    }
}

fuzz_target!(|plan: Plan| {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    let dir = ROOT.get_or_init(|| scratch("malformed").expect("a directory to work in"));
    let root = dir.join("store.smap");
    for part in ["meta", "generations", "storages"] {
        fs::create_dir_all(root.join(part)).expect("a directory");
    }
    let outside = dir.join("outside.bin");
    fs::write(&outside, [1; 4096]).expect("a file beside the store");
    let mut model = plan.model();
    // External storages describe the existing file, with the errors that the plan gave them.
    let stat = rustix::fs::stat(&outside).expect("a file beside the store");
    for storage in &mut model.storages {
        let mtime = stat.st_mtime * 1_000_000_000 + stat.st_mtime_nsec as i64;
        storage.length_bytes =
            if storage.kind == 3 { storage.length_bytes.min(4096) } else { storage.length_bytes };
        storage.stamp = [stat.st_ino, storage.stamp[1].wrapping_add(4096), mtime as u64];
    }
    let files = model.files();
    if plan.has_older {
        let older = Model { uuid: model.uuid, generation: 1, next_id: 1, ..Model::default() };
        for (path, bytes) in older.files() {
            fs::write(root.join(path), bytes).expect("a file");
        }
    }
    for (path, bytes) in &files {
        fs::write(root.join(path), bytes).expect("a file");
    }
    let paths: Vec<PathBuf> = files.keys().map(PathBuf::from).collect();
    for one in plan.damages.iter().take(3) {
        // A file that another edit has removed cannot be damaged.
        let _ = damage(&root, &paths, one);
    }
    exercise(&root, Work::of(plan.work));
    fs::remove_dir_all(&root).expect("the store can be deleted");
});
