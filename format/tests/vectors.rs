//! The files under `vectors/`: the good ones are written and read byte for byte, the bad ones are refused by their
//! rule.
//!
//! `STRIDEMAP_BLESS=1` writes the files instead of comparing with them. See `vectors/README.md`.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use stridemap_format::limits::{MAX_ATTRIBUTES_BYTES, MAX_CHANGES, MAX_MANIFEST_BYTES};
use stridemap_format::{
    Bounds, Entry, Error, GarbageKey, KeptKey, Manifest, Marker, PAGE_BYTES, Rule, StorageRecord,
    TableEncoder, TableRef, TensorRecord,
};

mod support {
    pub(crate) mod bad;
    pub(crate) mod bad_tables;
    pub(crate) mod files;
    pub(crate) mod frame;
    pub(crate) mod good;
    pub(crate) mod hex;
    pub(crate) mod json;
    pub(crate) mod table;
    #[allow(dead_code, reason = "tests of other packages use the rest")]
    pub(crate) mod wire;
}
use support::files::{
    LARGE, check_good, check_large, committed, file_name, files_in, large, rule_in, vectors,
};
use support::table::{GarbageEntry, KeptEntry, StorageEntry, Table, TableFile, TagEntry, TensorEntry};
use support::wire::{GENERATION, NEXT_ID, UUID};
use support::{bad, good, json, wire};

#[test]
fn good_markers_are_written_and_read_unchanged() {
    for (name, value) in good::markers() {
        check_good(&good_file(&format!("{name}.format")), &value.encode(), &json::marker(&value), |bytes| {
            json::marker(&Marker::decode(bytes).unwrap())
        });
    }
}

#[test]
fn good_manifests_are_written_and_read_unchanged() {
    for (name, value) in good::manifests() {
        check_good(
            &good_file(&format!("{name}.man")),
            &value.encode().unwrap(),
            &json::manifest(&value),
            |bytes| json::manifest(&read_manifest(bytes, value.generation).unwrap()),
        );
    }
}

#[test]
fn good_tables_are_written_and_read_unchanged() {
    for (name, value) in all_good_tables() {
        let (bytes, reference) = value.encode();
        check_good(&good_file(&name), &bytes, &json::table(&value, &reference), |bytes| {
            json::table(&read_table(bytes, &reference, value.bounds).unwrap(), &reference)
        });
    }
}

#[test]
fn bad_files_match_the_second_encoder() {
    for (name, bytes) in bad::files() {
        let found = committed(&vectors("bad").join(&name), &bytes);
        assert!(found == bytes, "{name}: the encoder of bad files changed");
    }
}

