//! Files that each break one rule, which their names state.

use stridemap_format::limits::MAX_ATTRIBUTES_BYTES;
use stridemap_format::{TableRef, TreeRef};

use super::bad_tables;
use super::frame::{digested, manifest_of};
use super::wire::{
    Change, GENERATION, NEXT_ID, changed, dim_names, external, garbage_fields, history, int, ints,
    kept_fields, list, live, long, manifest, manifest_up_to, manifest_with, marker, overwritten, reference,
    sealed, some, storage_fields, table, table_ref, tag_fields, tensor_fields, text, uint, uints,
    without_entry,
};

const MAGIC: &[u8] = b"\x89SMAP\r\n\x1a";
const MANIFEST_BODY: usize = 24;

/// The bad manifest whose file is named after generation 0, not after [`GENERATION`].
pub(crate) const OF_GENERATION_0: &str = "F-18-generation-0.man";

/// Returns every bad file: its name and its bytes.
pub(crate) fn files() -> Vec<(String, Vec<u8>)> {
    let named = |files: Vec<(&str, Vec<u8>)>, extension: &'static str| {
        files.into_iter().map(move |(name, bytes)| (format!("{name}.{extension}"), bytes)).collect::<Vec<_>>()
    };
    let records = records().into_iter().chain(history_records());
    let in_manifests = records.map(|(name, changes)| (name, manifest(&changes))).collect();
    [
        named(markers(), "format"),
        named(in_manifests, "man"),
        named(manifest_frames(), "man"),
        named(manifests(), "man"),
        tables().into_iter().map(|(name, bytes, _)| (name, bytes)).collect(),
    ]
    .concat()
}

/// Returns every bad table: the name of its file, its bytes, and the manifest's reference to it.
pub(crate) fn tables() -> Vec<(String, Vec<u8>, TableRef)> {
    let of_record = |(name, changes): (&'static str, Vec<Change>)| {
        let (bytes, reference) = table_changed(&changes);
        (name, bytes, reference)
    };
    let of_history = |(name, changes): (&'static str, Vec<Change>)| {
        let (bytes, reference) = history_changed(&changes);
        (name, bytes, reference)
    };
    let all = records().into_iter().map(of_record).chain(bad_tables::entries()).chain(bad_tables::nodes());
    let histories = history_records().into_iter().map(of_history).chain(bad_tables::histories());
    let named = |extension: &'static str| {
        move |(name, bytes, reference)| (format!("{name}.{extension}"), bytes, reference)
    };
    all.chain(bad_tables::trees()).map(named("tab")).chain(histories.map(named("his"))).collect()
}

pub(crate) fn good_marker() -> Vec<u8> {
    marker(MAGIC, 1)
}

fn markers() -> Vec<(&'static str, Vec<u8>)> {
    let good = good_marker;
    let without_return: Vec<u8> = good().into_iter().filter(|&byte| byte != b'\r').collect();
    vec![
        ("F-1-empty", vec![]),
        ("F-1-magic-of-a-manifest", marker(b"SMAPMAN\n", 1)),
        ("F-1-carriage-return-lost", without_return),
        ("F-1-cut-inside-the-magic", good()[..7].to_vec()),
        ("F-2-cut-short", good()[..47].to_vec()),
        ("F-2-byte-after-the-end", [good(), vec![0]].concat()),
        ("F-2-one-bit-flipped-in-the-uuid", overwritten(good(), 16, &[1])),
        ("F-2-one-bit-flipped-in-the-version", overwritten(good(), 8, &[0])),
        ("F-2-digest-in-little-endian", digest_reversed(good())),
        ("F-3-version-0", marker(MAGIC, 0)),
        ("F-3-version-2", marker(MAGIC, 2)),
        ("F-3-version-2-to-32-and-1", marker(MAGIC, (1 << 32) + 1)),
    ]
}

