//! The `compact` and `verify` commands.

use std::fs;
use std::os::unix::fs::symlink;

use crate::harness::{Dir, Run};

#[test]
fn compact_reports_the_files_that_it_deletes() {
    let dir = Dir::with_store();
    // Until it calls `exec`, a process started by another test has our open files, and so our locks. The store's own
    // commit may therefore have left a manifest.
    dir.stdout(&["compact", "s.smap"]);
    assert_eq!(dir.stdout(&["compact", "s.smap"]), "nothing to compact\n");
    dir.write("s.smap/storages/00000000000000ff.bin", &[0; 1000]);
    assert_eq!(dir.stdout(&["compact", "s.smap"]), "deleted 1 file, 1000 bytes\n");
}

fn negative(dir: &Dir) -> String {
    let Run { code, stdout, stderr } = dir.run(&["verify", "s.smap"]);
    assert_eq!(code, Some(1), "{stdout}");
    assert!(stderr.lines().all(|line| line.starts_with("stridemap: note: ")), "{stderr}");
    stdout
}

#[test]
fn verify_prints_a_line_for_each_finding_and_exits_with_1() {
    let dir = Dir::with_store();
    dir.flip("s.smap/storages/0000000000000001.bin", 0);
    let findings = negative(&dir);
    assert_eq!(findings.lines().count(), 1);
    assert!(findings.starts_with("s.smap/storages/0000000000000001.bin at byte 0: "), "{findings}");
}

#[test]
fn verify_reports_a_missing_or_replaced_part_of_the_store() {
    let rename_to_link = |dir: &Dir, part: &str| {
        fs::rename(dir.path(part), dir.path("elsewhere")).unwrap();
        symlink(dir.path("elsewhere"), dir.path(part)).unwrap();
    };
    let overwrite = |dir: &Dir, part: &str| dir.write(part, b"something else");
    let take_away = |dir: &Dir, part: &str| fs::rename(dir.path(part), dir.path("elsewhere")).unwrap();
    for (part, damage) in [
        ("s.smap/storages", &take_away as &dyn Fn(&Dir, &str)),
        ("s.smap/storages", &rename_to_link),
        ("s.smap/meta", &take_away),
        ("s.smap/meta", &rename_to_link),
        ("s.smap/FORMAT", &take_away),
        ("s.smap/FORMAT", &rename_to_link),
        ("s.smap/FORMAT", &overwrite),
        ("s.smap/meta/0000000000000002.man", &rename_to_link),
        ("s.smap/meta/0000000000000002.man", &overwrite),
    ] {
        let dir = Dir::with_store();
        damage(&dir, part);
        let findings = negative(&dir);
        assert_eq!(findings.lines().count(), 1, "{findings}");
        assert!(findings.starts_with(part), "{findings}");
    }
}
