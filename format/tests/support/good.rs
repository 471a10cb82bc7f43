//! The values of the good vectors.

use std::collections::BTreeMap;
use std::sync::Arc;

use stridemap_format::limits::{
    MAX_DIM_NAME_BYTES, MAX_RANK, MAX_RESERVED_BYTES, MAX_STORAGE_BYTES, MAX_TEXT_BYTES,
};
use stridemap_format::{
    Attributes, Bounds, DType, External, FileStamp, GarbageKey, Header, KeptGeneration, KeptKey, Manifest,
    Marker, RecordKind, Sealed, StorageRecord, Tag, TensorRecord, Uuid, digest,
};

use super::table::Table;

const UUID: Uuid = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

pub(crate) fn markers() -> Vec<(&'static str, Marker)> {
    let uuid = *b"\xff\x00\r\n\x1a\x89SMAP\x80\x7f\xaa\x55\x01\xfe";
    vec![("marker", Marker { uuid: UUID }), ("marker-of-any-bytes", Marker { uuid })]
}

pub(crate) fn manifests() -> Vec<(&'static str, Manifest)> {
    vec![
        ("first", Manifest::first(UUID)),
        ("small", small_manifest()),
        ("deltas", deltas()),
        ("integers", integers()),
        ("limits", limits()),
        ("scopes", scopes()),
        ("on-table", on_table()),
        ("history", on_history()),
        ("kept", on_history().without_history()),
        ("messages", messages()),
    ]
}

/// Returns the tables of storages and tensors.
pub(crate) fn tables() -> Vec<(&'static str, Table)> {
    let late = Bounds { generation: 0x7_0000_0003, ..SMALL };
    let no_tensors = Table { tensors: BTreeMap::new(), ..small_table() };
    vec![
        ("table", table()),
        ("no-tensors", no_tensors),
        ("small-table", small_table()),
        ("late", Table { bounds: late, ..small_table() }),
        ("levels", levels()),
        ("long-nodes", long_nodes()),
        ("packing", packing()),
    ]
}

/// Returns the tables of tags, kept generations and garbage.
pub(crate) fn histories() -> Vec<(&'static str, Table)> {
    let only_garbage = Table { tags: BTreeMap::new(), kept: BTreeMap::new(), ..small_history() };
    vec![
        ("history-table", history()),
        ("small-history", small_history()),
        ("only-garbage", only_garbage),
        ("history-levels", history_levels()),
        ("history-limits", history_limits()),
    ]
}

/// The bounds of most vectors.
const SMALL: Bounds = Bounds { generation: 7, next_storage_id: 400 };

/// Returns the manifest from which each bad one differs in one rule.
pub(crate) fn small_manifest() -> Manifest {
    let (table, history) = (small_table(), small_history());
    Manifest {
        time_ns: -3,
        message: Some("m".into()),
        storages: added(table.storages),
        tensors: added(table.tensors),
        attributes: attributes(&[("", "k", "v")]),
        tags: added(history.tags),
        kept: added(history.kept),
        garbage: added(history.garbage),
        ..manifest_of(SMALL)
    }
}

fn manifest_of(bounds: Bounds) -> Manifest {
    let Bounds { generation, next_storage_id } = bounds;
    Manifest { generation, next_storage_id, ..Manifest::first(UUID) }
}

/// Returns a map of changes without removals.
fn added<K: Ord, V>(entries: BTreeMap<K, V>) -> BTreeMap<K, Option<V>> {
    entries.into_iter().map(|(key, value)| (key, Some(value))).collect()
}

/// Returns the table from which each bad one differs in one rule.
pub(crate) fn small_table() -> Table {
    Table {
        storages: BTreeMap::from([(1, storage(24, 1, small_kind()))]),
        tensors: BTreeMap::from([("t".to_owned(), tensor(DType::F32, &[3, 2], &[2, 1], 0, 1))]),
        ..Table::empty(UUID, SMALL)
    }
}

fn small_kind() -> RecordKind {
    RecordKind::Sealed(Sealed { chunks: [0; 16], tail: [0xaa; 16], reserved_bytes: 0 })
}