/// Returns broken records: the changed fields of a storage or a tensor, for both a manifest and a table.
fn records() -> Vec<(&'static str, Vec<Change>)> {
    let with_long_stride = list(&[long(4, 2), int(1)]);
    let names_64 = || (0..64).map(|i| some(text(format!("d{i}"))));
    let names = |last: &[u8]| some(list(&names_64().chain([some(text(last))]).collect::<Vec<_>>()));
    let (zeros, ones) = (ints(&[0, 0]), (uints(&[1; 65]), ints(&[1; 65])));
    let external_length = |length: u64| ("length", uint(length));
    vec![
        ("F-4-name-empty", vec![("name", text(""))]),
        ("F-4-name-of-4097-bytes", vec![("name", text("n".repeat(4097)))]),
        ("F-4-name-with-nul", vec![("name", text("a\0b"))]),
        ("F-5-65-dimensions", vec![("size", ones.0), ("stride", ones.1)]),
        ("F-5-65-dim-names", vec![("dim_names", names(b"d64"))]),
        ("F-5-stride-missing", vec![("stride", ints(&[2]))]),
        ("F-5-stride-too-many", vec![("stride", ints(&[2, 1, 1]))]),
        ("F-6-dtype-21", vec![("dtype", vec![21])]),
        ("F-6-dtype-255", vec![("dtype", vec![255])]),
        ("F-7-numel-2-to-63", vec![("size", uints(&[1 << 62, 2])), ("stride", zeros.clone())]),
        ("F-7-numel-wraps-to-0", vec![("size", uints(&[1 << 32, 1 << 32])), ("stride", zeros)]),
        ("F-8-past-the-end", vec![("offset", uint(1))]),
        ("F-8-below-0", vec![("stride", ints(&[2, -1]))]),
        ("F-8-lowest-wraps-to-0", vec![("stride", ints(&[i64::MIN, 1]))]),
        ("F-8-highest-wraps-to-1", vec![("size", uints(&[5, 2])), ("stride", ints(&[1 << 62, 1]))]),
        ("F-8-bytes-wrap-to-24", vec![("offset", uint(1 << 62))]),
        ("F-8-no-elements-past-the-end", vec![("size", uints(&[3, 0])), ("offset", uint(7))]),
        ("F-9-name-missing", vec![("dim_names", dim_names(&["a"]))]),
        ("F-9-name-too-many", vec![("dim_names", dim_names(&["a", "b", "c"]))]),
        ("F-9-no-name", vec![("dim_names", some(list(&[vec![0], vec![0]])))]),
        (
            "F-9-no-name-of-no-dimension",
            vec![("size", uints(&[])), ("stride", ints(&[])), ("dim_names", some(list(&[])))],
        ),
        ("F-9-name-twice", vec![("dim_names", dim_names(&["a", "a"]))]),
        ("F-9-name-empty", vec![("dim_names", dim_names(&["a", ""]))]),
        ("F-9-name-begins-with-digit", vec![("dim_names", dim_names(&["a", "2d"]))]),
        ("F-9-name-with-hyphen", vec![("dim_names", dim_names(&["a", "b-c"]))]),
        ("F-9-name-not-ascii", vec![("dim_names", dim_names(&["a", "λ"]))]),
        ("F-9-name-of-256-bytes", vec![("dim_names", dim_names(&["a", &"b".repeat(256)]))]),
        ("F-5-65-dimensions-by-a-long-count", {
            let ones = |one: Vec<u8>| [long(65, 2), one.repeat(65)].concat();
            vec![("size", ones(uint(1))), ("stride", ones(int(1)))]
        }),
        ("F-10-kind-4", vec![("kind", uint(4))]),
        ("F-10-kind-4-after-a-long-integer", vec![("length", long(24, 2)), ("kind", uint(4))]),
        ("F-10-kind-2-to-32", vec![("kind", uint(1 << 32))]),
        ("F-10-access-of-0-bytes", vec![("kind", live(0))]),
        ("F-10-access-of-3-bytes", vec![("kind", live(3))]),
        ("F-10-access-of-16-bytes", vec![("kind", live(16))]),
        ("F-11-reserves-1-more-than-2-to-46", vec![("kind", sealed((1 << 46) + 1))]),
        ("F-11-length-2-to-63", vec![("length", uint(1 << 63))]),
        ("F-11-external-past-its-file", vec![("kind", external(b"f", 1, 24))]),
        ("F-11-external-end-wraps-to-23", vec![("kind", external(b"f", u64::MAX, u64::MAX))]),
        (
            "F-11-external-length-2-to-63",
            vec![external_length(1 << 63), ("kind", external(b"f", 0, u64::MAX))],
        ),
        ("F-12-storage-0", vec![("storage", uint(0))]),
        ("F-12-storage-is-the-next-id", vec![("storage", uint(NEXT_ID))]),
        ("F-12-tensor-on-storage-0", vec![("on", uint(0))]),
        ("F-12-tensor-on-the-next-id", vec![("on", uint(NEXT_ID))]),
        ("F-4-path-empty", vec![("kind", external(b"", 0, 24))]),
        ("F-4-path-with-nul", vec![("kind", external(b"a\0b", 0, 24))]),
        ("F-4-path-of-4097-bytes", vec![("kind", external(&[b'p'; 4097], 0, 24))]),
        ("F-14-long-integer-of-2-bytes", vec![("length", long(24, 2))]),
        ("F-14-long-integer-of-4-bytes", vec![("length", long(1000, 4))]),
        ("F-14-long-integer-of-8-bytes", vec![("length", long(100_000, 8))]),
        ("F-14-long-signed-integer", vec![("stride", with_long_stride)]),
        ("F-14-long-count", vec![("size", [long(2, 2), uint(3), uint(2)].concat())]),
        ("F-14-long-reservation", vec![("kind", [vec![0], vec![0; 32], long(250, 2)].concat())]),
        ("F-14-long-kind", vec![("kind", long(1, 2))]),
        ("F-14-integer-of-128-bits", vec![("offset", [vec![254], vec![0; 16]].concat())]),
        ("F-14-integer-byte-255", vec![("offset", vec![255])]),
        ("F-14-option-byte-2", vec![("dim_names", vec![2])]),
        ("F-14-option-in-a-list-byte-2", vec![("dim_names", some(list(&[vec![2], vec![0]])))]),
        ("F-14-in-65-dim-names", vec![("dim_names", names(b"\xff"))]),
        ("F-14-in-65-sizes", vec![("size", [uint(65), uint(1).repeat(64), vec![255]].concat())]),
        ("F-14-text-of-2-to-60-bytes", vec![("name", uint(1 << 60))]),
        ("F-14-name-not-utf-8", vec![("name", text(b"\xff"))]),
        ("F-14-name-with-surrogate", vec![("name", text(b"\xed\xa0\x80"))]),
        ("F-14-dim-name-not-utf-8", vec![("dim_names", some(list(&[vec![0], some(text(b"\xff"))])))]),
        ("F-14-path-not-utf-8", vec![("kind", external(b"\xff", 0, 24))]),
        ("F-14-is-restored-2", vec![("is_restored", vec![2])]),
    ]
}

