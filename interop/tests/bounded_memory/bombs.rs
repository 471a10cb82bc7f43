//! Small files with huge claims, and stores whose metadata has the maximum length and takes the most memory.

use std::fs;
use std::io::{Cursor, Write as _};
use std::path::{Path, PathBuf};

use stridemap_format::{PAGE_BYTES, TableRef};
use zip::write::SimpleFileOptions;

#[path = "../../../format/tests/support/frame.rs"]
mod frame;
#[path = "../../../format/tests/support/wire.rs"]
#[allow(dead_code, reason = "only some of it is used here")]
pub(crate) mod wire;

use wire::{Change, GENERATION, uint};

const MAX_MANIFEST_BYTES: usize = 16 << 20;

/// The bytes of a manifest besides its long field.
const REST_BYTES: usize = 400;

const MARKER_MAGIC: &[u8] = b"\x89SMAP\r\n\x1a";

/// The path of a table of storages and tensors in a store.
pub(crate) const TABLE: &str = "generations/0000000000000007.tab";

/// The path of the table of a history in a store.
pub(crate) const HISTORY: &str = "meta/0000000000000007.his";

/// Creates a store with these bytes as its only manifest, and with a table at a path if there is one.
pub(crate) fn store_of(path: &Path, manifest: &[u8], table: Option<(&str, &[u8])>) {
    for dir in ["meta", "generations", "storages"] {
        fs::create_dir_all(path.join(dir)).unwrap();
    }
    fs::write(path.join("FORMAT"), wire::marker(MARKER_MAGIC, 1)).unwrap();
    fs::write(path.join("LOCK"), "").unwrap();
    fs::write(path.join(format!("meta/{GENERATION:016x}.man")), manifest).unwrap();
    if let Some((table, bytes)) = table {
        fs::write(path.join(table), bytes).unwrap();
    }
    fs::write(path.join("storages/0000000000000001.bin"), [0; 24]).unwrap();
}

/// Returns manifests of nearly 16 MiB, by name.
fn manifests() -> Vec<(&'static str, Vec<u8>)> {
    let room = MAX_MANIFEST_BYTES - REST_BYTES;
    let one = |changes: &[Change]| wire::manifest(changes);
    let counted = |count: usize, bytes: Vec<u8>| [uint(count as u64), bytes].concat();
    // Names of four letters in ascending order, less than the name in the manifest.
    let name = |i: usize| {
        [i / 6859 + 33, i / 361 % 19 + 65, i / 19 % 19 + 65, i % 19 + 65].map(|letter| letter as u8)
    };
    let removal_count = (room / 6).min(80 * 6859);
    let removals: Vec<u8> = (0..removal_count).flat_map(|i| [&[4], &name(i)[..], &[0]].concat()).collect();
    vec![
        (
            "names of 16 million dimensions",
            one(&[("dim_names", [vec![1], counted(room, vec![0; room])].concat())]),
        ),
        ("16 million sizes", one(&[("size", counted(room, vec![0; room]))])),
        ("16 million strides", one(&[("stride", counted(room, vec![0; room]))])),
        ("a name of 16 MiB", one(&[("name", counted(room, vec![b'n'; room]))])),
        ("as many tensors as there may be, of 64 named dimensions", wide_tensors(1 << 12)),
        ("40,000 tensors of 64 named dimensions", wide_tensors(40_000)),
        ("as many attributes of three bytes as there may be", attributes((1 << 20) / 19)),
        ("1,900,000 attributes", attributes(1_900_000)),
        ("as much garbage with long paths as there may be", garbage(1 << 12, 4000)),
        ("garbage of 190,000 storages with short paths", garbage(190_000, 40)),
        ("as many tags with long messages as there may be", tags(1 << 12, 4000)),
        ("1,200,000 tags", tags(1_200_000, 1)),
        ("1,200,000 kept generations", kept(1_200_000)),
        ("removals of 500,000 storages", storage_removals()),
        ("removals of 500,000 names", one(&[("tensors", counted(removal_count + 1, removals))])),
    ]
}

