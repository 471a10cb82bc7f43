//! Random valid values.

use std::collections::BTreeMap;
use std::fmt::Debug;

use proptest::collection::{btree_map, vec};
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;
use stridemap_format::limits::{MAX_RANK, MAX_RESERVED_BYTES};
use stridemap_format::{
    Bounds, DType, External, FileStamp, GarbageKey, Header, KeptGeneration, KeptKey, Manifest, RecordKind,
    Sealed, StorageRecord, TableRef, Tag, TensorRecord, Tree, TreeRef, Uuid,
};

use super::table::Table;

/// A number of any width.
pub(crate) fn number() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..64u32).prop_map(|(n, shift)| n >> shift)
}

pub(crate) fn dtype() -> impl Strategy<Value = DType> {
    select(DType::ALL)
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        12 => "\\PC{1,12}",
        3 => "[a-c]",
        3 => "[^\\x00]{250,260}",
        // Long names with a common prefix, up to the limit.
        1 => (1000..4090usize, "[a-c]{1,6}").prop_map(|(length, end)| "n".repeat(length) + &end),
    ]
}

fn stamp() -> impl Strategy<Value = FileStamp> {
    (number(), number(), any::<i64>()).prop_map(|(inode, size_bytes, mtime_ns)| FileStamp {
        inode,
        size_bytes,
        mtime_ns,
    })
}

pub(crate) fn storage_record() -> impl Strategy<Value = StorageRecord> {
    let external = (name(), number(), stamp())
        .prop_map(|(path, offset_bytes, stamp)| RecordKind::External(External { path, offset_bytes, stamp }));
    let sealed = any::<([u8; 16], [u8; 16])>();
    let sealed = (sealed, 0..=MAX_RESERVED_BYTES, 0..47u32).prop_map(|((chunks, tail), reserved, shift)| {
        Sealed { chunks, tail, reserved_bytes: reserved >> shift }
    });
    let kind = prop_oneof![
        sealed.prop_map(RecordKind::Sealed),
        Just(RecordKind::Mutable),
        select(&[1u8, 2, 4, 8][..]).prop_map(|access_bytes| RecordKind::Live { access_bytes }),
        external,
    ];
    (number(), number(), kind, any::<bool>()).prop_map(|(length, tensor_count, mut kind, is_restored)| {
        let mut length_bytes = length >> 1;
        if let RecordKind::External(external) = &mut kind {
            external.offset_bytes = external.offset_bytes.min(external.stamp.size_bytes);
            length_bytes = length_bytes.min(external.stamp.size_bytes - external.offset_bytes);
        }
        StorageRecord { length_bytes, tensor_count, kind, is_restored }
    })
}

/// A tensor on a storage with an id below `next_id`. Its extent is unbounded. A few are of the largest size.
pub(crate) fn tensor_record(next_id: u64) -> impl Strategy<Value = TensorRecord> {
    prop_oneof![30 => small_record(next_id), 1 => (1..next_id).prop_map(largest_record)]
}

/// Returns a tensor of 64 dimensions, each with the longest size, stride and name.
fn largest_record(storage_id: u64) -> TensorRecord {
    let name = |i: usize| Some(format!("{}{i:02}", "d".repeat(253)).into());
    let mut size = vec![usize::MAX; MAX_RANK];
    size[0] = 0;
    let header = Header::new(DType::F32, size, vec![isize::MIN; MAX_RANK], usize::MAX).unwrap();
    let header = header.with_dim_names((0..MAX_RANK).map(name)).unwrap();
    TensorRecord { header: header.into(), storage_id }
}

fn small_record(next_id: u64) -> impl Strategy<Value = TensorRecord> {
    let dim =
        (prop_oneof![4 => 0..70usize, 1 => number().prop_map(|n| n as usize)], any::<isize>(), 0..64u32);
    let dim = dim.prop_map(|(size, stride, shift)| (size, stride >> shift));
    let names = of((any::<u8>(), "[A-Za-z_][A-Za-z0-9_]{0,8}"));
    (dtype(), vec(dim, 0..6), number(), 1..next_id, names).prop_filter_map(
        "the number of elements fits",
        |(dtype, dims, offset, storage_id, names)| {
            let (size, stride): (Vec<_>, Vec<_>) = dims.into_iter().unzip();
            let rank = size.len();
            let mut header = Header::new(dtype, size, stride, offset as usize).ok()?;
            if let Some((named, prefix)) = names {
                let name = |i| (named >> i & 1 == 1).then(|| format!("{prefix}{i}").into());
                header = header.with_dim_names((0..rank).map(name)).ok()?;
            }
            Some(TensorRecord { header: header.into(), storage_id })
        },
    )
}

/// A text of a user: a name without NUL.
fn message() -> impl Strategy<Value = Option<String>> {
    of(name())
}

pub(crate) fn tag(bounds: Bounds) -> impl Strategy<Value = Tag> {
    (1..=bounds.generation, message()).prop_map(|(generation, message)| Tag { generation, message })
}

