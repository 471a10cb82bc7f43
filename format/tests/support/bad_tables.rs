//! Tables that each break one rule, in an entry, in a node, or in the tree.

use stridemap_format::TableRef;

use super::bad::{history_changed, table_changed};
use super::frame::redigested;
use super::wire::{
    NEXT_ID, changed, child, garbage_fields, history, kept_fields, long, node, overwritten, reference,
    storage_fields, table, tag_fields, tensor_fields, text, uint,
};

/// The name of a file without its extension, its bytes, and the manifest's reference to it.
type BadTable = (&'static str, Vec<u8>, TableRef);

fn storage(id: u64) -> Vec<u8> {
    changed(storage_fields(), &[("storage", uint(id))]).0
}

fn tensor(name: &str) -> Vec<u8> {
    changed(tensor_fields(), &[("name", text(name))]).0
}

fn named(name: &'static str, (bytes, reference): (Vec<u8>, TableRef)) -> BadTable {
    (name, bytes, reference)
}

/// Returns a table with a tree of tensors that was made by hand. Its nodes begin at page 1; the last one is the root.
fn tree(name: &'static str, count: usize, nodes: &[Vec<u8>]) -> BadTable {
    let leaf = node((0, 0, 0), &[storage(1)]);
    let root_page = 1 + nodes.len() as u64 - 1;
    let bytes = [&[leaf][..], nodes].concat().concat();
    let reference = reference(&bytes, 0, &[(0, 1), (root_page, count)]);
    (name, bytes, reference)
}

/// Returns a leaf of tensors.
fn leaf(page: u64, names: &[&str]) -> Vec<u8> {
    node((page, 1, 0), &names.iter().map(|name| tensor(name)).collect::<Vec<_>>())
}

/// Returns an inner node of tensors, at level 1. The children are first names and pages.
fn inner(page: u64, children: &[(&str, u64)]) -> Vec<u8> {
    let entries: Vec<_> = children.iter().map(|&(name, child_page)| child(text(name), child_page)).collect();
    node((page, 1, 1), &entries)
}

/// Returns a table whose root of tensors, at page 2, is the second page of a node of an unknown tree.
fn root_inside(name: &'static str) -> BadTable {
    let entry = [vec![1; 4096 - 60], leaf(2, &["t"])].concat();
    let outer = node((1, 7, 0), &[entry]);
    let bytes = [node((0, 0, 0), &[storage(1)]), outer].concat();
    let reference = reference(&bytes, 0, &[(0, 1), (2, 1)]);
    (name, bytes, reference)
}

/// Returns a table whose root of tensors, at page 2, is the second page of an inner node. All entries of both nodes can be
/// decoded: the inner node contains the root as a part of a key, whose text is UTF-8.
fn root_inside_a_key(name: &'static str) -> BadTable {
    // With this name, the bytes of the digest are ASCII.
    let root = leaf(2, &["t36186"]);
    let key = [vec![b'k'; 4096 - 65], root].concat();
    assert!(key.is_ascii(), "the digest of the root is not UTF-8");
    let outer = node((1, 1, 1), &[child(text(&key), 3), child(text("z"), 3)]);
    let bytes = [node((0, 0, 0), &[storage(1)]), outer].concat();
    let reference = reference(&bytes, 0, &[(0, 1), (2, 1)]);
    (name, bytes, reference)
}

/// Returns a table whose storages 1 and 2 are in two leaves. `stated` are the ids that the root states for them.
fn over_storages(name: &'static str, stated: [u64; 2]) -> BadTable {
    let unused = changed(storage_fields(), &[("storage", uint(2)), ("count", uint(0))]).0;
    let [first, second] = [node((0, 0, 0), &[storage(1)]), node((1, 0, 0), &[unused])];
    let root = node((2, 0, 1), &[child(uint(stated[0]), 0), child(uint(stated[1]), 1)]);
    let bytes = [first, second, root, leaf(3, &["t"])].concat();
    let reference = reference(&bytes, 0, &[(2, 2), (3, 1)]);
    (name, bytes, reference)
}

/// Returns a table whose tree of tensors has 42 levels. Each inner node has the same child twice, which only a whole
/// reading of the table would refuse.
fn root_at_level_41(name: &'static str) -> BadTable {
    let inner = |level: u64| {
        let below = child(text("t"), level);
        node((level + 1, 1, level as u16), &[below.clone(), below])
    };
    let nodes: Vec<_> = std::iter::once(leaf(1, &["t"])).chain((1..=41).map(inner)).collect();
    tree(name, 1, &nodes)
}

pub(crate) fn entries() -> Vec<BadTable> {
    let longer = |record: Vec<u8>| [record, vec![0]].concat();
    let shorter = |record: Vec<u8>| record[..record.len() - 1].to_vec();
    let leaves = |storages: &[Vec<u8>], tensors: &[Vec<u8>]| table(storages, tensors);
    let (s, t) = (|| storage(1), || tensor("t"));
    let long_id = [long(1, 2), s()[1..].to_vec()].concat();
    let second = || child(text("u"), 2);
    let with_child =
        |entry: Vec<u8>| vec![leaf(1, &["t"]), leaf(2, &["u"]), node((3, 1, 1), &[entry, second()])];
    let of_child = child(text("t"), 1);
    let long_name = || [long(1, 2), vec![b't']].concat();
    // The first entry of the first of two leaves. The root states that its name is "t".
    let with_first = |name: Vec<u8>| {
        let first = node((1, 1, 0), &[changed(tensor_fields(), &[("name", name)]).0]);
        vec![first, leaf(2, &["u"]), inner(3, &[("t", 1), ("u", 2)])]
    };
    vec![
        named("F-14-storage-cut-short", leaves(&[shorter(s())], &[t()])),
        named("F-14-byte-after-the-storage", leaves(&[longer(s())], &[t()])),
        named("F-14-byte-after-the-tensor", leaves(&[s()], &[longer(t())])),
        named("F-14-long-storage-id", leaves(&[long_id], &[t()])),
        tree("F-14-byte-after-the-child", 2, &with_child(longer(of_child.clone()))),
        tree("F-14-child-cut-short", 2, &with_child(shorter(of_child))),
        tree("F-14-long-page-of-a-child", 2, &with_child([text("t"), long(1, 2)].concat())),
        tree("F-14-long-name-of-a-child", 2, &with_child(child(long_name(), 1))),
        tree("F-14-name-of-a-child-not-utf-8", 2, &with_child(child(text(b"\xff"), 1))),
        tree("F-14-long-first-name", 2, &with_first(long_name())),
        tree("F-14-first-name-not-utf-8", 2, &with_first(text(b"\xff"))),
        tree("F-4-first-name-with-nul", 2, &with_first(text("t\0"))),
        tree(
            "F-14-first-name-of-an-inner-node-not-utf-8",
            4,
            &[
                leaf(1, &["a"]),
                leaf(2, &["b"]),
                leaf(3, &["c"]),
                leaf(4, &["d"]),
                node((5, 1, 1), &[child(text(b"\xff"), 1), child(text("b"), 2)]),
                inner(6, &[("c", 3), ("d", 4)]),
                node((7, 1, 2), &[child(text("a"), 5), child(text("c"), 6)]),
            ],
        ),
        named("F-24-storages-descend", leaves(&[storage(2), s()], &[t()])),
        named("F-24-storages-ascend-only-as-bytes", leaves(&[s(), storage(256), storage(255)], &[])),
        named("F-24-storage-twice", leaves(&[s(), s()], &[])),
        named("F-24-tensors-descend", leaves(&[s()], &[tensor("u"), t()])),
        named("F-24-tensors-by-length", leaves(&[s()], &[tensor("z"), tensor("aa")])),
        named("F-24-tensor-twice", leaves(&[s()], &[t(), t()])),
    ]
}

/// Returns tables with a bad node, and with a file of the wrong length.
pub(crate) fn nodes() -> Vec<BadTable> {
    let (good, good_reference) = table_changed(&[]);
    let of = |name, bytes: Vec<u8>| (name, bytes, good_reference);
    // The first node with other bytes, and the digest that they have.
    let patched = |offset, patch: &[u8]| {
        let node = redigested(overwritten(good[..4096].to_vec(), offset, patch));
        [&node, &good[4096..]].concat()
    };
    let damaged = |offset: usize| overwritten(good.clone(), offset, &[good[offset] ^ 1]);
    let slot = |index: usize, offset: u16| patched(56 + 2 * index, &offset.to_le_bytes());
    let [start, end] = [60, 60 + storage(1).len() as u16];
    let name = "n".repeat(4096);
    let (long, long_reference) = table_changed(&[("name", text(&name))]);
    let without_rest = {
        let first_page = redigested(long[4096..8192].to_vec());
        [&long[..4096], &first_page, &long[8192..]].concat()
    };
    let second_page_missing = [&long[..4096], &redigested(long[4096..8192].to_vec())].concat();
    let ten_pages = {
        let ten = overwritten(vec![0; 10 * 4096], 0, &overwritten(good[4096..].to_vec(), 54, &[10]));
        [&good[..4096], &redigested(ten[..9 * 4096].to_vec()), &ten[9 * 4096..]].concat()
    };
    let ten_pages_reference = TableRef { page_count: 11, ..good_reference };
    let page_without_entries = {
        let two = [&overwritten(good[4096..].to_vec(), 54, &[2])[..], &[0; 4096]].concat();
        [&good[..4096], &redigested(two)].concat()
    };
    let reversed = {
        let digest: Vec<u8> = good[..16].iter().rev().copied().collect();
        overwritten(good.clone(), 0, &digest)
    };
    let count = |storages, tensors| reference(&good, 0, &[(0, storages), (1, tensors)]);
    let two = [changed(storage_fields(), &[]).0, storage(2)];
    // The first node with two other fields.
    let patched_twice = |first: (usize, u8), second: (usize, u8)| {
        let node = overwritten(good[..4096].to_vec(), first.0, &[first.1]);
        [&redigested(overwritten(node, second.0, &[second.1])), &good[4096..]].concat()
    };
    let two_pages_at_the_end = redigested(overwritten(good[4096..].to_vec(), 54, &[2]));
    let slots_equal = table(&[vec![], storage(1)], &[tensor("t")]);
    let past_the_end = reference(&good, 0, &[(0, 1), (2, 1)]);
    vec![
        of("F-17-another-store", patched(16, &[1])),
        of("F-17-another-store-and-generation", patched_twice((16, 1), (32, 8))),
        of("F-18-another-generation-and-page", patched_twice((32, 8), (40, 1))),
        of("F-22-another-page-and-tree", patched_twice((40, 1), (48, 5))),
        ("F-22-another-page-and-a-root-past-the-end", patched(40, &[1]), past_the_end),
        of("F-22-second-page-missing", second_page_missing),
        of("F-22-2-pages-at-the-end", [&good[..4096], &two_pages_at_the_end].concat()),
        named("F-22-slots-equal", slots_equal),
        of("F-18-another-generation", patched(32, &[8])),
        of("F-20-empty", vec![]),
        of("F-20-cut-inside-a-page", good[..8191].to_vec()),
        of("F-20-a-page-missing", good[..4096].to_vec()),
        of("F-20-byte-after-the-end", [&good[..], &[0]].concat()),
        of("F-20-a-page-after-the-end", [&good[..], &[0; 4096]].concat()),
        ("F-20-page-count-2-to-52", good.clone(), TableRef { page_count: 1 << 52, ..good_reference }),
        ("F-20-page-count-2-to-64-less-1", good.clone(), TableRef { page_count: u64::MAX, ..good_reference }),
        of("F-21-one-bit-flipped-in-the-digest", damaged(0)),
        of("F-21-one-bit-flipped-in-the-page", damaged(40)),
        of("F-21-one-bit-flipped-in-a-slot", damaged(56)),
        of("F-21-one-bit-flipped-in-an-entry", damaged(usize::from(start) + 1)),
        of("F-21-one-bit-flipped-after-the-entries", damaged(4095)),
        of("F-21-one-bit-flipped-in-the-second-node", damaged(4096 + 70)),
        of("F-21-digest-in-little-endian", reversed),
        of("F-21-zeros", [&[0; 4096][..], &good[4096..]].concat()),
        ("F-21-digest-of-the-first-page-alone", without_rest, long_reference),
        of("F-22-another-page", patched(40, &[1])),
        of("F-22-no-pages", patched(54, &[0])),
        ("F-22-10-pages", ten_pages, ten_pages_reference),
        ("F-22-page-without-entries", page_without_entries, TableRef { page_count: 3, ..good_reference }),
        of("F-22-gap-before-the-entries", slot(0, start + 1)),
        of("F-22-first-slot-inside-the-slots", slot(0, start - 1)),
        of("F-22-entry-empty", slot(1, start)),
        of("F-22-slots-descend", {
            let swapped = [start, end + 19, end].map(u16::to_le_bytes);
            let node = node((0, 0, 0), &two);
            let node = redigested(overwritten(node, 56, &swapped.as_flattened()[2..]));
            [&node, &good[4096..]].concat()
        }),
        of("F-22-last-slot-past-the-node", slot(1, 4097)),
        of("F-22-last-slot-65535", slot(1, u16::MAX)),
        of("F-22-more-slots-than-the-node", patched(52, &u16::MAX.to_le_bytes())),
        of("F-22-byte-after-the-last-entry", patched(usize::from(end), &[1])),
        of("F-22-last-byte-is-not-0", patched(4095, &[1])),
        ("F-28-storage-too-many", good.clone(), count(2, 1)),
        ("F-28-tensor-too-many", good.clone(), count(1, usize::MAX)),
    ]
}

/// Returns tables whose nodes are valid, but do not form a tree.
pub(crate) fn trees() -> Vec<BadTable> {
    let (good, good_reference) = table_changed(&[]);
    let roots = |name, storages_page, tensors_page| {
        (name, good.clone(), reference(&good, 0, &[(storages_page, 1), (tensors_page, 1)]))
    };
    let unknown_tree = {
        let second = redigested(overwritten(good[4096..].to_vec(), 48, &[5]));
        [&good[..4096], &second].concat()
    };
    let at_level = |page, level, entries: &[Vec<u8>]| node((page, 1, level), entries);
    let [to_t, to_u] = [("t", 1), ("u", 2)].map(|(name, page)| child(text(name), page));
    let to_both = &[to_t, to_u];
    let leaf_t = || leaf(1, &["t"]);
    // A root at page 3 whose first child is at another page than the leaf with that name.
    let child_at =
        |name, page| tree(name, 2, &[leaf_t(), leaf(2, &["u"]), inner(3, &[("t", page), ("u", 2)])]);
    let leaves = || [leaf(1, &["a", "c"]), leaf(2, &["e", "g"])];
    let over_leaves = |name, children: &[(&str, u64)]| {
        let [first, second] = leaves();
        tree(name, 4, &[first, second, inner(3, children)])
    };
    vec![
        roots("F-23-root-of-the-other-tree", 1, 0),
        roots("F-23-root-past-the-end", 0, 2),
        roots("F-23-root-at-2-to-52", 0, 1 << 52),
        ("F-23-tree-5", unknown_tree, good_reference),
        ("F-23-leaf-of-a-tree-without-entries", good.clone(), reference(&good, 0, &[(0, 1)])),
        ("F-23-leaf-of-tags", [&good[..], &node((2, 2, 0), &[changed(tag_fields(), &[]).0])].concat(), {
            TableRef { page_count: 3, ..good_reference }
        }),
        tree("F-23-root-empty", 1, &[leaf(1, &[])]),
        child_at("F-23-child-past-the-end", 4),
        child_at("F-23-child-at-2-to-64-less-1", u64::MAX),
        child_at("F-23-child-of-the-other-tree", 0),
        child_at("F-23-child-is-itself", 3),
        tree("F-23-child-two-levels-lower", 2, &[leaf_t(), leaf(2, &["u"]), at_level(3, 2, to_both)]),
        tree("F-23-root-at-level-65535", 2, &[leaf_t(), leaf(2, &["u"]), at_level(3, u16::MAX, to_both)]),
        tree("F-23-child-empty", 1, &[leaf(1, &[]), leaf(2, &["u"]), inner(3, &[("t", 1), ("u", 2)])]),
        tree("F-23-inner-root-empty", 1, &[leaf_t(), inner(2, &[])]),
        tree("F-23-inner-root-with-1-child", 1, &[leaf_t(), inner(2, &[("t", 1)])]),
        tree(
            "F-23-inner-child-with-1-child",
            3,
            &[
                leaf_t(),
                leaf(2, &["u"]),
                leaf(3, &["v"]),
                inner(4, &[("t", 1), ("u", 2)]),
                inner(5, &[("v", 3)]),
                at_level(6, 2, &[child(text("t"), 4), child(text("v"), 5)]),
            ],
        ),
        root_at_level_41("F-23-root-at-level-41"),
        over_leaves("F-24-first-key-of-a-child-differs", &[("a", 1), ("f", 2)]),
        over_leaves("F-24-first-key-of-the-first-child-differs", &[("Z", 1), ("e", 2)]),
        over_leaves("F-24-children-descend", &[("e", 2), ("a", 1)]),
        over_leaves("F-24-name-of-a-child-empty", &[("", 1), ("e", 2)]),
        over_leaves("F-24-name-of-a-child-with-nul", &[("a", 1), ("e\0", 2)]),
        over_leaves("F-24-name-of-a-child-of-4097-bytes", &[("a", 1), (&"e".repeat(4097), 2)]),
        over_storages("F-24-id-of-a-child-0", [0, 2]),
        over_storages("F-24-id-of-a-child-is-the-next-id", [1, NEXT_ID]),
        tree("F-24-child-twice", 2, &[leaf(1, &["a", "c"]), inner(2, &[("a", 1), ("a", 1)])]),
        tree(
            "F-23-leaf-without-a-parent",
            3,
            &[leaf_t(), leaf(2, &["u"]), leaf(3, &["v"]), inner(4, &[("t", 1), ("u", 2)])],
        ),
        tree("F-23-root-before-a-leaf", 2, &[leaf(1, &["a"]), leaf(2, &["b"])]),
        tree("F-23-inner-node-without-a-parent", 1, &[inner(1, &[("t", 2), ("t", 2)]), leaf(2, &["t"])]),
        tree("F-23-tree-7-without-a-root", 1, &[node((1, 7, 0), &[tensor("u")]), leaf(2, &["t"])]),
        root_inside("F-23-root-inside-a-node-of-tree-7"),
        root_inside_a_key("F-23-root-inside-a-node"),
        tree(
            "F-24-leaves-not-in-the-order-of-the-file",
            4,
            &[leaf(1, &["e", "g"]), leaf(2, &["a", "c"]), inner(3, &[("a", 2), ("e", 1)])],
        ),
        tree(
            "F-24-leaves-overlap",
            4,
            &[leaf(1, &["a", "f"]), leaf(2, &["e", "g"]), inner(3, &[("a", 1), ("e", 2)])],
        ),
    ]
}

fn tag(name: &str) -> Vec<u8> {
    changed(tag_fields(), &[("tag", text(name))]).0
}

fn kept(is_tagged: u8, generation: u64) -> Vec<u8> {
    let key = [("kept_is_tagged", vec![is_tagged]), ("kept_generation", uint(generation))];
    changed(kept_fields(), &[&key[..], &[("tag_count", vec![is_tagged]), ("kept_table", vec![0])]].concat()).0
}

fn garbage(is_tagged: u8, dropped: u64, id: u64) -> Vec<u8> {
    let key = [("garbage_is_tagged", vec![is_tagged]), ("dropped", uint(dropped)), ("garbage_id", uint(id))];
    changed(garbage_fields(), &key).0
}

/// Returns histories with a bad entry, node or tree.
pub(crate) fn histories() -> Vec<BadTable> {
    let (good, good_reference) = history_changed(&[]);
    let of = |name, bytes: Vec<u8>| (name, bytes, good_reference);
    let roots =
        |name, roots: [u64; 3]| (name, good.clone(), reference(&good, 2, &roots.map(|page| (page, 1))));
    let counts = |name, counts: [usize; 3]| {
        let trees = [(0, counts[0]), (1, counts[1]), (2, counts[2])];
        (name, good.clone(), reference(&good, 2, &trees))
    };
    let kept_alone = |name, entries: &[Vec<u8>]| named(name, history(&[tag("v1")], entries, &[]));
    let garbage_alone = |name, entries: &[Vec<u8>]| named(name, history(&[], &[], entries));
    let longer = |entry: Vec<u8>| [entry, vec![0]].concat();
    // A tree of garbage with two leaves, whose root states these first keys.
    let over = |name, keys: [&[u8]; 2]| {
        let leaves = [node((0, 4, 0), &[garbage(0, 5, 2)]), node((1, 4, 0), &[garbage(1, 5, 3)])];
        let root = node((2, 4, 1), &[child(keys[0].to_vec(), 0), child(keys[1].to_vec(), 1)]);
        let bytes = [leaves.concat(), root].concat();
        let reference = reference(&bytes, 4, &[(2, 2)]);
        (name, bytes, reference)
    };
    vec![
        of("F-20-a-page-missing", good[..8192].to_vec()),
        of("F-21-one-bit-flipped", overwritten(good.clone(), 8192 + 70, &[good[8192 + 70] ^ 1])),
        roots("F-23-root-of-another-tree", [0, 2, 1]),
        roots("F-23-root-past-the-end", [0, 1, 3]),
        counts("F-23-leaf-of-a-tree-without-entries", [1, 1, 0]),
        counts("F-28-tag-too-many", [2, 1, 1]),
        counts("F-28-kept-generation-too-many", [1, 2, 1]),
        counts("F-28-garbage-too-many", [1, 1, 2]),
        named("F-14-byte-after-the-tag", history(&[longer(tag("v1"))], &[], &[])),
        kept_alone("F-14-byte-after-the-kept-generation", &[longer(kept(1, 5))]),
        garbage_alone("F-14-byte-after-the-garbage", &[longer(garbage(1, 5, 2))]),
        named("F-24-tags-descend", history(&[tag("b"), tag("a")], &[], &[])),
        named("F-24-tag-twice", history(&[tag("a"), tag("a")], &[], &[])),
        kept_alone("F-24-kept-generations-descend", &[kept(1, 6), kept(1, 5)]),
        kept_alone("F-24-kept-generation-after-a-tagged-one", &[kept(1, 5), kept(0, 6)]),
        garbage_alone("F-24-garbage-descends", &[garbage(0, 5, 3), garbage(0, 5, 2)]),
        garbage_alone("F-24-garbage-by-id", &[garbage(0, 6, 2), garbage(0, 5, 3)]),
        garbage_alone("F-24-garbage-after-that-of-a-tag", &[garbage(1, 5, 2), garbage(0, 6, 3)]),
        garbage_alone("F-24-garbage-twice", &[garbage(1, 5, 2), garbage(1, 5, 2)]),
        garbage_alone("F-24-garbage-ascends-only-as-bytes", &[garbage(0, 5, 256), garbage(0, 5, 255)]),
        over("F-14-is-tagged-2-in-a-child", [&[0, 5, 2], &[2, 5, 3]]),
        over("F-14-long-id-in-a-child", [&[0, 5, 2], &[1, 5, 251, 3, 0]]),
        over("F-24-key-of-a-child-differs", [&[0, 5, 2], &[0, 5, 3]]),
        over("F-24-key-of-a-child-of-generation-0", [&[0, 0, 2], &[1, 5, 3]]),
    ]
}