/// Returns a manifest of these maps: storages, tensors, attributes, tags, kept generations and garbage, each with its
/// count.
fn manifest_of_maps(maps: [(usize, Vec<u8>); 6]) -> Vec<u8> {
    let next_id = uint(u64::from(u32::MAX));
    let head = [&wire::UUID[..], &uint(GENERATION), &[0, 0], &next_id, &[0, 0]].concat();
    let maps = maps.map(|(count, bytes)| [uint(count as u64), bytes].concat()).concat();
    frame::manifest_of(&[head, maps].concat())
}

const NONE: (usize, Vec<u8>) = (0, Vec::new());

/// Returns a manifest that only removes storages.
fn storage_removals() -> Vec<u8> {
    let (count, first) = (500_000, 1 << 16);
    let removals = (first..first + count).flat_map(|id| [uint(id), vec![0]].concat()).collect();
    manifest_of_maps([(count as usize, removals), NONE, NONE, NONE, NONE, NONE])
}

/// Returns tensors of the maximum rank. Each dimension name is a separate allocation.
fn wide_tensors(count: usize) -> Vec<u8> {
    let counted = |bytes: Vec<u8>| [vec![64], bytes].concat();
    let dim_name = |axis: u8| [1, 2, b'a' + axis / 26, b'a' + axis % 26];
    let tensor = |i: usize| {
        let fields = wire::tensor_fields().into_iter().map(|(field, bytes)| match field {
            // The name, and then its option byte.
            "name" => [wire::text(format!("{i:08}")), vec![1]].concat(),
            "size" | "stride" => counted(vec![0; 64]),
            "dim_names" => [vec![1], counted((0..64).flat_map(dim_name).collect())].concat(),
            _ => bytes,
        });
        fields.flatten().collect::<Vec<u8>>()
    };
    manifest_of_maps([NONE, (count, (0..count).flat_map(tensor).collect()), NONE, NONE, NONE, NONE])
}

/// Returns attributes with a scope of one byte, a key of two, and an empty value.
fn attributes(count: usize) -> Vec<u8> {
    let key = |i: usize| [(i >> 14) as u8 + 1, (i >> 7 & 127) as u8, (i & 127) as u8];
    let keys = (0..1 << 21).map(key).filter(|key| !key.contains(&0)).take(count);
    manifest_of_maps([
        NONE,
        NONE,
        (count, keys.flat_map(|[a, b, c]| [1, a, 2, b, c, 0]).collect()),
        NONE,
        NONE,
        NONE,
    ])
}

/// Returns garbage: external storages with paths of this length.
fn garbage(count: usize, path_bytes: usize) -> Vec<u8> {
    let record = |id: u64| {
        let kind = wire::external(&vec![b'p'; path_bytes], 0, 0);
        [&[0, 1][..], &uint(id), &[1, 0, 0], &kind, &[0]].concat()
    };
    manifest_of_maps([
        NONE,
        NONE,
        NONE,
        NONE,
        NONE,
        (count, (1 << 16..).take(count).flat_map(record).collect()),
    ])
}

/// Returns tags with messages of this length.
fn tags(count: usize, message_bytes: usize) -> Vec<u8> {
    let message = wire::some(wire::text(vec![b'm'; message_bytes]));
    let tag = |i: usize| [&wire::text(format!("{i:07}"))[..], &[1, 1], &message].concat();
    manifest_of_maps([NONE, NONE, NONE, (count, (0..count).flat_map(tag).collect()), NONE, NONE])
}

/// Returns generations that no tag names any more.
fn kept(count: usize) -> Vec<u8> {
    let kept = |i: u64| [&[0][..], &uint(i), &[1, 0, 1, 0, 0]].concat();
    let kept = (1..).take(count).flat_map(kept).collect();
    manifest_of_maps([NONE, NONE, NONE, NONE, (count, kept), NONE])
}

/// Creates stores in directories below `dir`, and returns them by the name of their long field.
pub(crate) fn stores(dir: &Path) -> Vec<(&'static str, PathBuf)> {
    let made = manifests().into_iter().enumerate().map(|(i, (name, manifest))| {
        assert!(manifest.len() <= MAX_MANIFEST_BYTES, "{name}: {} bytes", manifest.len());
        let path = dir.join(format!("bomb{i}"));
        store_of(&path, &manifest, None);
        (name, path)
    });
    let mut made: Vec<_> = made.collect();
    let long = dir.join("long");
    store_of(&long, &wire::manifest(&[]), None);
    // Sparse, as is the file that no reader should read whole.
    let grown = fs::File::options().write(true).open(long.join("meta/0000000000000007.man")).unwrap();
    grown.set_len(1 << 40).unwrap();
    made.push(("a manifest of 1 TiB", long));
    made
}

