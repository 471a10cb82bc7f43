//! Objects of a remote that each break one rule, which their names state, and the encoder that writes them.

use super::frame::digested;
use super::wire::{Change, GENERATION, UUID, changed, list, long, overwritten, some, uint};

/// One byte more than 64 MiB.
const PAST_OBJECT: u64 = (1 << 26) + 1;

/// Returns every bad object: the name of its file and its bytes.
pub(crate) fn files() -> Vec<(String, Vec<u8>)> {
    let named = |files: Vec<(&str, Vec<u8>)>, extension: &'static str| {
        files.into_iter().map(move |(name, bytes)| (format!("{name}.{extension}"), bytes)).collect::<Vec<_>>()
    };
    let of_pages = page_records().into_iter().map(|(name, changes)| (name, page(&changes)));
    // The same pages inside a remote manifest.
    let inside = page_records().into_iter().map(|(name, changes)| {
        let inline = [uint(0), bytes_field(&page(&changes))].concat();
        (name, manifest(&[("place", inline)]))
    });
    [
        named(heads(), "head"),
        named(frames(), "remote"),
        named(manifests().into_iter().map(|(name, changes)| (name, manifest(&changes))).collect(), "remote"),
        named(inside.collect(), "remote"),
        named(of_pages.collect(), "page"),
        named(pages(), "page"),
    ]
    .concat()
}

/// Returns the bad objects that are too large to be files of their own.
pub(crate) fn large() -> Vec<(&'static str, Vec<u8>)> {
    let repeated = |item: Vec<u8>, count: usize| [uint(count as u64), item.repeat(count)].concat();
    let ends = [("second", vec![]), ("replaced", list(&[]))];
    // The usual page has no bytes, which breaks F-14 only when it is decoded.
    let pages = |count: usize, last: &[u8]| {
        let refs = [uint(count as u64), [0, 0, 1, 0, 0].repeat(count - 1), last.to_vec()].concat();
        let emptied = ["kind", "number", "files", "place"].map(|field| (field, vec![]));
        manifest(&[&emptied[..], &[("pages", refs)], &ends[..]].concat())
    };
    let replaced = |count: usize| manifest(&[("replaced", repeated(vec![7; 32], count))]);
    let shortest = replaced(1 << 21).len() - 32 * (1 << 21);
    let of_length = |bytes: usize| {
        let stored = vec![b'm'; (bytes - shortest) % 32 + 8];
        let (changes, count) = (("manifest", bytes_field(&stored)), (bytes - shortest) / 32);
        manifest(&[changes, ("replaced", repeated(vec![7; 32], count))])
    };
    let segments = |count: usize| {
        let changes =
            [("segments", uint(count as u64)), ("first", segment(0, 1).repeat(count)), ("second", vec![])];
        page(&changes)
    };
    vec![
        (
            "R-5-manifest-of-16777217-bytes.remote",
            manifest(&[("manifest", bytes_field(&vec![9; (1 << 24) + 1]))]),
        ),
        ("R-10-file-of-67108864-bytes.remote", of_length(1 << 26)),
        ("R-5-file-of-67108865-bytes.remote", of_length((1 << 26) + 1)),
        ("R-10-65537-pages.remote", pages((1 << 16) + 1, &[0, 0, 1, 0, 0])),
        ("R-10-1048577-replaced-objects.remote", replaced((1 << 20) + 1)),
        ("F-14-in-65537-pages.remote", pages((1 << 16) + 1, &[0, 0, 255, 0, 0])),
        ("R-6-in-65537-pages.remote", pages((1 << 16) + 1, &[9, 0, 1, 0, 0])),
        ("R-8-8193-files.page", repeated(vec![1, 7, 0], 8193)),
        ("R-6-in-8194-files.page", [uint(8194), [1, 7, 0].repeat(8193), vec![5, 7, 0]].concat()),
        ("F-14-8192-files-that-are-one.page", repeated(vec![1, 7, 0], 8192)),
        ("R-8-file-of-more-than-4-mib.page", segments(80_700)),
    ]
}

