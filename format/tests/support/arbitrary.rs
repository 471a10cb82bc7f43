//! Random valid values.

use proptest::collection::{btree_map, vec};
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;
use stridemap_format::limits::{MAX_RANK, MAX_RESERVED_BYTES};
use stridemap_format::{
    DType, External, FileStamp, Header, Manifest, RecordKind, Sealed, StorageRecord, TableRef, TensorRecord,
    TreeRef, Uuid,
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
    (number(), number(), kind).prop_map(|(length, tensor_count, mut kind)| {
        let mut length_bytes = length >> 1;
        if let RecordKind::External(external) = &mut kind {
            external.offset_bytes = external.offset_bytes.min(external.stamp.size_bytes);
            length_bytes = length_bytes.min(external.stamp.size_bytes - external.offset_bytes);
        }
        StorageRecord { length_bytes, tensor_count, kind }
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

fn tree_ref() -> impl Strategy<Value = TreeRef> {
    (number(), number()).prop_map(|(root_page, entry_count)| TreeRef { root_page, entry_count })
}

prop_compose! {
    fn table_ref(generation: u64)(
        generation in 1..=generation,
        page_count in number(),
        storages in tree_ref(),
        tensors in tree_ref(),
    ) -> TableRef {
        TableRef { generation, page_count, storages, tensors }
    }
}

prop_compose! {
    pub(crate) fn manifest()(
        generation in number().prop_map(|n| n.max(1)),
        next_storage_id in number().prop_map(|n| n.max(2)),
    )(
        uuid in any::<Uuid>(),
        generation in Just(generation),
        next_storage_id in Just(next_storage_id),
        table in of(table_ref(generation)),
        storages in btree_map(1..next_storage_id, of(storage_record()), 0..8),
        tensors in btree_map(name(), of(tensor_record(next_storage_id)), 0..8),
        attributes in btree_map((prop_oneof![Just(String::new()), name()], name()), ".{0,20}", 0..4),
        garbage in btree_map(1..next_storage_id, 0..=generation, 0..4),
    ) -> Manifest {
        Manifest { uuid, generation, next_storage_id, table, storages, tensors, attributes, garbage }
    }
}

prop_compose! {
    pub(crate) fn table()(next_storage_id in number().prop_map(|n| n.max(2)))(
        uuid in any::<Uuid>(),
        generation in number().prop_map(|n| n.max(1)),
        next_storage_id in Just(next_storage_id),
        storages in btree_map(1..next_storage_id, storage_record(), 0..30),
        tensors in btree_map(name(), tensor_record(next_storage_id), 0..30),
    ) -> Table {
        Table { uuid, generation, next_storage_id, storages, tensors }
    }
}