/// Returns the history from which each bad one differs in one rule.
pub(crate) fn small_history() -> Table {
    Table {
        tags: BTreeMap::from([("v1".to_owned(), Tag { generation: 5, message: None })]),
        kept: BTreeMap::from([kept(5, 1, (-4, 400, Some(5)))]),
        garbage: BTreeMap::from([(garbage(true, 7, 2), storage(24, 0, small_kind()))]),
        ..Table::empty(UUID, SMALL)
    }
}

/// Returns a manifest with every kind of change.
fn deltas() -> Manifest {
    let transposed = tensor(DType::F32, &[2, 3], &[1, 2], 0, 3);
    Manifest {
        time_ns: 1_700_000_000_123_456_789,
        storages: BTreeMap::from([
            (1, None),
            (3, Some(sealed(24, 4))),
            (4, Some(storage(1 << 20, 2, RecordKind::Mutable))),
            (5, Some(storage(0, 1, RecordKind::Live { access_bytes: 1 }))),
            (6, Some(storage(8, 0, RecordKind::Live { access_bytes: 2 }))),
            (7, Some(reserving(3 << 20, 1 << 30))),
            (8, Some(StorageRecord { is_restored: true, ..sealed(100, 1) })),
            (9, Some(storage(1000, 1, external("data/λ.safetensors", 88, 2000)))),
        ]),
        tensors: [
            ("removed", None),
            ("row major", Some(tensor(DType::F32, &[3, 2], &[2, 1], 0, 3))),
            ("transposed", Some(transposed.clone())),
            ("named", Some(with_names(&transposed, [Some("x"), Some("_y2")]))),
            ("half named", Some(with_names(&transposed, [None, Some("x")]))),
            ("../..", Some(tensor(DType::I64, &[4], &[-2], 6, 4))),
            ("λ/权重 🦀\n", Some(tensor(DType::BF16, &[1000, 7], &[0, 1], 5, 4))),
            ("nothing", Some(tensor(DType::Bool, &[0, 3], &[3, 1], 0, 5))),
            ("scalar", Some(tensor(DType::F64, &[], &[], 124, 9))),
        ]
        .map(|(name, record)| (name.to_owned(), record))
        .into(),
        attributes: attributes(&[("", "author", "Ada"), ("", "empty", ""), ("", "ключ", "a\0b\n")]),
        tags: BTreeMap::from([
            ("../λ \n".to_owned(), Some(Tag { generation: 6, message: Some("a\nb".to_owned()) })),
            ("now".to_owned(), Some(Tag { generation: 7, message: None })),
            ("removed".to_owned(), None),
        ]),
        // Generation 3 lost its last tag, and generation 4 was deleted since.
        kept: BTreeMap::from([
            (kept(3, 0, (5, 2, None)).0, Some(kept(3, 0, (5, 2, None)).1)),
            (kept(4, 0, (0, 1, None)).0, None),
            (kept(3, 1, (0, 1, None)).0, None),
            (kept(6, 1, (-1, 2, None)).0, Some(kept(6, 1, (-1, 2, None)).1)),
            (kept(7, 1, (0, 10, None)).0, Some(kept(7, 1, (1_700_000_000_123_456_789, 10, None)).1)),
        ]),
        garbage: BTreeMap::from([
            (garbage(false, 3, 2), None),
            (garbage(false, 7, 2), Some(storage(1 << 20, 0, RecordKind::Mutable))),
            (garbage(true, 7, 1), Some(StorageRecord { is_restored: true, ..sealed(24, 0) })),
        ]),
        ..manifest_of(Bounds { generation: 7, next_storage_id: 10 })
    }
}

/// Returns a manifest with the integers on both sides of every change of width.
fn integers() -> Manifest {
    let unsigned = [0, 250, 251, 0xffff, 0x1_0000, 0xffff_ffff, 0x1_0000_0000, u64::MAX];
    let size = unsigned.map(|n| n as usize);
    let signed = [125, -125, 126, -126, isize::MAX, isize::MIN, -1, 0x8000];
    let removed = unsigned[1..7].iter().map(|&id| (id, None));
    Manifest {
        time_ns: i64::MAX,
        storages: removed.chain([(u64::MAX - 1, Some(sealed(0, 1)))]).collect(),
        tensors: [("integers".to_owned(), Some(tensor(DType::U8, &size, &signed, 0, u64::MAX - 1)))].into(),
        tags: added(
            unsigned[1..].iter().map(|&at| (at.to_string(), Tag { generation: at, message: None })).collect(),
        ),
        kept: added(unsigned[1..].iter().map(|&at| kept(at, at, (-(at as i64), at, Some(at)))).collect()),
        garbage: unsigned[1..7].iter().map(|&id| (garbage(false, id, id), None)).collect(),
        ..manifest_of(Bounds { generation: u64::MAX, next_storage_id: u64::MAX })
    }
}