/// Returns the head that is valid except for `changes`.
pub(crate) fn head(changes: &[Change]) -> Vec<u8> {
    let fields = vec![
        ("magic", b"SMAPHEAD".to_vec()),
        ("version", 1u64.to_le_bytes().to_vec()),
        ("uuid", UUID.to_vec()),
        ("generation", GENERATION.to_le_bytes().to_vec()),
        ("manifest", vec![0xaa; 32]),
        ("length", 1234u64.to_le_bytes().to_vec()),
    ];
    let (bytes, found) = changed(fields, changes);
    assert_eq!(found, changes.len(), "HEAD lacks one of {changes:?}");
    digested(&bytes)
}

/// Returns the remote manifest that is valid except for `changes`.
pub(crate) fn manifest(changes: &[Change]) -> Vec<u8> {
    let fields = vec![
        ("uuid", UUID.to_vec()),
        ("generation", uint(GENERATION)),
        ("nonce", b"some random text".to_vec()),
        ("previous", previous(6)),
        ("manifest", bytes_field(b"manifest")),
        ("pages", uint(2)),
        ("kind", uint(1)),
        ("number", uint(7)),
        ("files", uint(2)),
        ("place", [uint(0), bytes_field(&page(&[]))].concat()),
        ("second", second(6, 2, &segment(0, 99))),
        ("replaced", list(&[vec![1; 32], vec![2; 32]])),
        ("end", vec![]),
    ];
    let (body, found) = changed(fields, changes);
    assert_eq!(found, changes.len(), "a remote manifest lacks one of {changes:?}");
    framed(1, body.len() as u64, &body)
}

/// Returns the page that is valid except for `changes`.
pub(crate) fn page(changes: &[Change]) -> Vec<u8> {
    let fields = vec![
        ("count", uint(2)),
        ("kind", uint(1)),
        ("number", uint(7)),
        ("segments", uint(2)),
        ("first", segment_of(1, 0, 300)),
        ("second", with_digests(300, segment(332, 70_000))),
        ("last_kind", uint(3)),
        ("last_number", uint(5)),
        ("last_segments", list(&[segment_of(1, 0, 300)])),
        ("end", vec![]),
    ];
    let (bytes, found) = changed(fields, changes);
    assert_eq!(found, changes.len(), "a page lacks one of {changes:?}");
    bytes
}

fn framed(version: u64, length: u64, body: &[u8]) -> Vec<u8> {
    [&b"SMAPREM\n"[..], &version.to_le_bytes(), &length.to_le_bytes(), body].concat()
}

fn bytes_field(bytes: &[u8]) -> Vec<u8> {
    [&uint(bytes.len() as u64), bytes].concat()
}

fn previous(generation: u64) -> Vec<u8> {
    some([uint(generation), vec![0xbb; 32]].concat())
}

/// Encodes the second page of the remote manifest: one of storages that begins with `first`.
fn second(first: u64, files: u64, segment: &[u8]) -> Vec<u8> {
    [&uint(3)[..], &uint(first), &uint(files), &uint(1), segment].concat()
}

fn segment(offset: u64, length: u64) -> Vec<u8> {
    segment_of(2, offset, length)
}

fn segment_of(object: u8, offset: u64, length: u64) -> Vec<u8> {
    [uint(0), vec![object; 32], uint(offset), uint(length), uint(0), vec![0xcc; 16]].concat()
}

fn with_digests(offset: u64, mut segment: Vec<u8>) -> Vec<u8> {
    let at = segment.len() - 17;
    segment.splice(at..=at, uint(offset));
    segment
}