/// Returns broken tags, kept generations and garbage: the changed fields, for both a manifest and the table of a history.
fn history_records() -> Vec<(&'static str, Vec<Change>)> {
    let messages = |bytes: &[u8]| vec![("tag_message", some(text(bytes)))];
    let later = || uint(GENERATION + 1);
    vec![
        ("F-4-tag-empty", vec![("tag", text(""))]),
        ("F-4-tag-of-4097-bytes", vec![("tag", text("t".repeat(4097)))]),
        ("F-4-tag-with-nul", vec![("tag", text("a\0b"))]),
        ("F-4-message-of-a-tag-empty", messages(b"")),
        ("F-4-message-of-a-tag-of-4097-bytes", messages(&[b'm'; 4097])),
        ("F-4-message-of-a-tag-with-nul", messages(b"a\0b")),
        ("F-4-path-of-garbage-empty", vec![("garbage_kind", external(b"", 0, 24))]),
        ("F-10-garbage-of-kind-4", vec![("garbage_kind", uint(4))]),
        ("F-10-garbage-with-access-of-3-bytes", vec![("garbage_kind", live(3))]),
        ("F-11-garbage-of-2-to-63-bytes", vec![("garbage_length", uint(1 << 63))]),
        ("F-12-garbage-0", vec![("garbage_id", uint(0))]),
        ("F-12-garbage-is-the-next-id", vec![("garbage_id", uint(NEXT_ID))]),
        ("F-12-next-id-0-of-a-kept-generation", vec![("kept_next_id", uint(0))]),
        ("F-12-next-id-of-a-kept-generation-is-higher", vec![("kept_next_id", uint(NEXT_ID + 1))]),
        ("F-14-tag-not-utf-8", vec![("tag", text(b"\xff"))]),
        ("F-14-message-of-a-tag-not-utf-8", messages(b"\xff")),
        ("F-14-message-option-byte-2-of-a-tag", vec![("tag_message", vec![2])]),
        ("F-14-kept-is-tagged-2", vec![("kept_is_tagged", vec![2])]),
        ("F-14-table-option-byte-2-of-a-kept-generation", vec![("kept_table", vec![2])]),
        ("F-14-long-time-of-a-kept-generation", vec![("kept_time", long(7, 2))]),
        ("F-14-long-tag-count", vec![("tag_count", long(1, 2))]),
        ("F-14-garbage-is-tagged-2", vec![("garbage_is_tagged", vec![2])]),
        ("F-14-garbage-is-tagged-255", vec![("garbage_is_tagged", vec![255])]),
        ("F-14-garbage-is-restored-2", vec![("garbage_is_restored", vec![2])]),
        ("F-14-long-id-of-garbage", vec![("garbage_id", long(2, 2))]),
        ("F-18-tag-of-generation-0", vec![("tag_generation", uint(0))]),
        ("F-18-tag-is-later", vec![("tag_generation", later())]),
        ("F-18-kept-generation-0", vec![("kept_generation", uint(0)), ("kept_table", vec![0])]),
        ("F-18-kept-generation-is-later", vec![("kept_generation", later())]),
        ("F-18-table-of-generation-0-of-a-kept-generation", vec![("kept_table", some(uint(0)))]),
        ("F-18-table-later-than-its-kept-generation", vec![("kept_table", some(uint(6)))]),
        ("F-18-garbage-dropped-by-generation-0", vec![("dropped", uint(0))]),
        ("F-18-garbage-is-later", vec![("dropped", later())]),
        ("F-28-kept-generation-without-a-tag", vec![("tag_count", uint(0))]),
        ("F-28-kept-generation-with-a-tag", vec![("kept_is_tagged", vec![0])]),
        ("F-28-garbage-with-a-tensor", vec![("garbage_count", uint(1))]),
    ]
}