/// Returns a tensor with the most dimensions, and the longest names of them.
fn deep(storage_id: u64) -> TensorRecord {
    let name = |i: usize| Some(format!("d{i:0>width$}", width = MAX_DIM_NAME_BYTES - 1));
    with_names(
        &tensor(DType::F32, &[1; MAX_RANK], &[isize::MIN; MAX_RANK], 0, storage_id),
        (0..MAX_RANK).map(name),
    )
}

/// Returns a manifest with every field at its maximum, and with the largest view that contains no element.
fn limits() -> Manifest {
    let wide = tensor(DType::U8, &[isize::MAX as usize], &[1], 0, 1);
    let (mut size, mut stride) = ([usize::MAX; MAX_RANK], [isize::MIN; MAX_RANK]);
    (size[MAX_RANK - 1], stride[0]) = (0, isize::MAX);
    Manifest {
        time_ns: i64::MIN,
        message: Some("m".repeat(MAX_TEXT_BYTES)),
        next_storage_id: 4,
        storages: BTreeMap::from([
            (1, Some(storage(MAX_STORAGE_BYTES, 1, RecordKind::Live { access_bytes: 8 }))),
            (2, Some(storage(4, 2, external(&"p".repeat(MAX_TEXT_BYTES), u64::MAX - 4, u64::MAX)))),
            (3, Some(reserving(MAX_STORAGE_BYTES, MAX_RESERVED_BYTES))),
        ]),
        tensors: BTreeMap::from([
            ("deep".to_owned(), Some(deep(2))),
            ("n".repeat(MAX_TEXT_BYTES), Some(wide)),
            ("nothing".to_owned(), Some(tensor(DType::F32, &size, &stride, 1, 2))),
        ]),
        attributes: attributes(&[
            ("", &"k".repeat(MAX_TEXT_BYTES), ""),
            (&"s".repeat(MAX_TEXT_BYTES), &"k".repeat(MAX_TEXT_BYTES), ""),
        ]),
        tags: BTreeMap::from([(
            "t".repeat(MAX_TEXT_BYTES),
            Some(Tag { generation: 1, message: Some("m".repeat(MAX_TEXT_BYTES)) }),
        )]),
        kept: added([kept(1, u64::MAX, (i64::MIN, 4, Some(1)))].into()),
        garbage: BTreeMap::from([(
            garbage(true, 1, 3),
            Some(storage(4, 0, external(&"p".repeat(MAX_TEXT_BYTES), u64::MAX - 4, u64::MAX))),
        )]),
        ..Manifest::first(UUID)
    }
}

/// Returns a manifest with attributes of the store, of a tensor, of prefixes, and of names without a tensor.
fn scopes() -> Manifest {
    Manifest {
        attributes: attributes(&[
            ("", "format", "pt"),
            ("encoder.", "format", "np"),
            ("encoder.", "license", "MIT"),
            ("removed", "unit", "mm"),
            ("t", "scale", "0.5"),
            ("λ/", "ключ", "a\0b\n"),
        ]),
        ..small_manifest()
    }
}

fn attributes(texts: &[(&str, &str, &str)]) -> Attributes {
    let entry =
        |&(scope, key, value): &(&str, &str, &str)| ((scope.to_owned(), key.to_owned()), value.to_owned());
    texts.iter().map(entry).collect()
}