fn heads() -> Vec<(&'static str, Vec<u8>)> {
    let u64s = |n: u64| n.to_le_bytes().to_vec();
    let (uuid, zero) = (("uuid", vec![9; 16]), ("generation", u64s(0)));
    let good = || head(&[]);
    let mut reversed = good();
    reversed[80..].reverse();
    vec![
        ("R-1-empty", vec![]),
        ("R-1-magic-of-a-remote-manifest", head(&[("magic", b"SMAPREM\n".to_vec())])),
        ("R-1-cut-inside-the-magic", good()[..7].to_vec()),
        ("R-2-cut-short", good()[..95].to_vec()),
        ("R-2-byte-after-the-end", [good(), vec![0]].concat()),
        ("R-2-one-bit-flipped-in-the-version", overwritten(good(), 8, &[0])),
        ("R-2-one-bit-flipped-in-the-uuid", overwritten(good(), 16, &[1])),
        ("R-2-digest-in-little-endian", reversed),
        ("F-3-version-0", head(&[("version", u64s(0))])),
        ("F-3-version-2-of-another-store", head(&[("version", u64s(2)), uuid.clone()])),
        ("F-3-version-2-to-32-and-1", head(&[("version", u64s((1 << 32) + 1))])),
        ("R-3-another-store", head(std::slice::from_ref(&uuid))),
        ("R-3-another-store-and-generation-0", head(&[uuid, zero.clone()])),
        ("R-4-generation-0", head(std::slice::from_ref(&zero))),
        ("R-4-generation-0-and-length-0", head(&[zero, ("length", u64s(0))])),
        ("R-5-length-0", head(&[("length", u64s(0))])),
        ("R-5-length-67108865", head(&[("length", u64s(PAST_OBJECT))])),
        ("R-5-length-2-to-63", head(&[("length", u64s(1 << 63))])),
    ]
}

/// Returns remote manifests whose bytes around the body are wrong.
fn frames() -> Vec<(&'static str, Vec<u8>)> {
    let good = || manifest(&[]);
    let body = good()[24..].to_vec();
    let length = body.len() as u64;
    vec![
        ("R-5-empty", vec![]),
        ("R-5-magic-of-a-manifest", overwritten(good(), 0, b"SMAPMAN\n")),
        ("R-5-cut-inside-the-magic", good()[..7].to_vec()),
        ("R-5-cut-inside-the-version", good()[..15].to_vec()),
        ("R-5-cut-inside-the-length", good()[..23].to_vec()),
        ("R-5-cut-inside-the-body", good()[..good().len() - 1].to_vec()),
        ("R-5-byte-after-the-body", [good(), vec![0]].concat()),
        ("R-5-length-1-too-long", framed(1, length + 1, &body)),
        ("R-5-length-2-to-64-less-1", framed(1, u64::MAX, &body)),
        ("F-3-version-0", framed(0, length, &body)),
        ("F-3-version-2-and-a-wrong-length", framed(2, length + 1, &body)),
        ("F-3-version-2-to-32-and-1", framed((1 << 32) + 1, length, &body)),
        ("F-14-body-empty", framed(1, 0, &[])),
        ("F-14-body-cut-short", framed(1, length - 1, &body[..body.len() - 1])),
    ]
}