#[test]
fn bad_files_are_refused_by_the_rule_in_their_name() {
    let mut failures = Vec::new();
    let is_vector = |path: &PathBuf| ![REFERENCES, LARGE].contains(&&*file_name(path));
    let files = files_in("bad").into_iter().filter(is_vector);
    let files = files.map(|path| (file_name(&path), fs::read(&path).unwrap()));
    for (name, bytes) in files.chain(large("bad")) {
        match read_bad(&name, &bytes) {
            Err(error) if error.rule().to_string() == rule_in(&name) => {}
            Err(error) => failures.push(format!("{name}: {error:?}")),
            Ok(()) => failures.push(format!("{name}: accepted")),
        }
    }
    assert!(failures.is_empty(), "{} files:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn every_rule_about_a_single_file_has_a_bad_file() {
    let covered: BTreeSet<String> = bad::files().iter().map(|(name, _)| rule_in(name)).collect();
    let needs_no_other_file = |rule: &&Rule| **rule <= Rule::EntryOrder && **rule != Rule::MetadataFile;
    let within_one_file = Rule::ALL.iter().filter(needs_no_other_file).chain([&Rule::RecordCount]);
    assert_eq!(covered, within_one_file.map(ToString::to_string).collect());
}

#[test]
fn references_to_bad_tables_are_listed() {
    let listed = bad::tables().into_iter().filter(|(name, _, reference)| *reference != usual_reference(name));
    let listed: serde_json::Map<String, Value> =
        listed.map(|(name, _, reference)| (name, json::table_ref(&reference))).collect();
    let pretty = serde_json::to_string_pretty(&listed).unwrap() + "\n";
    let found = committed(&vectors("bad").join(REFERENCES), pretty.as_bytes());
    // The order of the keys depends on a feature of serde_json, which other packages can enable.
    let found: serde_json::Map<String, Value> = serde_json::from_slice(&found).unwrap();
    assert!(found == listed, "{REFERENCES} differs");
}

#[test]
fn large_bad_files_match_the_second_encoder() {
    check_large("bad", bad::large());
}

#[test]
fn levels_and_long_nodes_are_in_the_good_tables() {
    let table = |wanted: &str| all_good_tables().into_iter().find(|(name, _)| name == wanted).unwrap().1;
    let levels_of = |wanted: &str| {
        let table = table(wanted);
        let (bytes, reference) = table.encode();
        let file = TableFile::open(&bytes, table.uuid, &reference, table.bounds).unwrap();
        let levels = [
            levels::<StorageEntry>(&file, table.storages.keys().next()),
            levels::<TensorEntry>(&file, table.tensors.keys().next().map(String::as_str)),
            levels::<TagEntry>(&file, table.tags.keys().next().map(String::as_str)),
            levels::<KeptEntry>(&file, table.kept.keys().next()),
            levels::<GarbageEntry>(&file, table.garbage.keys().next()),
        ];
        (levels, bytes.len() / PAGE_BYTES)
    };
    assert_eq!(levels_of("levels.tab"), ([2, 3, 0, 0, 0], 13));
    assert_eq!(levels_of("long-nodes.tab"), ([1, 2, 0, 0, 0], 16));
    assert_eq!(levels_of("packing.tab"), ([1, 3, 0, 0, 0], 17));
    assert_eq!(levels_of("history-levels.his"), ([0, 0, 3, 2, 2], 26));
}

/// Returns the number of nodes on the way to a key, or 0 for a tree without entries.
fn levels<E: Entry>(file: &TableFile<'_>, key: Option<&E::Key>) -> usize {
    key.map_or(0, |key| file.find::<E>(key).unwrap().1)
}

/// A reader refuses an inner node with fewer than two children, so decoding checks all of them.
#[test]
fn table_of_any_entry_count_has_two_children_in_each_inner_node() {
    let small = good::small_table();
    let tensor = small.tensors.values().next().unwrap();
    for name_bytes in [30, 1000, 1300, 2000, 4096] {
        for count in (0..40).chain([63, 64, 65, 127, 128, 129, 1000]) {
            let name = |i| format!("{i:0>name_bytes$}");
            let tensors = (0..count).map(|i| (name(i), tensor.clone())).collect();
            let table = Table { tensors, ..small.clone() };
            let (bytes, reference) = table.encode();
            let read = Table::decode(&bytes, table.uuid, &reference, table.bounds);
            assert!(read.as_ref() == Ok(&table), "{count} names of {name_bytes} bytes: {:?}", read.err());
        }
    }
}

#[test]
fn every_good_file_belongs_to_a_value() {
    let mut expected: Vec<_> = [
        good::markers().iter().map(|(name, _)| format!("{name}.format")).collect::<Vec<_>>(),
        good::manifests().iter().map(|(name, _)| format!("{name}.man")).collect(),
        all_good_tables().into_iter().map(|(name, _)| name).collect(),
    ]
    .concat();
    let json = |name: &String| Path::new(name).with_extension("json").to_str().unwrap().to_owned();
    expected.extend(expected.clone().iter().map(json));
    expected.sort();
    let found: Vec<_> = files_in("good").iter().map(|path| file_name(path)).collect();
    assert_eq!(found, expected);
}

#[test]
fn second_encoder_agrees_with_the_crate_on_valid_files() {
    let marker = Marker { uuid: UUID };
    assert_eq!(marker.encode(), bad::good_marker(), "FORMAT");
    assert_eq!(good::small_manifest().encode().unwrap(), wire::manifest(&[]), "manifest");
    assert_eq!(good::small_table().encode(), bad::table_changed(&[]), "table");
    assert_eq!(good::small_history().encode(), bad::history_changed(&[]), "history");
}

#[test]
fn table_encoder_refuses_a_tree_after_a_later_one_and_a_key_that_does_not_follow() {
    let (table, history) = (good::small_table(), good::small_history());
    let tensor = ("t".to_owned(), table.tensors["t"].clone());
    let storage = (1, table.storages[&1].clone());
    let (key, garbage) = history.garbage.first_key_value().unwrap();
    let (key, garbage) = (*key, garbage.clone());
    let earlier = GarbageKey { is_tagged: false, ..key };
    let refused = [
        pushed(&tensor, &storage),
        pushed(&(key, garbage.clone()), &tensor),
        pushed(&tensor, &tensor),
        pushed(&(key, garbage.clone()), &(key, garbage.clone())),
        pushed(&(key, garbage.clone()), &(earlier, garbage)),
    ];
    for refused in refused {
        let error = refused.unwrap_err();
        assert_eq!(error.rule(), Rule::EntryOrder, "{error}");
    }
}

/// Adds two entries to a table.
fn pushed<A: Entry, B: Entry>(first: &A, second: &B) -> Result<(), Error> {
    let bounds = Bounds { generation: GENERATION, next_storage_id: NEXT_ID };
    let mut encoder = TableEncoder::new(UUID, bounds);
    encoder.push(first, &mut Vec::new()).unwrap();
    encoder.push(second, &mut Vec::new())
}

/// What a reader of the table would refuse, the writer does not write.
#[test]
fn table_encoder_refuses_entries_past_the_bounds_of_its_manifest() {
    let bounds = Bounds { generation: 4, next_storage_id: 2 };
    let mut encoder = TableEncoder::new(UUID, bounds);
    let history = good::small_history();
    let tag = history.tags.first_key_value().map(|(name, tag)| (name.clone(), tag.clone())).unwrap();
    let kept = history.kept.first_key_value().map(|(key, kept)| (*key, *kept)).unwrap();
    let garbage = history.garbage.first_key_value().map(|(key, record)| (*key, record.clone())).unwrap();
    let out = &mut Vec::new();
    assert_eq!(encoder.push(&tag, out).unwrap_err().rule(), Rule::Generation);
    assert_eq!(encoder.push(&kept, out).unwrap_err().rule(), Rule::Generation);
    assert_eq!(encoder.push(&garbage, out).unwrap_err().rule(), Rule::StorageId);
}

#[test]
fn kept_manifest_has_everything_of_its_generation_but_the_history() {
    for (name, manifest) in good::manifests() {
        let kept = manifest.without_history();
        assert!(kept.history.is_none() && kept.tags.is_empty(), "{name}");
        assert!(kept.kept.is_empty() && kept.garbage.is_empty(), "{name}");
        assert_eq!(kept.change_count(true), 0, "{name}");
        let Manifest { history, tags, kept: generations, garbage, .. } = manifest.clone();
        assert_eq!(Manifest { history, tags, kept: generations, garbage, ..kept }, manifest, "{name}");
    }
}

#[test]
fn counts_past_the_end_are_refused_before_allocating() {
    // Counts that break no other rule are among the bad files.
    for field in ["size", "stride", "dim_names"] {
        let count = if field == "dim_names" { wire::some(wire::uint(1 << 60)) } else { wire::uint(1 << 60) };
        let refused = read_manifest(&wire::manifest(&[(field, count)]), GENERATION);
        assert!(refused.is_err(), "2^60 of {field}: {refused:?}");
    }
}

#[test]
fn attributes_past_their_limit_are_refused() {
    let attribute = |scope: &str, value_bytes: usize| {
        wire::list(&[[wire::text(scope), wire::text("k"), wire::text("v".repeat(value_bytes))].concat()])
    };
    let manifest = |scope, value_bytes| wire::manifest(&[("attributes", attribute(scope, value_bytes))]);
    let mut largest = read_manifest(&manifest("", MAX_ATTRIBUTES_BYTES - 17), GENERATION).unwrap();
    read_manifest(&manifest("scope", MAX_ATTRIBUTES_BYTES - 22), GENERATION).unwrap();
    for (scope, value_bytes) in [("", MAX_ATTRIBUTES_BYTES - 16), ("scope", MAX_ATTRIBUTES_BYTES - 21)] {
        let past = read_manifest(&manifest(scope, value_bytes), GENERATION).unwrap_err();
        assert_eq!(past.rule(), Rule::ManifestLimits, "{past}");
    }
    largest.attributes.insert((String::new(), "l".into()), String::new());
    assert_eq!(largest.encode().unwrap_err().rule(), Rule::ManifestLimits);
}

#[test]
fn well_formed_attributes_far_past_their_limit_are_refused_by_that_rule() {
    let key = |i: usize| [wire::text(""), wire::text(format!("{i:08}")), wire::text("")].concat();
    let attributes = wire::list(&(0..400_000).map(key).collect::<Vec<_>>());
    let past = read_manifest(&wire::manifest(&[("attributes", attributes.clone())]), GENERATION).unwrap_err();
    assert_eq!(past.rule(), Rule::ManifestLimits, "{past}");
    let cut = attributes[..attributes.len() - 1].to_vec();
    let past = read_manifest(&wire::manifest_up_to("attributes", &cut), GENERATION);
    assert_eq!(past.unwrap_err().rule(), Rule::Canonical);
}

#[test]
fn too_many_changes_of_a_tree_are_refused() {
    let past = MAX_CHANGES as u64 + 1;
    let first = Manifest { generation: u64::MAX, next_storage_id: u64::MAX, ..Manifest::first(UUID) };
    let of = |count: u64, tree: &str| {
        let (ids, is) = (1..=count, |map| tree == map || tree == "all");
        let mut manifest = first.clone();
        if is("storages") {
            manifest.storages = ids.clone().map(|id| (id, None)).collect();
        }
        if is("tensors") {
            manifest.tensors = ids.clone().map(|id| (id.to_string(), None)).collect();
        }
        if is("tags") {
            manifest.tags = ids.clone().map(|id| (id.to_string(), None)).collect();
        }
        if is("generations") {
            let key = |generation| KeptKey { is_tagged: true, generation };
            manifest.kept = ids.clone().map(|id| (key(id), None)).collect();
        }
        if is("garbage") {
            let key = |id| GarbageKey { is_tagged: false, dropped: 1, id };
            manifest.garbage = ids.map(|id| (key(id), None)).collect();
        }
        manifest
    };
    let full = of(MAX_CHANGES as u64, "all");
    let bytes = full.encode().unwrap();
    assert!(Manifest::decode(&bytes, UUID, u64::MAX).unwrap() == full);
    for tree in ["storages", "tensors", "tags", "generations", "garbage"] {
        let error = of(past, tree).encode().unwrap_err();
        assert_eq!(error.rule(), Rule::ManifestLimits, "{error}");
        let detail = format!("4097 changes of {tree}; at most 4096 are allowed");
        assert!(error.detail().contains(&detail), "{error}");
    }
}

#[test]
fn generation_0_is_refused() {
    let refused = Manifest { generation: 0, ..Manifest::first(UUID) }.encode().unwrap_err();
    assert_eq!(refused.rule(), Rule::Generation, "{refused}");
    let read = read_manifest(&wire::manifest(&[("generation", wire::uint(0))]), 0).unwrap_err();
    assert_eq!(read.rule(), Rule::Generation, "{read}");
}

#[test]
fn manifest_is_refused_in_any_file_but_its_own() {
    for (name, manifest) in good::manifests() {
        let bytes = manifest.encode().unwrap();
        assert!(manifest.is_encoded_in(&bytes), "{name}");
        let mut other = manifest.clone();
        other.attributes.insert((String::new(), "another".into()), String::new());
        assert!(!other.is_encoded_in(&bytes) && !manifest.is_encoded_in(&other.encode().unwrap()), "{name}");
        for (i, byte) in bytes.iter().enumerate() {
            assert!(
                !manifest.is_encoded_in(&wire::overwritten(bytes.clone(), i, &[byte ^ 1])),
                "{name}: {i}"
            );
        }
        assert!(!manifest.is_encoded_in(&bytes[..bytes.len() - 1]), "{name}");
    }
}

#[test]
fn manifest_past_16_mib_is_refused() {
    let removal = |name: String| [wire::text(name), vec![0]].concat();
    let removals: Vec<u8> = (0..4091).flat_map(|i| removal(format!("{i:0>4096}"))).collect();
    let manifest = |last: usize| {
        let tensors = [wire::uint(4093), removals.clone(), removal("l".repeat(last))].concat();
        wire::manifest(&[("tensors", tensors)])
    };
    let last = 1000 + MAX_MANIFEST_BYTES as usize - manifest(1000).len();
    let mut largest = read_manifest(&manifest(last), GENERATION).unwrap();
    let past = read_manifest(&manifest(last + 1), GENERATION).unwrap_err();
    assert_eq!(past.rule(), Rule::ManifestFrame, "{past}");
    largest.attributes.insert((String::new(), "l".into()), String::new());
    assert_eq!(largest.encode().unwrap_err().rule(), Rule::ManifestFrame);
}

fn good_file(name: &str) -> PathBuf {
    vectors("good").join(name)
}

/// The file with the references to bad tables that are not [`usual_reference`].
const REFERENCES: &str = "tables.json";

/// Returns what most references to tables with the extension of a name are: those to a leaf with one entry for each tree.
fn usual_reference(name: &str) -> TableRef {
    if name.ends_with(".his") { bad::history_changed(&[]).1 } else { bad::table_changed(&[]).1 }
}

/// Returns the good tables by the names of their files.
fn all_good_tables() -> Vec<(String, Table)> {
    let named = |tables: Vec<(&str, Table)>, extension: &str| {
        tables.into_iter().map(|(name, table)| (format!("{name}.{extension}"), table)).collect::<Vec<_>>()
    };
    [named(good::tables(), "tab"), named(good::histories(), "his")].concat()
}

fn read_bad(name: &str, bytes: &[u8]) -> Result<(), Error> {
    match name.rsplit('.').next().unwrap() {
        "format" => drop(Marker::decode(bytes)?),
        "man" if name == bad::OF_GENERATION_0 => drop(read_manifest(bytes, 0)?),
        "man" => drop(read_manifest(bytes, GENERATION)?),
        "tab" | "his" => {
            let (_, _, reference) = bad::tables().into_iter().find(|table| table.0 == name).unwrap();
            let bounds = Bounds { generation: GENERATION, next_storage_id: NEXT_ID };
            drop(read_table(bytes, &reference, bounds)?);
        }
        other => panic!("a vector ending in {other:?}"),
    }
    Ok(())
}

fn read_manifest(bytes: &[u8], generation: u64) -> Result<Manifest, Error> {
    let manifest = Manifest::decode(bytes, UUID, generation)?;
    let storages = manifest.storages.iter().filter_map(|(&id, record)| Some((id, record.as_ref()?)));
    check_extents(&storages.collect(), manifest.tensors.values().flatten())?;
    Ok(manifest)
}

fn read_table(bytes: &[u8], reference: &TableRef, bounds: Bounds) -> Result<Table, Error> {
    let table = Table::decode(bytes, UUID, reference, bounds)?;
    let storages = table.storages.iter().map(|(&id, record)| (id, record));
    check_extents(&storages.collect(), table.tensors.values())?;
    Ok(table)
}

/// Checks that the tensors are inside their storages (F-8), for storages in the same file.
fn check_extents<'a>(
    storages: &BTreeMap<u64, &StorageRecord>,
    tensors: impl Iterator<Item = &'a TensorRecord>,
) -> Result<(), Error> {
    for tensor in tensors {
        if let Some(storage) = storages.get(&tensor.storage_id) {
            tensor.header.extent(storage.length_bytes)?;
        }
    }
    Ok(())
}
