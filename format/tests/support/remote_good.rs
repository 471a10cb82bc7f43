//! The values of the good vectors of remotes, and their JSON form of `vectors/README.md`.

use serde_json::{Value, json};
use stridemap_format::Uuid;
use stridemap_format::limits::{
    MAX_OBJECT_BYTES, MAX_PAGE_BYTES, MAX_PAGE_ENTRIES, MAX_REMOTE_MANIFEST_BYTES, MAX_SEGMENT_BYTES,
};
use stridemap_format::remote::{
    BLOCK_BYTES, Entries, FileKey, FileKind, Head, Page, Place, Previous, RemoteManifest, Segment,
    encode_page, object_hex,
};

use super::hex::hex;

const UUID: Uuid = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

pub(crate) fn heads() -> Vec<(&'static str, Head)> {
    let small = small_head();
    let limits = Head { generation: u64::MAX, manifest_length_bytes: MAX_REMOTE_MANIFEST_BYTES, ..small };
    vec![
        ("head", small),
        ("head-of-limits", limits),
        ("head-of-1", Head { generation: 1, manifest_length_bytes: 1, manifest: [0xff; 32], ..small }),
    ]
}

pub(crate) fn small_head() -> Head {
    Head { uuid: UUID, generation: 7, manifest: [0xaa; 32], manifest_length_bytes: 1234 }
}

pub(crate) fn pages() -> Vec<(&'static str, Entries)> {
    let empty = Entries::from([(key(FileKind::Storage, 0), vec![])]);
    vec![("page", small_page()), ("page-of-a-file-without-bytes", empty), ("page-of-limits", limits())]
}

/// The page that the bad vectors vary.
pub(crate) fn small_page() -> Entries {
    let whole = Segment { object: [1; 32], ..segment(0, 300) };
    Entries::from([
        (key(FileKind::Table, 7), vec![whole, Segment { digests_offset_bytes: 300, ..segment(332, 70_000) }]),
        (key(FileKind::Storage, 5), vec![whole]),
    ])
}

fn limits() -> Entries {
    let numbers = [0, 250, 251, 0xffff, 0x1_0000, 0xffff_ffff, 0x1_0000_0000, u64::MAX];
    let mut files: Entries = numbers.iter().map(|&number| (key(FileKind::Sum, number), vec![])).collect();
    let segments = vec![
        segment(0, 1),
        segment(251, MAX_SEGMENT_BYTES),
        segment(MAX_OBJECT_BYTES - 1, 1),
        segment(MAX_OBJECT_BYTES - BLOCK_BYTES, BLOCK_BYTES),
        Segment { digests_offset_bytes: MAX_OBJECT_BYTES - 32, ..segment(0, BLOCK_BYTES + 1) },
    ];
    files.insert(key(FileKind::KeptManifest, u64::MAX), segments);
    files.insert(key(FileKind::Storage, 1), vec![segment(0, 1); 300]);
    files
}

pub(crate) fn manifests() -> Vec<(&'static str, RemoteManifest)> {
    let small = small_manifest();
    let first = RemoteManifest { previous: None, pages: vec![], replaced: vec![], ..small.clone() };
    let kinds = FileKind::ALL.map(|kind| Entries::from([(key(kind, 1), vec![segment(0, 1)])]));
    // The last file of the first page is below the first of the second.
    let mut files = limits();
    files.pop_last();
    let last = stored(key(FileKind::Sum, u64::MAX), MAX_PAGE_ENTRIES as u64, segment(0, MAX_PAGE_BYTES));
    let limits = RemoteManifest {
        generation: u64::MAX,
        previous: Some(Previous { generation: u64::MAX, digest: [0xff; 32] }),
        pages: vec![inline(&files), last],
        ..small.clone()
    };
    vec![
        ("remote", small.clone()),
        ("remote-without-files", first),
        ("remote-of-every-kind", RemoteManifest { pages: kinds.iter().map(inline).collect(), ..small }),
        ("remote-of-limits", limits),
    ]
}

/// The remote manifest that the bad vectors vary.
pub(crate) fn small_manifest() -> RemoteManifest {
    RemoteManifest {
        uuid: UUID,
        generation: 7,
        nonce: *b"some random text",
        previous: Some(Previous { generation: 6, digest: [0xbb; 32] }),
        manifest: b"manifest".to_vec(),
        pages: vec![inline(&small_page()), stored(key(FileKind::Storage, 6), 2, segment(0, 99))],
        replaced: vec![[1; 32], [2; 32]],
    }
}

fn key(kind: FileKind, number: u64) -> FileKey {
    FileKey { kind, number }
}

fn segment(offset_bytes: u64, length_bytes: u64) -> Segment {
    Segment { object: [2; 32], offset_bytes, length_bytes, digests_offset_bytes: 0, check: [0xcc; 16] }
}

fn inline(files: &Entries) -> Page {
    let first = *files.keys().next().unwrap();
    Page { first, entry_count: files.len() as u64, place: Place::Inline(encode_page(files).unwrap()) }
}

fn stored(first: FileKey, entry_count: u64, segment: Segment) -> Page {
    Page { first, entry_count, place: Place::Stored(segment) }
}

pub(crate) fn head_json(head: &Head) -> Value {
    json!({
        "uuid": hex(&head.uuid),
        "generation": head.generation,
        "manifest": object_hex(&head.manifest),
        "manifest_length_bytes": head.manifest_length_bytes,
    })
}

pub(crate) fn manifest_json(manifest: &RemoteManifest) -> Value {
    let previous = manifest
        .previous
        .map(|previous| json!({ "generation": previous.generation, "digest": object_hex(&previous.digest) }));
    let page = |page: &Page| {
        let place = match &page.place {
            Place::Inline(bytes) => json!({ "inline": hex(bytes) }),
            Place::Stored(segment) => json!({ "stored": segment_json(segment) }),
        };
        json!({ "first": page.first.path(), "entry_count": page.entry_count, "place": place })
    };
    json!({
        "uuid": hex(&manifest.uuid),
        "generation": manifest.generation,
        "nonce": hex(&manifest.nonce),
        "previous": previous,
        "manifest": hex(&manifest.manifest),
        "pages": manifest.pages.iter().map(page).collect::<Vec<_>>(),
        "replaced": manifest.replaced.iter().map(object_hex).collect::<Vec<_>>(),
    })
}

pub(crate) fn page_json(files: &Entries) -> Value {
    let file = |(key, segments): (&FileKey, &Vec<Segment>)| {
        json!([key.path(), segments.iter().map(segment_json).collect::<Vec<_>>()])
    };
    files.iter().map(file).collect::<Vec<_>>().into()
}

fn segment_json(segment: &Segment) -> Value {
    json!({
        "object": object_hex(&segment.object),
        "offset_bytes": segment.offset_bytes,
        "length_bytes": segment.length_bytes,
        "digests_offset_bytes": segment.digests_offset_bytes,
        "check": hex(&segment.check),
    })
}