/// Creates stores with damaged tables that take little space.
pub(crate) fn tables(dir: &Path) -> [(&'static str, PathBuf); 2] {
    let (sparse, junk) = (dir.join("sparse"), dir.join("junk"));
    let (table, reference) = wire::table(
        &[wire::changed(wire::storage_fields(), &[]).0],
        &[wire::changed(wire::tensor_fields(), &[]).0],
    );
    let pages = 1 << 14;
    let on = |page_count| {
        let table = TableRef { page_count, trees: reference.trees, generation: reference.generation };
        wire::manifest_on(Some(&table), None)
    };
    store_of(&sparse, &on(pages), Some((TABLE, &table)));
    let grown = fs::File::options().write(true).open(sparse.join(TABLE)).unwrap();
    grown.set_len(pages * PAGE_BYTES as u64).unwrap();
    // Leaves of entries that cannot be decoded, one byte each.
    let pages = 2..102;
    let leaves = pages.clone().map(|page| wire::node((page, 1, 0), &vec![vec![255]; 1300]));
    let all = [table, leaves.collect::<Vec<_>>().concat()].concat();
    store_of(&junk, &on(pages.end), Some((TABLE, &all)));
    [("a table of 16,382 pages that are no nodes", sparse), ("a table of 130,000 bad entries", junk)]
}

/// A checkpoint with a `torch.Size` of one long number, repeated in few bytes, before bytes that count as storages.
fn size_of_long_numbers() -> Vec<u8> {
    let start =
        b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}X\x0d\0\0\0little_endian\x88s.";
    let number = [&b"\x8a\x10"[..], &[0xff; 15], b"\x7fq\x00"].concat();
    let size = [&b"ctorch\nSize\n("[..], &b"h\x00".repeat(1 << 20), b"t\x85R."].concat();
    [&start[..], b"\x80\x02", &number, b"0", &size, &[0; 3 << 20]].concat()
}