/// Returns changes over the table of generation 7: a second name for its storage 4, and the removal of its storage 3.
fn on_table() -> Manifest {
    let table = table();
    let live = StorageRecord { tensor_count: 2, ..table.storages[&4].clone() };
    Manifest {
        table: Some(table.encode().1),
        storages: BTreeMap::from([(3, None), (4, Some(live))]),
        tensors: BTreeMap::from([
            ("views/diagonal".to_owned(), None),
            ("views/column".to_owned(), None),
            ("views/reversed".to_owned(), None),
            ("views/live".to_owned(), Some(tensor(DType::I32, &[4, 4], &[4, 1], 0, 4))),
        ]),
        garbage: BTreeMap::from([(garbage(false, 8, 3), Some(storage(16, 0, RecordKind::Mutable)))]),
        ..manifest_of(Bounds { generation: 8, ..table.bounds })
    }
}

/// Returns changes over the history of generation 7: its tag "b" is moved to generation 8, its tag "a" and what only that
/// kept are released, and storage 5 is restored.
fn on_history() -> Manifest {
    let history = history();
    let table = table();
    let (moved, left) = (kept(8, 1, (90, 301, Some(7))), kept(6, 1, (-60, 299, Some(5))));
    let released = kept(2, 0, (-20, 3, None));
    let storage_2 = history.garbage[&garbage(true, 4, 2)].clone();
    Manifest {
        time_ns: 90,
        message: Some("restore storage 5".to_owned()),
        table: Some(table.encode().1),
        history: Some(history.encode().1),
        storages: BTreeMap::from([(5, Some(StorageRecord { is_restored: true, ..sealed(48, 1) }))]),
        tensors: BTreeMap::from([("restored".to_owned(), Some(tensor(DType::U8, &[40], &[1], 0, 5)))]),
        attributes: attributes(&[("", "step", "8")]),
        tags: BTreeMap::from([
            ("a".to_owned(), None),
            ("b".to_owned(), Some(Tag { generation: 8, message: Some("restore storage 5".to_owned()) })),
        ]),
        kept: BTreeMap::from([
            (KeptKey { is_tagged: true, generation: 2 }, None),
            (released.0, Some(released.1)),
            (left.0, Some(left.1)),
            (moved.0, Some(moved.1)),
        ]),
        garbage: BTreeMap::from([
            (garbage(true, 4, 2), None),
            (garbage(false, 4, 2), Some(storage_2)),
            (garbage(true, 7, 5), None),
        ]),
        ..manifest_of(Bounds { generation: 8, ..table.bounds })
    }
}

/// Returns a manifest with messages in several scripts, and the earliest time.
fn messages() -> Manifest {
    let tag = |message: &str| Some(Tag { generation: 7, message: Some(message.to_owned()) });
    Manifest {
        time_ns: i64::MIN,
        message: Some("second line:\n\tλ 权重 🦀".to_owned()),
        tags: BTreeMap::from([("λ/权重 🦀".to_owned(), tag("\u{1}")), ("a b".to_owned(), tag(" "))]),
        kept: added([kept(7, 2, (i64::MIN, 400, None))].into()),
        ..manifest_of(SMALL)
    }
}

/// Returns a table with storages of every kind, a tensor of every dtype, and views.
fn table() -> Table {
    let of_dtype = |dtype: &DType| (format!("dtypes/{dtype}"), tensor(*dtype, &[2, 3], &[3, 1], 0, 1));
    let views = [
        ("views/column", tensor(DType::U8, &[4, 1], &[4, 999], 1, 3)),
        ("views/counter", tensor(DType::I32, &[], &[], 15, 4)),
        ("views/diagonal", tensor(DType::U8, &[4], &[5], 0, 3)),
        ("views/expanded", tensor(DType::C128, &[1 << 20, 1 << 20], &[0, 0], 1, 300)),
        ("views/nothing", tensor(DType::F64, &[5, 0, 5], &[0, 5, 1], 0, 300)),
        ("views/reversed", tensor(DType::U8, &[4, 4], &[-4, -1], 15, 3)),
        ("views/wide", tensor(DType::F16, &[1 << 20, 2], &[2, 1], 0, 2)),
    ];
    Table {
        storages: BTreeMap::from([
            (1, sealed(96, DType::ALL.len() as u64)),
            (2, sealed(4 << 20, 1)),
            (3, storage(16, 3, RecordKind::Mutable)),
            (4, storage(64, 1, RecordKind::Live { access_bytes: 4 })),
            (300, storage(32, 2, external("/mnt/weights.bin", 0, 32))),
        ]),
        tensors: DType::ALL
            .iter()
            .map(of_dtype)
            .chain(views.map(|(name, record)| (name.to_owned(), record)))
            .collect(),
        ..Table::empty(UUID, Bounds { generation: 7, next_storage_id: 301 })
    }
}

