//! What a store elsewhere refuses, and what it reports of files that are missing, short or unreadable.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use stridemap::history::Retention;
use stridemap::{DType, Error, ErrorKind, Rule, StorageKind, Store, StoreOptions};

use super::{LOCATION, elsewhere, fill, open};
use crate::external::{Adopted, external_anywhere};
use crate::files::{MemoryFiles, Recorded};
use crate::harness::{arange, assert_refused, filled, new_fast_store};

fn try_open(files: impl stridemap::replica::Files + 'static) -> stridemap::Result<Store> {
    StoreOptions::new().open_files(Arc::new(files), LOCATION)
}

#[test]
fn every_write_is_refused() {
    let (_dir, path, store) = new_fast_store();
    fill(&store);
    for there in elsewhere(&path) {
        let (x, v1) = (there.load("small").unwrap(), there.at("v1").unwrap());
        let retention = Retention { keep_last: Some(1), ..Retention::default() };
        let refused: Vec<(&str, Error)> = vec![
            ("save", there.save("y", &filled(1, 1i64)).unwrap_err()),
            ("save_view", there.save_view("y", &x).unwrap_err()),
            ("create", there.create_tensor("y", DType::U8, &[1], StorageKind::Mutable).unwrap_err()),
            ("create_growable", there.create_growable("y", DType::U8, &[0], 0).unwrap_err()),
            ("remove", there.remove("small").unwrap_err()),
            ("rename", there.rename("small", "y").unwrap_err()),
            ("append", there.append("rows", &arange(&[1, 4])).unwrap_err()),
            ("appender", there.appender("rows").err().unwrap()),
            ("begin", there.begin().err().unwrap()),
            ("begin_exclusive", there.begin_exclusive().err().unwrap()),
            ("tag", there.tag("v3").unwrap_err()),
            ("untag", there.untag("v1").unwrap_err()),
            ("restore", there.restore(&v1).unwrap_err()),
            ("retain", there.retain(&retention, |_| true).unwrap_err()),
            ("gc", there.gc().unwrap_err()),
            ("compact", there.compact(false, |_| ()).unwrap_err()),
            ("materialize", there.materialize(|_| ()).unwrap_err()),
            ("lock_exclusive", there.load("mutable").unwrap().lock_exclusive().err().unwrap()),
        ];
        for (what, refused) in refused {
            assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{what}: {refused}");
            assert!(
                refused.to_string().contains("s3://bucket/x.smap: the store is read where it is"),
                "{refused}"
            );
        }
        let live = there.load("live").unwrap().as_live::<u64>();
        assert_refused(live, ErrorKind::Unsupported, &["s3://bucket/x.smap/storages/", "not mapped"]);
        let waited = there.wait_for_change(Duration::from_secs(60));
        assert_refused(waited, ErrorKind::Unsupported, &[LOCATION, "open the store again"]);
        assert_refused(there.disk_usage(), ErrorKind::Unsupported, &[LOCATION, "not in a file system"]);
    }
}

#[test]
fn external_files_are_not_looked_for() {
    let adopted = Adopted::new();
    let options = external_anywhere();
    let there = options.open_files(Arc::new(MemoryFiles::of(&adopted.path)), LOCATION).unwrap();
    assert_eq!(there.names().unwrap(), adopted.open().names().unwrap());
    assert_refused(there.load("weight"), ErrorKind::NotAllowed, &["not in a file system"]);
    let target = adopted.dir.path().join("copy.smap");
    assert_refused(there.snapshot().copy_to(&target, None, |_| ()), ErrorKind::NotAllowed, &[LOCATION]);
    assert!(!target.exists());
}