fn manifest_frames() -> Vec<(&'static str, Vec<u8>)> {
    let good = || manifest(&[]);
    let covered = || good()[..good().len() - 16].to_vec();
    let patched = |offset, patch: &[u8]| digested(&overwritten(covered(), offset, patch));
    let body_bytes = (covered().len() - MANIFEST_BODY) as u64;
    let stated = |length: u64| patched(16, &length.to_le_bytes());
    vec![
        ("F-3-version-0", patched(8, &[0])),
        ("F-3-version-2", patched(8, &[2])),
        ("F-3-version-2-to-32-and-1", patched(12, &[1])),
        ("F-15-empty", vec![]),
        ("F-15-another-magic", patched(0, b"SMAPTAB\n")),
        ("F-15-cut-inside-the-magic", good()[..5].to_vec()),
        ("F-15-cut-inside-the-version", good()[..10].to_vec()),
        ("F-15-cut-inside-the-length", good()[..20].to_vec()),
        ("F-15-cut-inside-the-body", good()[..40].to_vec()),
        ("F-15-cut-inside-the-digest", good()[..good().len() - 1].to_vec()),
        ("F-15-byte-after-the-digest", [good(), vec![0]].concat()),
        ("F-15-byte-before-the-digest", digested(&[covered(), vec![0]].concat())),
        ("F-15-length-1-too-long", stated(body_bytes + 1)),
        ("F-15-length-2-to-64-less-1", stated(u64::MAX)),
        ("F-16-one-bit-flipped", overwritten(good(), MANIFEST_BODY, &[1])),
        ("F-16-version-2", overwritten(good(), 8, &[2])),
        ("F-16-one-bit-flipped-in-the-digest", {
            let last = good().len() - 1;
            overwritten(good(), last, &[good()[last] ^ 1])
        }),
        ("F-16-digest-in-little-endian", digest_reversed(good())),
        ("F-16-digest-of-the-body-alone", {
            let body_and_digest = digested(&covered()[MANIFEST_BODY..]);
            [covered()[..MANIFEST_BODY].to_vec(), body_and_digest].concat()
        }),
    ]
}