/// Returns a history with tags that share a generation, kept generations with and without tags, and garbage of every
/// kind, which a tag keeps or none does.
fn history() -> Table {
    let tag = |generation, message: Option<&str>| Tag { generation, message: message.map(str::to_owned) };
    Table {
        tags: [
            ("a", tag(2, None)),
            ("b", tag(6, Some("moved later"))),
            ("step/1", tag(6, None)),
            ("λ", tag(7, Some("the newest"))),
        ]
        .map(|(name, tag)| (name.to_owned(), tag))
        .into(),
        kept: BTreeMap::from([
            kept(1, 0, (0, 1, None)),
            kept(5, 0, (-50, 9, Some(5))),
            kept(2, 1, (-20, 3, None)),
            kept(6, 2, (-60, 299, Some(5))),
            kept(7, 1, (1_700_000_000_123_456_789, 301, Some(7))),
        ]),
        garbage: BTreeMap::from([
            (garbage(false, 6, 8), storage(16, 0, RecordKind::Mutable)),
            (garbage(false, 7, 299), storage(64, 0, RecordKind::Live { access_bytes: 4 })),
            (garbage(true, 4, 2), sealed(24, 0)),
            (garbage(true, 7, 5), StorageRecord { is_restored: true, ..sealed(48, 0) }),
            (garbage(true, 7, 6), storage(32, 0, external("/mnt/weights.bin", 0, 32))),
        ]),
        ..Table::empty(UUID, Bounds { generation: 7, next_storage_id: 301 })
    }
}

/// Returns a history whose three trees have several levels.
fn history_levels() -> Table {
    let name = |number: u64| format!("{}{number:03}", "t".repeat(700));
    let message = |number: u64| Some("m".repeat(number as usize + 1));
    let path = |number: u64| external(&format!("{number:0>900}"), 0, 8);
    Table {
        tags: (1..=40).map(|at| (name(at), Tag { generation: 100 * at, message: message(at) })).collect(),
        kept: (1..=400)
            .map(|at| kept(10 * at, at % 2, (-1 << at.min(60), at.min(300), Some(10 * at))))
            .collect(),
        garbage: (1..=40)
            .map(|at| (garbage(at % 3 == 0, 100 * at, 300 - at), storage(8, 0, path(at))))
            .collect(),
        ..Table::empty(UUID, Bounds { generation: 4000, next_storage_id: 300 })
    }
}

/// Returns a history with the longest tag and message, and the largest numbers.
fn history_limits() -> Table {
    let most = u64::MAX;
    let long = || "x".repeat(MAX_TEXT_BYTES);
    Table {
        tags: [(long(), Tag { generation: most, message: Some(long()) })].into(),
        kept: [kept(1, 0, (i64::MAX, 1, Some(1))), kept(most, most, (i64::MIN, most, Some(most)))].into(),
        garbage: [
            (garbage(false, most, most - 1), storage(4, 0, external(&long(), most - 4, most))),
            (garbage(true, 1, 1), storage(MAX_STORAGE_BYTES, 0, RecordKind::Mutable)),
        ]
        .into(),
        ..Table::empty(UUID, Bounds { generation: most, next_storage_id: most })
    }
}

/// Returns a kept generation. `rest` is its time, its next storage id, and the generation of its table.
fn kept(generation: u64, tag_count: u64, rest: (i64, u64, Option<u64>)) -> (KeptKey, KeptGeneration) {
    let (time_ns, next_storage_id, table) = rest;
    let key = KeptKey { is_tagged: tag_count > 0, generation };
    (key, KeptGeneration { time_ns, next_storage_id, table, tag_count })
}

fn garbage(is_tagged: bool, dropped: u64, id: u64) -> GarbageKey {
    GarbageKey { is_tagged, dropped, id }
}