#[test]
fn missing_and_short_files_are_damage() {
    let (_dir, path, store) = new_fast_store();
    fill(&store);
    let whole = MemoryFiles::of(&path);
    let without = |name: &str| {
        let mut files = whole.clone();
        assert!(files.0.remove(name).is_some(), "{name}");
        files
    };
    let shorter = |name: &str| {
        let mut files = whole.clone();
        let bytes = files.0.get_mut(name).unwrap();
        Arc::make_mut(bytes).pop();
        files
    };
    let manifest = format!("meta/{:016x}.man", store.generation());
    let tagged = store.tags().unwrap()[0].generation;
    let kept = format!("generations/{tagged:016x}.man");
    let id = store.load("matrix").unwrap().storage_id().unwrap();
    let (bin, sum) = (format!("storages/{id:016x}.bin"), format!("storages/{id:016x}.sum"));
    let mutable = format!("storages/{:016x}.bin", store.load("mutable").unwrap().storage_id().unwrap());

    let no_files = MemoryFiles::default();
    assert_refused(
        try_open(no_files),
        ErrorKind::NotAStore,
        &["open s3://bucket/x.smap: not a stridemap store"],
    );
    let refused = try_open(without("FORMAT"));
    assert_refused(refused, ErrorKind::Corrupt, &["s3://bucket/x.smap/FORMAT"]);
    assert_refused(try_open(shorter("FORMAT")), ErrorKind::Corrupt, &["s3://bucket/x.smap/FORMAT"]);
    let refused = try_open(shorter(&manifest)).unwrap_err();
    assert_eq!((refused.kind(), refused.rule()), (ErrorKind::Corrupt, Some(Rule::ManifestFrame)));
    // The manifest is listed, and is not there.
    let unlisted = Recorded::failing(whole.clone(), {
        let manifest = manifest.clone();
        move |operation, name| match operation == "open" && name == manifest {
            true => Err(io::ErrorKind::NotFound.into()),
            false => Ok(()),
        }
    });
    let refused = try_open(unlisted).unwrap_err();
    assert_eq!((refused.kind(), refused.rule()), (ErrorKind::Corrupt, Some(Rule::MetadataFile)));
    assert!(refused.to_string().starts_with(&format!("{LOCATION}/{manifest}")), "{refused}");

    let refused = open(without(&kept)).at("v1").unwrap_err();
    assert_eq!((refused.kind(), refused.rule()), (ErrorKind::Corrupt, Some(Rule::MetadataFile)));
    for files in [without(&bin), shorter(&bin)] {
        let there = open(files);
        let refused = there.load("matrix").unwrap_err();
        assert_eq!((refused.kind(), refused.rule()), (ErrorKind::Corrupt, Some(Rule::StorageFile)));
        assert!(refused.to_string().contains(&format!("{LOCATION}/{bin}")), "{refused}");
        let found = &there.verify(|_| ()).unwrap().findings;
        assert!(found.iter().any(|finding| finding.affects("matrix") && finding.affects("transposed")));
        let target = path.with_file_name("copy.smap");
        let refused = there.snapshot().copy_to(&target, None, |_| ());
        assert_refused(refused, ErrorKind::Corrupt, &[&bin]);
        assert!(!target.exists());
    }
    assert_refused(open(shorter(&mutable)).load("mutable"), ErrorKind::Corrupt, &[&mutable]);
    let there = open(without(&sum));
    assert!(there.load("matrix").unwrap().to_bytes().is_ok());
    assert!(!there.verify(|_| ()).unwrap().is_whole());
}

#[test]
fn what_could_not_be_read_is_not_damage() {
    let (_dir, path, store) = new_fast_store();
    fill(&store);
    let failing = |operation: &'static str, prefix: &'static str, kind: fn() -> io::Error| {
        Recorded::failing(MemoryFiles::of(&path), move |found, name| {
            if found == operation && name.starts_with(prefix) { Err(kind()) } else { Ok(()) }
        })
    };
    let down = || io::Error::other("the network is down");
    for (operation, prefix) in
        [("open", "FORMAT"), ("read", "FORMAT"), ("list", "meta"), ("open", "meta/"), ("read", "meta/")]
    {
        let refused = try_open(failing(operation, prefix, down));
        assert_refused(refused, ErrorKind::Io, &["s3://bucket/x.smap/", "the network is down"]);
    }
    let there = open(failing("open", "storages/", down));
    assert_refused(
        there.load("matrix"),
        ErrorKind::Io,
        &["s3://bucket/x.smap/storages/", "the network is down"],
    );
    let there = open(failing("read", "storages/", down));
    assert_refused(there.load("matrix").unwrap().to_bytes(), ErrorKind::Io, &["the network is down"]);
    assert_refused(there.verify(|_| ()).map(|_| ()), ErrorKind::Io, &["the network is down"]);
    // An error of a file is passed on once, because whoever made it has tried again.
    let corrupt =
        || io::Error::other(Error::new(ErrorKind::Corrupt, "object 12ab: its bytes do not have this digest"));
    let files = failing("read", "storages/", corrupt);
    let there = open(files.clone());
    let matrix = there.load("matrix").unwrap();
    files.take();
    let parts =
        ["read storage: s3://bucket/x.smap/storages/", "object 12ab: its bytes do not have this digest"];
    assert_refused(matrix.select(0, 1).unwrap().to_bytes(), ErrorKind::Corrupt, &parts);
    assert_eq!(files.take().read.len(), 1);
    let denied = || Error::new(ErrorKind::InvalidArgument, "the credentials are not valid").into();
    assert_refused(try_open(failing("open", "FORMAT", denied)), ErrorKind::InvalidArgument, &["credentials"]);
}

#[test]
fn error_of_a_file_operation_keeps_the_kind_rule_and_cause_of_the_error_inside() {
    let path = std::path::Path::new("x.bin");
    let broken = stridemap_format::Manifest::decode(b"no manifest", [0; 16], 1).unwrap_err();
    let refused = Error::refused("read object", broken.clone());
    let kind = refused.kind();
    let outer = Error::io("read", path, io::Error::other(refused));
    assert_eq!((outer.kind(), outer.rule()), (kind, Some(broken.rule())));
    assert!(outer.to_string().starts_with("read: x.bin: read object: "), "{outer}");
    let inner = Error::io("get", path, io::ErrorKind::StorageFull.into());
    let outer = Error::io("read", path, inner.into());
    assert_eq!(outer.io_error().map(io::Error::kind), Some(io::ErrorKind::StorageFull));
    assert_eq!(outer.kind(), ErrorKind::Io);
}