fn manifests() -> Vec<(&'static str, Vec<u8>)> {
    let scoped = |scope: &[u8], key: &[u8], value: &[u8]| [text(scope), text(key), text(value)].concat();
    let pair = |key: &[u8], value: &[u8]| scoped(b"", key, value);
    let good = manifest(&[]);
    let body = &good[MANIFEST_BODY..good.len() - 16];
    let attributes = |items: &[Vec<u8>]| manifest(&[("attributes", list(items))]);
    let of_table = |field: &'static str, reference: TableRef| manifest(&[(field, table_ref(&reference))]);
    let small_table = || reference(&[0; 8192], 0, &[(0, 1), (1, 1)]);
    let small_history = || reference(&[0; 12288], 2, &[(0, 1), (1, 1), (2, 1)]);
    let table_of = |generation| of_table("table", TableRef { generation, ..small_table() });
    let history_of = |generation| of_table("history", TableRef { generation, ..small_history() });
    // One more tree of a table has entries, or a root.
    let with_tree = |mut reference: TableRef, tree: usize, entry_count| {
        reference.trees[tree] = TreeRef { root_page: 1 - entry_count, entry_count };
        reference
    };
    let with_tag = |entry: &[u8]| manifest_with("tags", list(&[[text("a"), entry.to_vec()].concat()]));
    // Removals from one of the three maps of the history, of these keys.
    let removals = |map: &'static str, keys: &[Vec<u8>]| {
        manifest_with(map, list(&keys.iter().map(|key| [&key[..], &[0]].concat()).collect::<Vec<_>>()))
    };
    let tag = |name: &str| text(name);
    let kept = |is_tagged: u8, generation| [vec![is_tagged], uint(generation)].concat();
    let garbage = |is_tagged: u8, dropped, id| [vec![is_tagged], uint(dropped), uint(id)].concat();
    let message = |message: &[u8]| manifest(&[("message", some(text(message)))]);
    // A removal before the only entry of the map, and the key of that entry.
    let storages = |removal: u64, key: u64| {
        let removals = [uint(2), uint(removal), vec![0]].concat();
        manifest(&[("storages", removals), ("storage", uint(key)), ("on", uint(key))])
    };
    let tensors = |removal: &str, key: &str| {
        let removals = [uint(2), text(removal), vec![0]].concat();
        manifest(&[("tensors", removals), ("name", text(key))])
    };
    let storage_removed = |id: u64| manifest_with("storages", list(&[[uint(id), vec![0]].concat()]));
    // Removals before the only entry of the map. 4096 make one change too many.
    let id_removals =
        |count: u64| (1000..1000 + count).flat_map(|id| [uint(id), vec![0]].concat()).collect::<Vec<_>>();
    let name_removals = |count: u64| {
        let removal = |name: u64| [text(name.to_string()), vec![0]].concat();
        (1000..1000 + count).flat_map(removal).collect::<Vec<_>>()
    };
    let tag_removals = |count: u64| (1000..1000 + count).map(|tag| text(tag.to_string())).collect::<Vec<_>>();
    let garbage_removals = |count: u64| (1000..1000 + count).map(|id| garbage(0, 7, id)).collect::<Vec<_>>();
    let (past_ids, past_names) = (id_removals(4096), name_removals(4096));
    let descending_ids = (1000..1000 + 4096).rev().flat_map(|id| [uint(id), vec![0]].concat()).collect();
    let past = |field: &'static str, removals: &Vec<u8>, key: &[Change]| {
        let removals = (field, [&uint(4097)[..], removals].concat());
        manifest(&[&[removals, ("next_id", uint(10_000))], key].concat())
    };
    let last_id = [("storage", uint(9000)), ("on", uint(9000))];
    let sizes = [("size", uints(&[1; 65])), ("stride", ints(&[1; 65]))];
    let another_store = || ("uuid", vec![0; 16]);
    let next_generation = || ("generation", uint(GENERATION + 1));
    vec![
        ("F-13-4097-changes-of-storages", past("storages", &past_ids, &last_id)),
        ("F-13-4097-changes-of-tensors", past("tensors", &past_names, &[])),
        ("F-13-4097-changes-that-descend", past("storages", &descending_ids, &[])),
        ("F-13-4097-changes-in-another-store", past("storages", &past_ids, &[another_store()])),
        ("F-10-in-4097-changes", past("storages", &past_ids, &[("kind", uint(4))])),
        ("F-5-in-4097-changes", past("tensors", &past_names, &sizes)),
        ("F-12-with-4096-changes-of-both", {
            let counted = |removals: Vec<u8>| [uint(4096), removals].concat();
            let maps = [("storages", counted(id_removals(4095))), ("tensors", counted(name_removals(4095)))];
            manifest(&[&maps[..], &[("next_id", uint(9000)), ("storage", uint(9000))]].concat())
        }),
        ("F-12-with-4096-changes-of-tags-and-garbage", {
            let removed = |keys: Vec<Vec<u8>>| {
                list(&keys.iter().map(|key| [&key[..], &[0]].concat()).collect::<Vec<_>>())
            };
            let maps = [("tags", removed(tag_removals(4096))), ("garbage", removed(garbage_removals(4096)))];
            let others = [&without_entry("tags")[1..], &without_entry("garbage")[1..]].concat();
            manifest(&[&maps[..], &others, &[("next_id", uint(9000)), ("storage", uint(9000))]].concat())
        }),
        ("F-13-4097-changes-of-tags", removals("tags", &tag_removals(4097))),
        (
            "F-13-4097-changes-of-kept-generations",
            removals("kept", &(1..4098).map(|generation| kept(0, generation)).collect::<Vec<_>>()),
        ),
        ("F-13-4097-changes-of-garbage", removals("garbage", &garbage_removals(4097))),
        ("F-12-next-id-0", {
            let maps = ["storages", "tensors", "tags", "kept", "garbage"].map(without_entry).concat();
            manifest(&[&maps[..], &[("next_id", uint(0))]].concat())
        }),
        ("F-12-removed-storage-is-the-next-id", storage_removed(NEXT_ID)),
        ("F-12-removed-garbage-is-the-next-id", removals("garbage", &[garbage(0, 5, NEXT_ID)])),
        ("F-4-message-empty", message(b"")),
        ("F-4-message-of-4097-bytes", message(&[b'm'; 4097])),
        ("F-4-message-with-nul", message(b"a\0b")),
        ("F-4-removed-tag-empty", removals("tags", &[tag("")])),
        ("F-14-message-not-utf-8", message(b"\xff")),
        ("F-14-message-option-byte-2", manifest(&[("message", vec![2])])),
        ("F-14-long-time", manifest(&[("time", long(5, 2))])),
        ("F-14-history-option-byte-2", manifest(&[("history", vec![2])])),
        ("F-14-tag-option-byte-2", with_tag(&[2])),
        ("F-14-kept-option-byte-2", manifest(&[("kept_option", vec![2])])),
        ("F-14-garbage-option-byte-2", manifest(&[("garbage_option", vec![2])])),
        ("F-14-tags-descend", removals("tags", &[tag("b"), tag("a")])),
        ("F-14-tags-by-length", removals("tags", &[tag("z"), tag("aa")])),
        ("F-14-tag-twice", removals("tags", &[tag("a"), tag("a")])),
        ("F-14-kept-generations-descend", removals("kept", &[kept(0, 6), kept(0, 5)])),
        ("F-14-kept-generation-twice", removals("kept", &[kept(1, 5), kept(1, 5)])),
        ("F-14-kept-generation-after-a-tagged-one", removals("kept", &[kept(1, 5), kept(0, 6)])),
        ("F-28-kept-generation-with-tags-and-without", {
            let record = |tag_count| [vec![1], int(-4), uint(NEXT_ID), vec![0], uint(tag_count)].concat();
            manifest_with("kept", list(&[[kept(0, 5), record(0)].concat(), [kept(1, 5), record(1)].concat()]))
        }),
        ("F-14-garbage-descends", removals("garbage", &[garbage(0, 5, 3), garbage(0, 5, 2)])),
        ("F-14-garbage-twice", removals("garbage", &[garbage(0, 5, 2), garbage(0, 5, 2)])),
        ("F-14-garbage-by-id", removals("garbage", &[garbage(0, 6, 2), garbage(0, 5, 3)])),
        ("F-14-garbage-after-that-of-a-tag", removals("garbage", &[garbage(1, 5, 2), garbage(0, 6, 3)])),
        (
            "F-14-garbage-ascends-only-as-bytes",
            removals("garbage", &[garbage(0, 5, 256), garbage(0, 5, 255)]),
        ),
        ("F-14-count-2-to-60-of-tags", manifest_up_to("tags", &uint(1 << 60))),
        ("F-18-history-is-later", history_of(GENERATION + 1)),
        ("F-18-history-of-generation-0", history_of(0)),
        ("F-18-removed-kept-generation-is-later", removals("kept", &[kept(0, GENERATION + 1)])),
        ("F-18-removed-garbage-is-later", removals("garbage", &[garbage(0, GENERATION + 1, 2)])),
        ("F-23-table-with-tags", of_table("table", with_tree(small_table(), 2, 1))),
        ("F-23-table-with-kept-generations", of_table("table", with_tree(small_table(), 3, 1))),
        ("F-23-table-with-garbage", of_table("table", with_tree(small_table(), 4, 1))),
        ("F-23-table-with-a-root-of-no-storages", of_table("table", with_tree(small_table(), 0, 0))),
        ("F-23-table-with-a-root-of-no-tensors", of_table("table", with_tree(small_table(), 1, 0))),
        ("F-23-table-with-a-root-of-no-garbage", of_table("table", with_tree(small_table(), 4, 0))),
        ("F-23-history-with-storages", of_table("history", with_tree(small_history(), 0, 1))),
        ("F-23-history-with-tensors", of_table("history", with_tree(small_history(), 1, 1))),
        ("F-23-history-with-a-root-of-no-tags", of_table("history", with_tree(small_history(), 2, 0))),
        ("F-14-byte-after-the-body", manifest(&[("end", vec![0])])),
        ("F-14-body-cut-short", manifest_of(&body[..body.len() - 1])),
        ("F-14-body-empty", manifest_of(b"")),
        ("F-14-table-option-byte-2", manifest(&[("table", vec![2])])),
        ("F-14-storage-option-byte-2", manifest(&[("storage_option", vec![2])])),
        ("F-14-tensor-option-byte-2", manifest(&[("tensor_option", vec![2])])),
        ("F-14-long-generation", manifest(&[("generation", long(GENERATION, 2))])),
        ("F-14-long-storage-id", manifest(&[("storage", long(1, 2))])),
        ("F-14-storages-descend", storages(2, 1)),
        ("F-14-storages-ascend-only-as-bytes", storages(256, 255)),
        ("F-14-storage-twice", storages(1, 1)),
        ("F-14-tensors-descend", tensors("u", "t")),
        ("F-14-tensors-by-length", tensors("z", "aa")),
        ("F-14-tensor-twice", tensors("t", "t")),
        ("F-14-attributes-descend", attributes(&[pair(b"b", b""), pair(b"a", b"")])),
        ("F-14-attribute-twice", attributes(&[pair(b"a", b"1"), pair(b"a", b"2")])),
        ("F-14-attribute-not-utf-8", attributes(&[pair(b"a", b"\xff")])),
        ("F-14-attribute-key-not-utf-8", attributes(&[pair(b"\xff", b"a")])),
        ("F-14-scopes-descend", attributes(&[scoped(b"b", b"k", b""), scoped(b"a", b"l", b"")])),
        (
            "F-14-attributes-of-a-scope-descend",
            attributes(&[scoped(b"a", b"l", b""), scoped(b"a", b"k", b"")]),
        ),
        (
            "F-14-attribute-of-a-scope-twice",
            attributes(&[scoped(b"a", b"k", b"1"), scoped(b"a", b"k", b"2")]),
        ),
        ("F-14-attribute-scope-not-utf-8", attributes(&[scoped(b"\xff", b"k", b"")])),
        ("F-14-count-2-to-60-of-storages", manifest_up_to("storages", &uint(1 << 60))),
        ("F-14-count-2-to-60-of-attributes", manifest_up_to("attributes", &uint(1 << 60))),
        ("F-14-long-generation-in-another-store", {
            manifest(&[another_store(), ("generation", long(GENERATION, 2))])
        }),
        ("F-17-another-store", manifest(&[another_store()])),
        ("F-17-another-store-and-generation", manifest(&[another_store(), next_generation()])),
        ("F-18-another-generation", manifest(&[next_generation()])),
        ("F-18-another-generation-and-id", manifest(&[next_generation(), ("on", uint(NEXT_ID))])),
        ("F-18-generation-0", {
            let maps = ["tags", "kept", "garbage"].map(without_entry).concat();
            manifest(&[&maps[..], &[("generation", uint(0))]].concat())
        }),
        ("F-18-table-is-later", table_of(GENERATION + 1)),
        ("F-18-table-of-generation-0", table_of(0)),
        ("F-4-key-empty", attributes(&[pair(b"", b"")])),
        ("F-4-key-with-nul", attributes(&[pair(b"a\0b", b"")])),
        ("F-4-key-of-4097-bytes", attributes(&[pair(&[b'k'; 4097], b"")])),
        ("F-4-key-of-a-scope-empty", attributes(&[scoped(b"s", b"", b"")])),
        ("F-4-scope-with-nul", attributes(&[scoped(b"a\0b", b"k", b"")])),
        ("F-4-scope-of-4097-bytes", attributes(&[scoped(&[b's'; 4097], b"k", b"")])),
    ]
}

