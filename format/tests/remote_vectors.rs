//! The files under `vectors/remotes`, as `vectors.rs` checks those of stores.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use stridemap_format::remote::{Head, RemoteManifest, decode_page, encode_page};
use stridemap_format::{Error, Rule};

mod support {
    #[allow(dead_code, reason = "the other vectors use the rest")]
    pub(crate) mod files;
    #[allow(dead_code, reason = "the other vectors use the rest")]
    pub(crate) mod frame;
    pub(crate) mod hex;
    pub(crate) mod remote_bad;
    pub(crate) mod remote_good;
    #[allow(dead_code, reason = "the other vectors use the rest")]
    pub(crate) mod wire;
}
use support::files::{
    LARGE, check_good, check_large, committed, file_name, files_in, large, rule_in, vectors,
};
use support::wire::{GENERATION, UUID};
use support::{remote_bad, remote_good};

const GOOD: &str = "remotes/good";
const BAD: &str = "remotes/bad";

#[test]
fn good_heads_are_written_and_read_unchanged() {
    for (name, head) in remote_good::heads() {
        let path = vectors(GOOD).join(format!("{name}.head"));
        check_good(&path, &head.encode().unwrap(), &remote_good::head_json(&head), |bytes| {
            remote_good::head_json(&Head::decode(bytes, Some(head.uuid)).unwrap())
        });
    }
}

#[test]
fn good_remote_manifests_are_written_and_read_unchanged() {
    for (name, manifest) in remote_good::manifests() {
        let path = vectors(GOOD).join(format!("{name}.remote"));
        let json = remote_good::manifest_json;
        check_good(&path, &manifest.encode().unwrap(), &json(&manifest), |bytes| {
            json(&RemoteManifest::decode(bytes, manifest.uuid).unwrap())
        });
    }
}

#[test]
fn good_pages_are_written_and_read_unchanged() {
    for (name, files) in remote_good::pages() {
        let path = vectors(GOOD).join(format!("{name}.page"));
        check_good(&path, &encode_page(&files).unwrap(), &remote_good::page_json(&files), |bytes| {
            remote_good::page_json(&decode_page(bytes).unwrap())
        });
    }
}

#[test]
fn second_encoder_agrees_with_the_crate_on_valid_objects() {
    assert_eq!(remote_good::small_head().encode().unwrap(), remote_bad::head(&[]), "HEAD");
    assert_eq!(remote_good::small_manifest().encode().unwrap(), remote_bad::manifest(&[]), "remote manifest");
    assert_eq!(encode_page(&remote_good::small_page()).unwrap(), remote_bad::page(&[]), "page");
}

#[test]
fn every_file_belongs_to_a_value() {
    let good: Vec<String> = [
        remote_good::heads().iter().map(|(name, _)| format!("{name}.head")).collect::<Vec<_>>(),
        remote_good::manifests().iter().map(|(name, _)| format!("{name}.remote")).collect(),
        remote_good::pages().iter().map(|(name, _)| format!("{name}.page")).collect(),
    ]
    .concat();
    let json =
        good.iter().map(|name| PathBuf::from(name).with_extension("json").to_str().unwrap().to_owned());
    let expected: BTreeSet<String> = good.iter().cloned().chain(json).collect();
    assert_eq!(files_in(GOOD).iter().map(|path| file_name(path)).collect::<BTreeSet<_>>(), expected);
    let bad = remote_bad::files().into_iter().map(|(name, _)| name).chain([LARGE.to_owned()]);
    assert_eq!(files_in(BAD).iter().map(|path| file_name(path)).collect::<BTreeSet<_>>(), bad.collect());
}

#[test]
fn bad_files_match_the_second_encoder() {
    for (name, bytes) in remote_bad::files() {
        let found = committed(&vectors(BAD).join(&name), &bytes);
        assert!(found == bytes, "{name}: the encoder of bad files changed");
    }
    check_large(BAD, remote_bad::large());
}

#[test]
fn bad_files_are_refused_by_the_rule_in_their_name() {
    let files = files_in(BAD).into_iter().filter(|path| file_name(path) != LARGE);
    let files = files.map(|path| (file_name(&path), fs::read(&path).unwrap()));
    let mut failures = Vec::new();
    for (name, bytes) in files.chain(large(BAD)) {
        match read(&name, &bytes) {
            Err(error) if error.rule().to_string() == rule_in(&name) => {}
            Err(error) => failures.push(format!("{name}: {error:?}")),
            Ok(()) => failures.push(format!("{name}: accepted")),
        }
    }
    assert!(failures.is_empty(), "{} files:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn every_rule_about_a_single_object_has_a_bad_file() {
    let names = remote_bad::files().into_iter().map(|(name, _)| rule_in(&name));
    let needs_no_other_object = |rule: &&Rule| **rule >= Rule::HeadMagic && **rule < Rule::ObjectDigest;
    let within_one_object = Rule::ALL.iter().filter(needs_no_other_object);
    let expected = within_one_object.chain([&Rule::Version, &Rule::Canonical]).map(ToString::to_string);
    assert_eq!(names.collect::<BTreeSet<_>>(), expected.collect());
}

fn read(name: &str, bytes: &[u8]) -> Result<(), Error> {
    match name.rsplit('.').next().unwrap() {
        "head" => Head::decode(bytes, Some(UUID)).map(drop),
        "remote" => {
            let manifest_length_bytes = bytes.len() as u64;
            let head = Head { uuid: UUID, generation: GENERATION, manifest: [0; 32], manifest_length_bytes };
            head.decode_manifest(bytes).map(drop)
        }
        "page" => decode_page(bytes).map(drop),
        other => panic!("a vector ending in {other:?}"),
    }
}