/// Returns a zip file of 200 compressed copies of an array without elements, or of a text, with this descriptor.
fn npz_of_copies(descr: &str, shape: &str, elements: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}");
    let length = (header.len() as u32).to_le_bytes();
    let array = [&b"\x93NUMPY\x02\x00"[..], &length, header.as_bytes(), elements].concat();
    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for i in 0..200 {
        writer.start_file(i.to_string(), SimpleFileOptions::default()).unwrap();
        writer.write_all(&array).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

/// Creates files in other formats, and returns them by name.
pub(crate) fn files(dir: &Path) -> Vec<(&'static str, PathBuf)> {
    let npy = |length: [u8; 4]| [&b"\x93NUMPY\x02\x00"[..], &length, b"{'descr': '<f4'"].concat();
    let shaped = |shape: &str| {
        let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}\n");
        [&b"\x93NUMPY\x01\x00"[..], &(header.len() as u16).to_le_bytes(), header.as_bytes()].concat()
    };
    let safetensors = |length: u64, header: &str| [&length.to_le_bytes(), header.as_bytes()].concat();
    let whole = |header: String| safetensors(header.len() as u64, &header);
    let pickle = |unit: &[u8], count: usize| {
        let start = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}X\x0d\0\0\0little_endian\x88s.";
        [&start[..], b"\x80\x02]q\x00", &unit.repeat(count), b"."].concat()
    };
    let end = |count: u16, length: u32, start: u32| {
        let counts = [count.to_le_bytes(), count.to_le_bytes()].concat();
        [&b"PK\x05\x06\0\0\0\0"[..], &counts, &length.to_le_bytes(), &start.to_le_bytes(), b"\0\0"].concat()
    };
    let fields: Vec<String> = (0..4000).map(|i| format!("('{i:x}','u1')")).collect();
    let (fields, ones) = (format!("[{}]", fields.join(",")), format!("({}0)", "1,".repeat(63)));
    let files = [
        ("header_of_4_gib.npy", npy([255; 4])),
        ("header_of_4_gib_sparse.npy", npy([0, 0, 0, 255])),
        ("two_to_62_elements.npy", shaped("(4611686018427387904,)")),
        ("nested.npy", [&b"\x93NUMPY\x01\x00\xff\xff"[..], &[b'('; 65535]].concat()),
        ("header_of_100_mb.safetensors", safetensors(100_000_000, "{")),
        ("header_of_2_to_63.safetensors", safetensors(1 << 63, "{")),
        ("long_name.safetensors", whole(format!("{{\"{}\":1}}", "n".repeat(50 << 20)))),
        (
            "long_text.safetensors",
            whole(format!(r#"{{"__metadata__":{{"a":"{}"}}}}"#, "\u{3bb}".repeat(25 << 20))),
        ),
        ("long_dtype.safetensors", whole(format!(r#"{{"x":{{"dtype":"{}""#, "F".repeat((4 << 20) - 9)))),
        (
            "millions_of_dimensions.safetensors",
            whole(format!(
                r#"{{"x":{{"dtype":"U8","shape":[1{}],"data_offsets":[0,1]}}}}"#,
                ",1".repeat(40 << 20)
            )),
        ),
        ("skipped_and_nested.safetensors", whole(format!(r#"{{"x":{{"a":{}"#, "[".repeat(50 << 20)))),
        ("nested.safetensors", whole("[".repeat(1 << 20))),
        ("nested_in_a_tensor.safetensors", whole(format!("{{\"x\":{}", "{\"a\":".repeat(200_000)))),
        (
            "many_dimensions.safetensors",
            whole(format!(
                r#"{{"x":{{"dtype":"U8","shape":[1{}],"data_offsets":[0,1]}}}}"#,
                ",1".repeat(1 << 19)
            )),
        ),
        ("lists_in_lists.pt", pickle(b"(h\x00h\x00h\x00lq\x00", 80)),
        ("size_of_long_numbers.pt", size_of_long_numbers()),
        ("nested.pt", pickle(b"]", 1 << 20)),
        ("numbers.pt", pickle(b"K\x01a", 1 << 20)),
        ("numbers_in_a_list.pt", pickle(&[&b"]("[..], &b"K\x01".repeat(1 << 21), b"ea"].concat(), 1)),
        (
            "control_characters.pt",
            pickle(&[&b"](X\x00\x00\x20\x00"[..], &vec![1; 1 << 21], b"K\x01ea"].concat(), 1),
        ),
        ("objects.pt", pickle(b"capp\nX\n)\x81a", 1 << 17)),
        (
            "object_of_many_parts.pt",
            pickle(&[&b"capp\nX\n)\x81"[..], &b"}b".repeat(1 << 20), b"a"].concat(), 1),
        ),
        (
            "one_key_with_dots.pt",
            pickle(&[&b"}q\x01("[..], &b"X\x03\0\0\0a.bK\x01".repeat(1 << 17), b"ua"].concat(), 1),
        ),
        ("marks.pt", pickle(b"(", 1 << 20)),
        ("text_of_4_gib.pt", pickle(b"X\xff\xff\xff\xff", 1)),
        ("memo_of_4_gib.pt", pickle(b"r\xff\xff\xff\xff", 1)),
        ("many_members.npz", end(65_534, 46 * 65_534, 0)),
        ("many_fields.npz", npz_of_copies(&fields, &ones, &[])),
        ("long_texts.npz", npz_of_copies("'|S1000000'", "()", &[b'a'; 1_000_000])),
        ("directory_of_4_gib.npz", [&b"PK\x03\x04"[..], &end(1, u32::MAX - 1, 0)].concat()),
    ];
    let files = files.into_iter().map(|(name, bytes)| {
        let path = dir.join(name);
        fs::write(&path, bytes).unwrap();
        if name.contains("sparse") || name.contains("100_mb") {
            fs::File::options().write(true).open(&path).unwrap().set_len(5 << 30).unwrap();
        }
        (name, path)
    });
    files.collect()
}
