//! The objects of a remote: HEAD, unchanged and with its magic and digest corrected; a remote manifest, unchanged and with
//! its preamble corrected; and a page of an index.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stridemap_format::remote::{
    Entries, Head, Place, RemoteManifest, decode_page, encode_page, encode_pages,
};
use stridemap_format::{Rule, Uuid};
use stridemap_fuzz::{fix_digest, u64_at, uuid_at, within};

const HEAD_START: [u8; 16] = *b"SMAPHEAD\x01\0\0\0\0\0\0\0";
const PREAMBLE: [u8; 16] = *b"SMAPREM\n\x01\0\0\0\0\0\0\0";

/// The memory for an object, as a multiple of its length. A file of an index takes three bytes, but a whole map entry in
/// memory.
const FACTOR: usize = 256;

/// The memory for decoding in addition: a list allocates at most 1 MiB before its elements are decoded.
const FIXED_BYTES: usize = 4 << 20;

fn read_head(bytes: &[u8]) {
    match Head::decode(bytes, Some(uuid_at(bytes, 16))) {
        Ok(head) => {
            assert_eq!(head.encode().as_deref(), Ok(bytes), "a non-canonical encoding of HEAD was accepted");
            assert!(head.generation > 0 && head.manifest_length_bytes > 0, "{head:?}");
        }
        Err(e) => assert!(
            matches!(
                e.rule(),
                Rule::HeadMagic
                    | Rule::HeadDigest
                    | Rule::Version
                    | Rule::RemoteGeneration
                    | Rule::RemoteFrame
            ),
            "HEAD breaks {e}"
        ),
    }
}

fn read_manifest(bytes: &[u8], uuid: Uuid) {
    let decode = || RemoteManifest::decode(bytes, uuid);
    let Ok(manifest) = within(FACTOR * bytes.len() + FIXED_BYTES, decode) else { return };
    let encoded = manifest.encode();
    assert_eq!(encoded.as_deref(), Ok(bytes), "a non-canonical encoding of the remote manifest was accepted");
    let mut files = Entries::new();
    for (position, page) in manifest.pages.iter().enumerate() {
        assert_eq!(manifest.page_of(page.first), Some(position), "the page of its first file");
        if let Place::Inline(_) = page.place {
            let entries = manifest.decode_page(position, &[]).expect("inline pages were checked");
            assert!(
                entries.keys().all(|&key| manifest.page_of(key) == Some(position)),
                "the page of each file"
            );
            files.extend(entries);
        }
    }
    check_pages(&files);
}

fn read_page(bytes: &[u8]) {
    let Ok(files) = within(FACTOR * bytes.len() + FIXED_BYTES, || decode_page(bytes)) else { return };
    assert_eq!(
        encode_page(&files).as_deref(),
        Ok(bytes),
        "a non-canonical encoding of the page was accepted"
    );
    check_pages(&files);
}

/// Writes files as pages, and reads them back.
fn check_pages(files: &Entries) {
    let mut found = Entries::new();
    for (first, count, bytes) in encode_pages(files).expect("files that were read can be written") {
        let page = decode_page(&bytes).expect("a page that was written can be read");
        assert_eq!((page.keys().next(), page.len() as u64), (Some(&first), count));
        found.extend(page);
    }
    assert_eq!(found, *files);
}

fuzz_target!(|bytes: &[u8]| {
    read_head(bytes);
    let fields = bytes.strip_prefix(&HEAD_START).unwrap_or(bytes);
    let mut mended = [&HEAD_START[..], fields].concat();
    mended.resize(Head::LENGTH, 1);
    fix_digest(&mut mended);
    read_head(&mended);

    read_manifest(bytes, uuid_at(bytes, 24));
    let body = match bytes.strip_prefix(&PREAMBLE) {
        Some(rest) if rest.len() >= 8 && u64_at(rest, 0) < 1 << 40 => &rest[8..],
        _ => bytes,
    };
    let mended = [&PREAMBLE[..], &(body.len() as u64).to_le_bytes(), body].concat();
    read_manifest(&mended, uuid_at(body, 0));

    read_page(bytes);
});