pub(crate) fn kept(bounds: Bounds) -> impl Strategy<Value = (KeptKey, KeptGeneration)> {
    let key = (any::<bool>(), number()).prop_map(move |(is_tagged, generation)| KeptKey {
        is_tagged,
        generation: generation.clamp(1, bounds.generation),
    });
    (key, any::<i64>(), 1..=bounds.next_storage_id, of(number()), number()).prop_map(
        |(key, time_ns, next_storage_id, table, count)| {
            let table = table.map(|table| table.clamp(1, key.generation));
            let tag_count = if key.is_tagged { count.max(1) } else { 0 };
            (key, KeptGeneration { time_ns, next_storage_id, table, tag_count })
        },
    )
}

pub(crate) fn garbage(bounds: Bounds) -> impl Strategy<Value = (GarbageKey, StorageRecord)> {
    let key = (any::<bool>(), 1..=bounds.generation, 1..bounds.next_storage_id);
    (key, storage_record()).prop_map(|((is_tagged, dropped, id), record)| {
        (GarbageKey { is_tagged, dropped, id }, StorageRecord { tensor_count: 0, ..record })
    })
}

/// Entries of a map of changes: some of them are removals.
fn changes<K: Ord + Debug, V: Debug>(
    entry: impl Strategy<Value = (K, V)>,
) -> impl Strategy<Value = BTreeMap<K, Option<V>>> {
    let entry = (entry, any::<bool>()).prop_map(|((key, value), stays)| (key, stays.then_some(value)));
    vec(entry, 0..6).prop_map(BTreeMap::from_iter)
}

/// Changes of kept generations, none of which is listed twice.
fn kept_changes(bounds: Bounds) -> impl Strategy<Value = BTreeMap<KeptKey, Option<KeptGeneration>>> {
    changes(kept(bounds)).prop_map(|mut kept| {
        let released = |key: &KeptKey| KeptKey { is_tagged: false, ..*key };
        let all = kept.clone();
        kept.retain(|key, kept| {
            !key.is_tagged || kept.is_none() || !matches!(all.get(&released(key)), Some(Some(_)))
        });
        kept
    })
}

fn tree_ref() -> impl Strategy<Value = TreeRef> {
    let tree_ref = |(root_page, entry_count): (u64, u64)| TreeRef { root_page, entry_count };
    // A tree without entries has no root.
    prop_oneof![Just((0, 0)), (number(), number().prop_map(|count| count.max(1)))].prop_map(tree_ref)
}

fn table_ref(generation: u64, is_history: bool) -> impl Strategy<Value = TableRef> {
    (1..=generation, number(), [tree_ref(), tree_ref(), tree_ref(), tree_ref(), tree_ref()]).prop_map(
        move |(generation, page_count, mut trees)| {
            for (tree, reference) in Tree::ALL.iter().zip(&mut trees) {
                if tree.is_history() != is_history {
                    *reference = TreeRef::default();
                }
            }
            TableRef { generation, page_count, trees }
        },
    )
}

fn bounds() -> impl Strategy<Value = Bounds> {
    (number(), number()).prop_map(|(generation, next_storage_id)| Bounds {
        generation: generation.max(1),
        next_storage_id: next_storage_id.max(2),
    })
}

prop_compose! {
    pub(crate) fn manifest()(bounds in bounds())(
        bounds in Just(bounds),
        uuid in any::<Uuid>(),
        time_ns in any::<i64>(),
        message in message(),
        (table, history) in (of(table_ref(bounds.generation, false)), of(table_ref(bounds.generation, true))),
        storages in btree_map(1..bounds.next_storage_id, of(storage_record()), 0..8),
        tensors in btree_map(name(), of(tensor_record(bounds.next_storage_id)), 0..8),
        attributes in btree_map((prop_oneof![Just(String::new()), name()], name()), ".{0,20}", 0..4),
        tags in btree_map(name(), of(tag(bounds)), 0..6),
        (kept, garbage) in (kept_changes(bounds), changes(garbage(bounds))),
    ) -> Manifest {
        let Bounds { generation, next_storage_id } = bounds;
        Manifest {
            uuid, generation, time_ns, message, next_storage_id, table, history, storages, tensors, attributes, tags,
            kept, garbage,
        }
    }
}

prop_compose! {
    fn table_of_tensors()(bounds in bounds())(
        bounds in Just(bounds),
        uuid in any::<Uuid>(),
        storages in btree_map(1..bounds.next_storage_id, storage_record(), 0..30),
        tensors in btree_map(name(), tensor_record(bounds.next_storage_id), 0..30),
    ) -> Table {
        Table { storages, tensors, ..Table::empty(uuid, bounds) }
    }
}

prop_compose! {
    fn history()(bounds in bounds())(
        bounds in Just(bounds),
        uuid in any::<Uuid>(),
        tags in btree_map(name(), tag(bounds), 0..30),
        kept in vec(kept(bounds), 0..100),
        garbage in vec(garbage(bounds), 0..60),
    ) -> Table {
        let (kept, garbage) = (kept.into_iter().collect(), garbage.into_iter().collect());
        Table { tags, kept, garbage, ..Table::empty(uuid, bounds) }
    }
}

pub(crate) fn table() -> impl Strategy<Value = Table> {
    prop_oneof![2 => table_of_tensors(), 1 => history()]
}