/// Returns the bad manifests that are too large to be files of their own.
pub(crate) fn large() -> Vec<(&'static str, Vec<u8>)> {
    let attribute = |value_bytes: usize| {
        let texts = ["s".repeat(4096), "k".repeat(4096), "v".repeat(value_bytes)];
        ("attributes", list(&[texts.map(text).concat()]))
    };
    // F-13 counts 16 bytes more than the three texts.
    let most = MAX_ATTRIBUTES_BYTES - 2 * 4096 - 16;
    let short = [uint(0), text("k"), text("")].concat();
    let repeated = |item: Vec<u8>, count: usize| [uint(count as u64), item.repeat(count)].concat();
    let of_length = |bytes: usize| {
        let others = manifest(&[attribute(1 << 20)]).len() - (1 << 20);
        manifest(&[attribute(bytes - others)])
    };
    vec![
        ("F-13-attribute-of-1048577-bytes.man", manifest(&[attribute(most + 1)])),
        ("F-12-with-an-attribute-of-1048576-bytes.man", manifest(&[attribute(most), ("on", uint(NEXT_ID))])),
        ("F-13-61681-attributes-of-17-bytes.man", manifest(&[("attributes", repeated(short, 61681))])),
        ("F-13-file-of-16777216-bytes.man", of_length(1 << 24)),
        ("F-15-file-of-16777217-bytes.man", of_length((1 << 24) + 1)),
    ]
}

/// Returns a table of one storage and one tensor, valid except for `changes`, and the reference to it.
pub(crate) fn table_changed(changes: &[Change]) -> (Vec<u8>, TableRef) {
    let (storage, tensor) = (changed(storage_fields(), changes), changed(tensor_fields(), changes));
    assert_eq!(storage.1 + tensor.1, changes.len(), "a table lacks one of {changes:?}");
    table(&[storage.0], &[tensor.0])
}

/// Returns a history of one tag, one kept generation and one garbage, valid except for `changes`, and the reference to it.
pub(crate) fn history_changed(changes: &[Change]) -> (Vec<u8>, TableRef) {
    let trees = [tag_fields(), kept_fields(), garbage_fields()].map(|fields| changed(fields, changes));
    let found = trees.iter().map(|(_, found)| found).sum::<usize>();
    assert_eq!(found, changes.len(), "a history lacks one of {changes:?}");
    let [tags, kept, garbage] = trees.map(|(bytes, _)| [bytes]);
    history(&tags, &kept, &garbage)
}

fn digest_reversed(mut bytes: Vec<u8>) -> Vec<u8> {
    let digest = bytes.len() - 16;
    bytes[digest..].reverse();
    bytes
}