/// Returns broken remote manifests: their changed fields.
fn manifests() -> Vec<(&'static str, Vec<Change>)> {
    let uuid = ("uuid", vec![9; 16]);
    let place = |bytes: &[u8]| ("place", bytes.to_vec());
    let stored = |segment: &[u8]| place(&[&uint(1), segment].concat());
    let one_file = list(&[[uint(1), uint(7), uint(0)].concat()]);
    vec![
        ("F-14-byte-after-the-body", vec![("end", vec![0])]),
        ("F-14-long-generation", vec![("generation", long(GENERATION, 2))]),
        ("F-14-long-generation-in-another-store", vec![uuid.clone(), ("generation", long(GENERATION, 2))]),
        ("F-14-previous-option-byte-2", vec![("previous", vec![2])]),
        ("F-14-manifest-of-2-to-60-bytes", vec![("manifest", uint(1 << 60))]),
        ("F-14-long-count-of-pages", vec![("pages", long(2, 2))]),
        (
            "F-14-count-2-to-60-of-pages",
            vec![("pages", uint(1 << 60)), ("second", vec![]), ("replaced", vec![])],
        ),
        ("F-14-long-place", vec![place(&[&long(0, 2)[..], &bytes_field(&page(&[]))].concat())]),
        ("F-14-inline-page-of-2-to-60-bytes", vec![place(&[uint(0), uint(1 << 60)].concat())]),
        ("F-14-inline-page-empty", vec![place(&[uint(0), uint(0)].concat())]),
        ("F-14-count-2-to-60-of-replaced-objects", vec![("replaced", uint(1 << 60))]),
        ("F-14-replaced-object-cut-short", vec![("replaced", [uint(1), vec![1; 31]].concat())]),
        ("R-3-another-store", vec![uuid.clone()]),
        ("R-3-another-store-and-generation", vec![uuid.clone(), ("generation", uint(8))]),
        ("R-4-generation-0", vec![("generation", uint(0))]),
        ("R-4-another-generation", vec![("generation", uint(8))]),
        ("R-4-previous-generation-0", vec![("previous", previous(0))]),
        ("R-5-manifest-empty", vec![("manifest", uint(0))]),
        ("R-6-place-2", vec![place(&[&uint(2)[..], &segment(0, 1)].concat())]),
        ("R-6-place-2-to-32", vec![place(&[&uint(1 << 32)[..], &bytes_field(&page(&[]))].concat())]),
        ("R-6-kind-5-of-a-first-file-in-another-store", vec![uuid, ("kind", uint(5))]),
        ("R-6-kind-2-to-32-of-a-first-file", vec![("kind", uint((1 << 32) + 1))]),
        ("R-6-kind-1-of-a-stored-segment", vec![stored(&overwritten(segment(0, 1), 0, &[1]))]),
        ("R-7-stored-page-of-0-bytes", vec![stored(&segment(0, 0))]),
        ("R-7-stored-page-past-65-mib", vec![stored(&segment((65 << 20) - 9, 10))]),
        ("R-8-stored-page-of-4194305-bytes", vec![stored(&segment(0, (1 << 22) + 1))]),
        ("R-8-page-stated-without-files", vec![("files", uint(0))]),
        ("R-8-stored-page-stated-without-files", vec![("second", second(6, 0, &segment(0, 1)))]),
        ("R-8-page-of-8193-files", vec![("second", second(6, 8193, &segment(0, 1)))]),
        ("R-8-fewer-files-than-stated", vec![("files", uint(3))]),
        ("R-8-more-files-than-stated", vec![("files", uint(1))]),
        ("R-9-number-of-the-first-file-differs", vec![("number", uint(6))]),
        ("R-9-kind-of-the-first-file-differs", vec![("kind", uint(0))]),
        ("R-9-page-begins-with-the-last-file-before", vec![("second", second(5, 2, &segment(0, 1)))]),
        ("R-9-page-begins-before-the-last-file-before", vec![("second", second(4, 2, &segment(0, 1)))]),
        (
            "R-9-pages-equal",
            vec![
                ("pages", uint(3)),
                ("second", [second(6, 2, &segment(0, 1)), second(6, 2, &segment(0, 1))].concat()),
            ],
        ),
        (
            "R-9-stored-pages-descend",
            vec![
                ("pages", uint(3)),
                ("second", [second(7, 2, &segment(0, 1)), second(6, 2, &segment(0, 1))].concat()),
            ],
        ),
        (
            "R-9-first-file-twice",
            vec![
                ("files", uint(1)),
                place(&[uint(0), bytes_field(&one_file)].concat()),
                ("second", [&uint(1)[..], &uint(7), &uint(2), &uint(1), &segment(0, 1)].concat()),
            ],
        ),
        ("R-10-replaced-objects-descend", vec![("replaced", list(&[vec![2; 32], vec![1; 32]]))]),
        ("R-10-replaced-object-twice", vec![("replaced", list(&[vec![2; 32], vec![2; 32]]))]),
    ]
}