/// Returns a table whose tree of storages has two levels, and whose tree of tensors has three.
fn levels() -> Table {
    let path = |id: u64| external(&format!("{id:0>1000}"), 0, 8);
    let view = |id: u64, end: u64| {
        (format!("{}.{id:03}.{end}", "n".repeat(1000)), tensor(DType::I16, &[2], &[1], 2 * end as usize, id))
    };
    Table {
        bounds: Bounds { generation: 9, next_storage_id: 300 },
        storages: (1..=9).map(|id| (id * 30, storage(8, 2, path(id)))).collect(),
        tensors: (1..=9).flat_map(|id| [view(id * 30, 0), view(id * 30, 1)]).collect(),
        ..small_table()
    }
}

/// Returns a table whose nodes have several pages: a leaf with the largest record, and an inner node of long names.
fn long_nodes() -> Table {
    let name = |end: &str| "n".repeat(MAX_TEXT_BYTES - end.len()) + end;
    let short = tensor(DType::U8, &[], &[], 0, 1);
    Table {
        tensors: [(name("a"), short.clone()), (name("b"), deep(1)), (name("c"), short)].into(),
        storages: BTreeMap::from([(1, storage(4, 3, external(&"p".repeat(MAX_TEXT_BYTES), 0, 4)))]),
        ..small_table()
    }
}

/// Returns a table whose nodes have room that a writer leaves free. The record of each short name takes more than half a
/// page, so it has a leaf of its own.
///
/// The first leaf has two pages, and the second entry would fit in them. The first inner node has two pages too, and the
/// third and fourth child would fit. The last name does not fit in the page of the second inner node, but no other child
/// follows, so it does not begin a third one.
fn packing() -> Table {
    let name = |letter: &str, bytes: usize| letter.repeat(bytes);
    let half_a_page = with_names(
        &tensor(DType::U8, &[1; 9], &[1; 9], 0, 1),
        (0..9).map(|i| Some(format!("d{i:0>width$}", width = MAX_DIM_NAME_BYTES - 1))),
    );
    let long = ["y", "z"].map(|letter| (name(letter, 2500), half_a_page.clone()));
    let short = ["b", "c", "d", "e"].map(|letter| (name(letter, 1), half_a_page.clone()));
    let first = (name("a", MAX_TEXT_BYTES), tensor(DType::U8, &[], &[], 0, 1));
    Table {
        tensors: [first].into_iter().chain(short).chain(long).collect(),
        storages: BTreeMap::from([(1, sealed(1, 7))]),
        ..small_table()
    }
}

fn storage(length_bytes: u64, tensor_count: u64, kind: RecordKind) -> StorageRecord {
    StorageRecord { tensor_count, ..StorageRecord::new(length_bytes, kind) }
}

/// Returns a sealed storage. Its digests are those of the bytes of its length.
fn sealed(length_bytes: u64, tensor_count: u64) -> StorageRecord {
    let (chunks, tail) = (digest(&length_bytes.to_be_bytes()), digest(&length_bytes.to_le_bytes()));
    storage(length_bytes, tensor_count, RecordKind::Sealed(Sealed { chunks, tail, reserved_bytes: 0 }))
}

/// Returns a growing sealed storage that no tensor refers to.
fn reserving(length_bytes: u64, reserved_bytes: u64) -> StorageRecord {
    let (chunks, tail) = ([0xcc; 16], [0xee; 16]);
    storage(length_bytes, 0, RecordKind::Sealed(Sealed { chunks, tail, reserved_bytes }))
}

fn external(path: &str, offset_bytes: u64, size_bytes: u64) -> RecordKind {
    let stamp = FileStamp { inode: 1 << 33, size_bytes, mtime_ns: -1_700_000_000_123_456_789 };
    RecordKind::External(External { path: path.to_owned(), offset_bytes, stamp })
}

fn tensor(dtype: DType, size: &[usize], stride: &[isize], offset: usize, storage_id: u64) -> TensorRecord {
    let header = Header::new(dtype, size, stride, offset).unwrap();
    TensorRecord { header: header.into(), storage_id }
}

fn with_names(
    record: &TensorRecord,
    names: impl IntoIterator<Item = Option<impl Into<Arc<str>>>>,
) -> TensorRecord {
    let header = Header::clone(&record.header);
    let header = header.with_dim_names(names.into_iter().map(|name| name.map(Into::into))).unwrap();
    TensorRecord { header: header.into(), ..*record }
}
