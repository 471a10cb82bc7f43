//! The damaged stores: small stores that are each valid except for one thing. Their checksums are valid, unless a
//! checksum is what is damaged.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};
use stridemap_format::{TableRef, digest};

use super::frame::{digested, manifest_of, redigested};
use super::wire::{
    self, Change, GENERATION, NEXT_ID, UUID, changed, external, int, ints, long, overwritten, storage_fields,
    table_ref, tag_fields, tensor_fields, text, uint, uints, without_entry,
};

const MAN: &str = "meta/0000000000000007.man";
const TAB: &str = "generations/0000000000000007.tab";
const HIS: &str = "meta/0000000000000007.his";
const KEPT: &str = "generations/0000000000000005.man";
const BIN: &str = "storages/0000000000000001.bin";
const MAGIC: &[u8] = b"\x89SMAP\r\n\x1a";

/// The entry at a path of a store.
enum Node {
    File(Vec<u8>),
    Link(&'static str),
}

type Files = BTreeMap<String, Node>;

/// The point at which a store is refused, the rule, and the damaged file.
enum Refused {
    /// The store does not open.
    Open(u8, &'static str),
    /// The store opens, but its tensor `t` cannot be loaded; and the finding of `verify`.
    Load(u8, &'static str, &'static [(u8, &'static str)]),
    /// The tensor can be loaded; only `verify` finds the damage.
    Verify(&'static [(u8, &'static str)]),
    /// The store opens, but the handle's options do not allow loading its tensor.
    External,
}
use Refused::{External, Load, Open, Verify};

pub(super) struct Damaged {
    name: &'static str,
    files: Files,
    refused: Refused,
}

fn elements() -> Vec<u8> {
    (0..6u8).flat_map(|i| f32::from(i).to_le_bytes()).collect()
}

/// Returns the kind of a sealed storage with these bytes.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    [uint(0), vec![0; 16], digest(bytes).to_vec(), uint(0)].concat()
}

/// Returns a manifest of the storage and the tensor, without a history, valid except for `changes`.
fn manifest(changes: &[Change]) -> Vec<u8> {
    manifest_without(&["tags", "kept", "garbage"], changes)
}

/// Returns a manifest of the storage and the tensor, and of a tag of generation 5, which has no table.
fn tagged(changes: &[Change]) -> Vec<u8> {
    manifest_without(&["garbage"], &[changes, &[("kept_table", vec![0])]].concat())
}

fn manifest_without(maps: &[&'static str], changes: &[Change]) -> Vec<u8> {
    let empty: Vec<Change> = maps.iter().flat_map(|map| without_entry(map)).collect();
    let mut all = [changes, &empty].concat();
    if !all.iter().any(|(field, _)| *field == "kind") {
        all.push(("kind", sealed(&elements())));
    }
    wire::manifest(&all)
}

fn store(manifest: Vec<u8>) -> Files {
    let files =
        [("FORMAT", wire::marker(MAGIC, 1)), ("LOCK", Vec::new()), (MAN, manifest), (BIN, elements())];
    files.into_iter().map(|(path, bytes)| (path.to_owned(), Node::File(bytes))).collect()
}

/// Returns the store with one of its paths replaced.
fn with_file(path: &str, node: Node) -> Files {
    let mut files = store(manifest(&[]));
    files.insert(path.to_owned(), node);
    files
}

fn without(path: &str) -> Files {
    let mut files = store(manifest(&[]));
    files.remove(path).unwrap();
    files
}

/// The bytes of a table, and the manifest's reference to it.
type Table = (Vec<u8>, TableRef);

/// Returns a store with a table, and a manifest without changes over it.
fn on_table((table, reference): Table) -> Files {
    let (time, none) = (int(0), || vec![0]);
    let head = [UUID.to_vec(), uint(GENERATION), time, none(), uint(NEXT_ID), table_ref(&reference), none()];
    // The maps of changes are empty, and so are the attributes.
    let mut files = store(manifest_of(&[head.concat(), vec![0; 6]].concat()));
    files.insert(TAB.to_owned(), Node::File(table));
    files
}

/// Returns the entry of a storage with this number of tensors.
fn storage_of(tensor_count: usize) -> Vec<u8> {
    let own = [("kind", sealed(&elements())), ("count", uint(tensor_count as u64))];
    changed(storage_fields(), &own).0
}

/// Returns the entries of tensors with these names, valid except for `changes` to each.
fn tensors(names: &[&str], changes: &[Change]) -> Vec<Vec<u8>> {
    let tensor = |name: &&str| changed(tensor_fields(), &[&[("name", text(name))], changes].concat()).0;
    names.iter().map(tensor).collect()
}

/// Returns a table of two leaves: a storage, and tensors with these names, valid except for `changes` to each.
fn table(names: &[&str], changes: &[Change]) -> Table {
    wire::table(&[storage_of(names.len())], &tensors(names, changes))
}

/// Returns a table of four pages: the storage, leaves of the tensors "s" and "t", and their root. Its children are
/// first names and pages.
fn table_of_two_levels(children: &[(&str, u64)]) -> Table {
    let leaf = |page, name| wire::node((page, 1, 0), &tensors(&[name], &[]));
    let children: Vec<_> = children.iter().map(|&(name, page)| wire::child(text(name), page)).collect();
    let storages = wire::node((0, 0, 0), &[storage_of(2)]);
    let bytes = [storages, leaf(1, "s"), leaf(2, "t"), wire::node((3, 1, 1), &children)].concat();
    let reference = wire::reference(&bytes, 0, &[(0, 1), (3, 2)]);
    (bytes, reference)
}

fn flipped(bytes: Vec<u8>, at: usize) -> Vec<u8> {
    let byte = bytes[at] ^ 1;
    overwritten(bytes, at, &[byte])
}

fn file(bytes: impl AsRef<[u8]>) -> Node {
    Node::File(bytes.as_ref().to_vec())
}

/// Returns every damaged store.
pub(super) fn all() -> Vec<Damaged> {
    let made = [metadata(), records(), tables(), storages(), paths(), history()].into_iter().flatten();
    made.map(|(name, files, refused)| Damaged { name, files, refused }).collect()
}

type Row = (&'static str, Files, Refused);

fn metadata() -> Vec<Row> {
    let good = || manifest(&[]);
    let format = || wire::marker(MAGIC, 1);
    let mut older_is_good = other_generation_of(flipped(good(), 40));
    older_is_good.insert(MAN.to_owned(), Node::File(good()));
    vec![
        ("format-bit-flipped", with_file("FORMAT", Node::File(flipped(format(), 20))), Open(2, "FORMAT")),
        ("format-cut", with_file("FORMAT", file(&format()[..40])), Open(2, "FORMAT")),
        ("format-empty", with_file("FORMAT", file("")), Open(1, "FORMAT")),
        ("format-missing", without("FORMAT"), Open(1, "FORMAT")),
        ("manifest-bit-flipped", store(flipped(good(), 40)), Open(16, MAN)),
        ("manifest-cut", store(good()[..60].to_vec()), Open(15, MAN)),
        ("manifest-empty", store(Vec::new()), Open(15, MAN)),
        ("manifest-missing", without(MAN), Open(19, "meta")),
        ("newest-manifest-bit-flipped", older_is_good, Open(16, "meta/0000000000000008.man")),
        (
            "byte-after-format",
            with_file("FORMAT", Node::File([format(), vec![0]].concat())),
            Open(2, "FORMAT"),
        ),
        ("byte-after-manifest", store([good(), vec![0]].concat()), Open(15, MAN)),
        ("byte-after-body", store(manifest(&[("end", vec![0])])), Open(14, MAN)),
        (
            "body-of-2-to-64-bytes",
            {
                let covered = good()[..good().len() - 16].to_vec();
                store(digested(&overwritten(covered, 16, &[255; 8])))
            },
            Open(15, MAN),
        ),
        ("name-of-2-to-60-bytes", store(manifest(&[("name", uint(1 << 60))])), Open(14, MAN)),
        ("2-to-60-storages", store(wire::manifest_up_to("storages", &uint(1 << 60))), Open(14, MAN)),
        ("2-to-60-dimensions", store(manifest(&[("size", uint(1 << 60))])), Open(14, MAN)),
        ("format-version-2", with_file("FORMAT", Node::File(wire::marker(MAGIC, 2))), Open(3, "FORMAT")),
        (
            "manifest-version-2",
            {
                let covered = good()[..good().len() - 16].to_vec();
                store(digested(&overwritten(covered, 8, &[2])))
            },
            Open(3, MAN),
        ),
        ("another-stores-manifest", store(manifest(&[("uuid", vec![9; 16])])), Open(17, MAN)),
        ("generation-not-the-files-name", other_generation_of(good()), Open(18, "meta/0000000000000008.man")),
    ]
}

/// Returns the store with a second manifest, of generation 8.
fn other_generation_of(bytes: Vec<u8>) -> Files {
    let mut files = without(MAN);
    files.insert("meta/0000000000000008.man".to_owned(), Node::File(bytes));
    files
}

fn records() -> Vec<Row> {
    let one = |field, bytes| store(manifest(&[(field, bytes)]));
    let broken = |rule, files| (files, Open(rule, MAN));
    let outside = |files| (files, Load(8, BIN, &[(8, MAN)]));
    let shaped =
        |size: &[u64], stride: &[i64]| store(manifest(&[("size", uints(size)), ("stride", ints(stride))]));
    let removal = [uint(2), text("t"), vec![0]].concat();
    let rows = [
        ("storage-of-2-to-63-bytes", broken(11, one("length", uint(1 << 63)))),
        ("rank-65-of-few-bytes", broken(5, shaped(&[1; 65], &[1; 65]))),
        ("sizes-multiply-to-2-to-64", broken(7, shaped(&[1 << 32, 1 << 32], &[0, 0]))),
        ("sizes-multiply-to-2-to-63", broken(7, shaped(&[1 << 62, 2], &[0, 0]))),
        ("view-past-the-end", outside(one("offset", uint(1)))),
        ("view-below-0", outside(one("stride", ints(&[2, -1])))),
        (
            "no-elements-past-the-end",
            outside(store(manifest(&[("size", uints(&[3, 0])), ("offset", uint(7))]))),
        ),
        (
            "scalar-past-the-end",
            outside(store(manifest(&[("size", uints(&[])), ("stride", ints(&[])), ("offset", uint(6))]))),
        ),
        ("strides-overflow-upwards", outside(shaped(&[5, 2], &[1 << 62, 1]))),
        ("strides-overflow-downwards", outside(shaped(&[3, 2], &[i64::MIN, 1]))),
        ("offset-in-bytes-overflows", outside(one("offset", uint(1 << 62)))),
        ("stride-missing", broken(5, one("stride", ints(&[2])))),
        ("dtype-21", broken(6, one("dtype", vec![21]))),
        ("kind-4", broken(10, one("kind", uint(4)))),
        ("live-by-3-bytes", broken(10, one("kind", wire::live(3)))),
        ("name-with-nul", broken(4, one("name", text("a\0b")))),
        ("name-empty", broken(4, one("name", text("")))),
        ("name-twice-in-the-manifest", broken(14, one("tensors", removal))),
        ("name-not-utf-8", broken(14, one("name", text(b"\xff")))),
        (
            "dimension-names-all-none",
            broken(9, one("dim_names", wire::some(wire::list(&[vec![0], vec![0]])))),
        ),
        ("dimension-names-twice", broken(9, one("dim_names", wire::dim_names(&["a", "a"])))),
        ("integer-longer-than-needed", broken(14, one("length", long(24, 2)))),
        (
            "storage-without-a-record",
            (one("on", uint(2)), Load(27, "storages/0000000000000002.bin", &[(27, MAN)])),
        ),
        ("storage-counts-2-tensors-of-1", (one("count", uint(2)), Verify(&[(28, MAN)]))),
    ];
    rows.into_iter().map(|(name, (files, refused))| (name, files, refused)).collect()
}

fn tables() -> Vec<Row> {
    const PAGE: usize = 4096;
    let good = || table(&["s", "t"], &[]);
    let two_levels = || table_of_two_levels(&[("s", 1), ("t", 2)]);
    let with_bytes =
        |(bytes, reference): Table, change: fn(Vec<u8>) -> Vec<u8>| on_table((change(bytes), reference));
    let counting = |change: fn(&mut TableRef)| {
        let (bytes, mut reference) = good();
        change(&mut reference);
        on_table((bytes, reference))
    };
    // The first node with other bytes, and the digest that they have.
    fn patched(bytes: &[u8], at: usize, patch: &[u8]) -> Vec<u8> {
        [redigested(overwritten(bytes[..PAGE].to_vec(), at, patch)), bytes[PAGE..].to_vec()].concat()
    }
    let damaged_leaf = || Load(21, TAB, &[(21, TAB)]);
    vec![
        (
            "table-bit-flipped-in-a-root",
            with_bytes(two_levels(), |b| flipped(b, 3 * PAGE + 70)),
            Open(21, TAB),
        ),
        (
            "table-bit-flipped-in-a-leaf",
            with_bytes(two_levels(), |b| flipped(b, 2 * PAGE + 70)),
            damaged_leaf(),
        ),
        (
            "table-bit-flipped-after-the-entries",
            with_bytes(two_levels(), |b| flipped(b, 3 * PAGE - 1)),
            damaged_leaf(),
        ),
        (
            "table-bit-flipped-in-another-leaf",
            with_bytes(two_levels(), |b| flipped(b, PAGE + 70)),
            Verify(&[(21, TAB)]),
        ),
        ("table-cut", with_bytes(good(), |b| b[..PAGE].to_vec()), Open(20, TAB)),
        (
            "table-missing",
            {
                let mut files = on_table(good());
                files.remove(TAB).unwrap();
                files
            },
            Open(19, TAB),
        ),
        ("byte-after-table", with_bytes(good(), |b| [b, vec![0]].concat()), Open(20, TAB)),
        ("page-after-table", with_bytes(good(), |b| [b, vec![0; PAGE]].concat()), Open(20, TAB)),
        ("table-of-2-to-52-pages", counting(|reference| reference.page_count = 1 << 52), Open(20, TAB)),
        (
            "table-of-2-to-61-tensors",
            counting(|reference| reference.trees[1].entry_count = 1 << 61),
            Verify(&[(28, TAB)]),
        ),
        ("table-root-past-the-end", counting(|reference| reference.trees[1].root_page = 2), Open(23, TAB)),
        ("table-of-another-store", with_bytes(good(), |b| patched(&b, 16, &[9; 16])), Open(17, TAB)),
        ("table-of-another-generation", with_bytes(good(), |b| patched(&b, 32, &[6])), Open(18, TAB)),
        ("table-is-later", counting(|reference| reference.generation = 8), Open(18, MAN)),
        (
            "table-view-past-the-end",
            on_table(table(&["s", "t"], &[("offset", uint(1))])),
            Load(8, BIN, &[(8, TAB)]),
        ),
        (
            "table-child-past-the-end",
            on_table(table_of_two_levels(&[("s", 1), ("t", 4)])),
            Load(23, TAB, &[(23, TAB)]),
        ),
        (
            "table-child-of-the-other-tree",
            on_table(table_of_two_levels(&[("s", 1), ("t", 0)])),
            Load(23, TAB, &[(23, TAB)]),
        ),
        ("table-name-twice", on_table(table(&["t", "t"], &[])), Verify(&[(24, TAB)])),
        ("table-names-descend", on_table(table(&["u", "t"], &[])), Verify(&[(24, TAB)])),
        (
            "table-first-name-of-a-leaf-differs",
            on_table(table_of_two_levels(&[("a", 1), ("t", 2)])),
            Verify(&[(24, TAB)]),
        ),
    ]
}

fn storages() -> Vec<Row> {
    let in_place = |kind: Vec<u8>, length: usize| {
        let mut files = store(manifest(&[("kind", kind)]));
        files.insert(BIN.to_owned(), file(&elements()[..length]));
        files
    };
    let no_bytes = store(manifest(&[("length", uint(0)), ("kind", sealed(b"")), ("size", uints(&[0, 2]))]));
    let missing = |mut files: Files| {
        files.remove(BIN).unwrap();
        files
    };
    let mut chunked = store(manifest(&[
        ("length", uint((1 << 20) + 24)),
        ("kind", [uint(0), vec![7; 16], digest(&elements()).to_vec(), uint(0)].concat()),
    ]));
    chunked.insert(BIN.to_owned(), file(""));
    let lost = Load(26, BIN, &[(26, BIN)]);
    let again = || Load(26, BIN, &[(26, BIN)]);
    vec![
        ("storage-cut", with_file(BIN, file(&elements()[..23])), lost),
        ("storage-empty", with_file(BIN, file("")), again()),
        ("storage-missing", without(BIN), again()),
        ("mutable-storage-cut", in_place(uint(1), 23), again()),
        ("mutable-storage-without-its-mark", in_place(uint(1), 24), again()),
        ("live-storage-cut", in_place(wire::live(4), 23), again()),
        ("chunked-storage-cut", chunked, again()),
        ("element-changed", with_file(BIN, Node::File(flipped(elements(), 9))), Verify(&[(25, BIN)])),
        ("elements-zeroed", with_file(BIN, file([0; 24])), Verify(&[(25, BIN)])),
        ("storage-longer-than-its-file", store(manifest(&[("length", uint(1 << 60))])), again()),
        ("storage-of-no-bytes-missing", missing(no_bytes), again()),
    ]
}

/// Returns stores with the wrong kind of entry at the path of a file or directory.
fn paths() -> Vec<Row> {
    let link = |path| with_file(path, Node::Link("../../element"));
    let mut directory = without(BIN);
    directory.insert(format!("{BIN}/file"), file(elements()));
    let mut linked_storages = without(BIN);
    linked_storages.insert("storages".to_owned(), Node::Link("../elsewhere"));
    linked_storages.insert("../elsewhere/0000000000000001.bin".to_owned(), file(elements()));
    let mut manifest_is_a_directory = without(MAN);
    manifest_is_a_directory.insert(format!("{MAN}/file"), file(""));
    let reaches = |path: &str| {
        let mut files = store(manifest(&[("kind", external(path.as_bytes(), 0, 24))]));
        files.remove(BIN);
        files.insert("../beside".to_owned(), file(elements()));
        files.insert("../link".to_owned(), Node::Link("/etc/passwd"));
        files
    };
    vec![
        ("storage-is-a-link", link(BIN), Load(26, BIN, &[(26, BIN)])),
        ("manifest-is-a-link", link(MAN), Open(15, MAN)),
        ("format-is-a-link", link("FORMAT"), Open(1, "FORMAT")),
        ("storages-is-a-link", linked_storages, Open(26, "storages")),
        ("external-is-an-absolute-path", reaches("/etc/passwd"), External),
        ("external-leads-up", reaches("../../../../../../../../etc/passwd"), External),
        ("external-leads-up-from-below", reaches("store/../../../../../../../../../etc/passwd"), External),
        ("external-is-a-link-out", reaches("link"), External),
        ("external-is-a-file-of-the-store", reaches("store/FORMAT"), External),
        ("storage-is-a-directory", directory, Load(26, BIN, &[(26, BIN)])),
        ("manifest-is-a-directory", manifest_is_a_directory, Open(15, MAN)),
    ]
}

/// Returns stores with a tag whose generation is damaged, or with a damaged list of tags.
fn history() -> Vec<Row> {
    let with_kept = |bytes: Vec<u8>| {
        let mut files = store(tagged(&[]));
        files.insert(KEPT.to_owned(), Node::File(bytes));
        files
    };
    let kept = || manifest(&[("generation", uint(5))]);
    let tags = |tags: &[&str]| {
        let entries: Vec<Vec<u8>> =
            tags.iter().map(|tag| changed(tag_fields(), &[("tag", text(tag))]).0).collect();
        let (bytes, reference) = wire::history(&entries, &[], &[]);
        let only_kept = [("history", table_ref(&reference)), ("tag_count", uint(tags.len() as u64))];
        let mut files = with_kept(kept());
        let no_table = [("kept_table", vec![0])];
        let manifest = manifest_without(&["garbage", "tags"], &[&only_kept[..], &no_table].concat());
        files.insert(MAN.to_owned(), Node::File(manifest));
        files.insert(HIS.to_owned(), Node::File(bytes));
        files
    };
    let mut without_list = tags(&["v1"]);
    without_list.remove(HIS).unwrap();
    // Generation 5 is listed as one whose last tag was removed, too.
    let twice_kept = |entry: &[Vec<u8>]| {
        let released = [vec![0], uint(5), entry.concat(), int(-4), uint(NEXT_ID), vec![0], uint(0)].concat();
        (released, with_kept(kept()))
    };
    let (released, mut twice) = twice_kept(&[vec![1]]);
    let both = [uint(2), released].concat();
    twice.insert(MAN.to_owned(), Node::File(tagged(&[("kept", both)])));
    let (released, mut twice_in_two_files) = twice_kept(&[]);
    let (bytes, reference) = wire::history(&[], &[released], &[]);
    let manifest_on_list = tagged(&[("history", table_ref(&reference))]);
    twice_in_two_files.insert(MAN.to_owned(), Node::File(manifest_on_list));
    twice_in_two_files.insert(HIS.to_owned(), Node::File(bytes));
    // The manifest of generation 5 has a history.
    let kept_with = |maps: &[&'static str], changes: &[Change]| {
        let earlier = [("generation", uint(5)), ("dropped", uint(5)), ("kept_table", vec![0])];
        let is_there = |(field, _): &Change| match *field {
            "dropped" => !maps.contains(&"garbage"),
            "kept_table" => !maps.contains(&"kept"),
            _ => true,
        };
        let earlier: Vec<Change> = earlier.into_iter().filter(is_there).collect();
        with_kept(manifest_without(maps, &[&earlier[..], changes].concat()))
    };
    let reference = TableRef { generation: 5, ..reference };
    let history = [("history", table_ref(&reference))];
    let mut not_kept = store(manifest_without(&["kept", "garbage"], &[]));
    not_kept.insert(KEPT.to_owned(), Node::File(kept()));
    vec![
        ("kept-manifest-missing", store(tagged(&[])), Verify(&[(19, KEPT)])),
        ("kept-manifest-bit-flipped", with_kept(flipped(kept(), 40)), Verify(&[(16, KEPT)])),
        ("kept-manifest-of-another-generation", with_kept(manifest(&[])), Verify(&[(18, KEPT)])),
        (
            "kept-manifest-with-a-list-of-tags",
            kept_with(&["tags", "kept", "garbage"], &history),
            Verify(&[(28, KEPT)]),
        ),
        ("kept-manifest-with-a-tag", kept_with(&["kept", "garbage"], &[]), Verify(&[(28, KEPT)])),
        ("kept-manifest-with-a-kept-generation", kept_with(&["tags", "garbage"], &[]), Verify(&[(28, KEPT)])),
        ("kept-manifest-with-garbage", kept_with(&["tags", "kept"], &[]), Verify(&[(28, KEPT)])),
        ("generation-with-tags-and-without", twice, Open(28, MAN)),
        ("generation-with-tags-and-without-in-two-files", twice_in_two_files, Verify(&[(28, HIS)])),
        ("tag-of-a-generation-that-is-not-kept", not_kept, Verify(&[(28, MAN)])),
        ("list-of-tags-missing", without_list, Open(19, HIS)),
        ("list-of-tags-descends", tags(&["v2", "v1"]), Verify(&[(24, HIS)])),
    ]
}

impl Damaged {
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Writes the store and the expected results into a directory.
    pub(super) fn write(&self, dir: &Path) {
        let root = dir.join("store");
        for folder in ["meta", "generations", "storages"] {
            if !matches!(self.files.get(folder), Some(Node::Link(_))) {
                fs::create_dir_all(root.join(folder)).unwrap();
            }
        }
        for (path, node) in &self.files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            match node {
                Node::File(bytes) => fs::write(&path, bytes).unwrap(),
                Node::Link(target) => symlink(target, &path).unwrap(),
            }
        }
        let expected = serde_json::to_string_pretty(&self.expected()).unwrap() + "\n";
        fs::write(dir.join(super::EXPECTED), expected).unwrap();
    }

    fn expected(&self) -> Value {
        let said = |rule: u8, file: &str| {
            let kind = if rule == 3 { "UnsupportedVersion" } else { "Corrupt" };
            json!({"kind": kind, "rule": rule, "file": file})
        };
        let finding = |&(rule, file): &(u8, &str)| json!({"rule": rule, "file": file});
        let findings = |found: &[(u8, &str)]| found.iter().map(finding).collect::<Vec<_>>();
        match self.refused {
            Open(rule, file) => json!({"open": said(rule, file)}),
            Load(rule, file, found) => json!({"load": said(rule, file), "verify": findings(found)}),
            Verify(found) => json!({"verify": findings(found)}),
            External => json!({"load": {"kind": "NotAllowed"}, "verify": []}),
        }
    }
}