/// Returns broken pages, alone or inside a remote manifest: their changed fields.
fn page_records() -> Vec<(&'static str, Vec<Change>)> {
    vec![
        ("F-14-byte-after-the-page", vec![("end", vec![0])]),
        ("F-14-count-2-to-60-of-files", vec![("count", uint(1 << 60))]),
        ("F-14-count-2-to-60-of-segments", vec![("last_segments", uint(1 << 60))]),
        ("F-14-long-count-of-files", vec![("count", long(2, 2))]),
        ("F-14-long-kind-of-file", vec![("kind", long(1, 2))]),
        ("F-14-long-number", vec![("number", long(7, 4))]),
        ("F-14-long-count-of-segments", vec![("segments", long(2, 8))]),
        ("F-14-long-kind-of-segment", vec![("first", [&long(0, 2)[..], &segment(0, 300)[1..]].concat())]),
        ("F-14-long-length", vec![("first", [&segment(0, 0)[..34], &long(300, 4), &[0; 17]].concat())]),
        (
            "F-14-long-offset",
            vec![("second", [&segment(0, 0)[..33], &long(3, 2), &uint(9), &[0; 17]].concat())],
        ),
        (
            "F-14-long-offset-of-digests",
            vec![("first", [&segment(0, 9)[..35], &long(0, 2), &[0; 16]].concat())],
        ),
        ("F-14-check-cut-short", vec![("last_segments", [&uint(1)[..], &segment(0, 9)[..50]].concat())]),
        ("F-14-object-cut-short", vec![("last_segments", [&uint(1)[..], &segment(0, 1)[..30]].concat())]),
        ("F-14-file-twice", vec![("last_kind", uint(1)), ("last_number", uint(7))]),
        ("F-14-numbers-descend", vec![("last_kind", uint(1)), ("last_number", uint(6))]),
        ("F-14-kinds-descend", vec![("last_kind", uint(0))]),
        ("F-14-files-ascend-only-by-number", vec![("last_kind", uint(0)), ("last_number", uint(8))]),
        ("F-14-long-number-and-a-segment-of-0-bytes", vec![("number", long(7, 4)), ("first", segment(0, 0))]),
        ("R-6-kind-5-of-file", vec![("last_kind", uint(5))]),
        ("R-6-kind-2-to-32-of-file", vec![("last_kind", uint((1 << 32) + 3))]),
        ("R-6-kind-1-of-segment", vec![("second", overwritten(segment(0, 9), 0, &[1]))]),
        (
            "R-6-kind-255-of-segment-after-a-long-number",
            vec![("number", long(7, 4)), ("second", [&uint(255)[..], &segment(0, 9)[1..]].concat())],
        ),
        ("R-7-segment-of-0-bytes", vec![("second", segment(5, 0))]),
        ("R-7-segment-of-67108865-bytes", vec![("second", segment(0, (1 << 26) + 1))]),
        ("R-7-segment-past-65-mib", vec![("second", segment((65 << 20) - 9, 10))]),
        ("R-7-segment-at-65-mib", vec![("second", segment(65 << 20, 1))]),
        ("R-7-digests-past-65-mib", vec![("second", with_digests((65 << 20) - 31, segment(0, 65_537)))]),
        ("R-7-digests-of-one-block", vec![("second", with_digests(1, segment(0, 65_536)))]),
        ("R-7-end-of-digests-wraps-to-31", vec![("second", with_digests(u64::MAX, segment(0, 65_537)))]),
        ("R-7-end-wraps-to-1", vec![("second", segment(u64::MAX, 2))]),
    ]
}

/// Returns pages that are broken as a whole.
fn pages() -> Vec<(&'static str, Vec<u8>)> {
    let good = page(&[]);
    vec![
        ("F-14-empty", vec![]),
        ("F-14-cut-short", good[..good.len() - 1].to_vec()),
        ("R-8-no-files", uint(0)),
    ]
}
