//! The checks after a power cut.

use std::path::Path;
use std::sync::Arc;

use crate::simulated::SimulatedDisk;
use stridemap::disk::Disk;
use stridemap::{Error, ErrorKind, StorageKind, Store};

use crate::content::{Content, Entry};
use crate::script::{BEGAN, RETURNED, Run, STORE, Setup, vector};

/// What happened, and what is done first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    PowerCut,
    /// All processes were killed: all of their changes are present, but not all are durable.
    Kill,
    /// The same, and the next writer collects before it commits.
    KillThenCollect,
}

/// Recovers the store after a power cut, and returns the problem if there is one. The content must be one of the
/// candidates; `None` is the candidate without a store. All of it must verify, the next writer must be able to commit,
/// and a collection must then leave no unneeded file. Returns the operations of the recovery, so that a power cut can
/// interrupt them.
pub(crate) fn recover(
    disk: &SimulatedDisk,
    setup: &Setup,
    candidates: &[&Option<Content>],
    after: After,
) -> Result<Run, String> {
    let fails = |what: &str| {
        let what = what.to_owned();
        move |e: Error| format!("{what}: {e}")
    };
    let start = disk.power_cut();
    let options = (setup.recovery)().disk(Arc::new(disk.clone()));
    let mut operations = 0;
    let mut contents = Vec::new();
    let store = match options.open(STORE) {
        Err(e) if e.kind() == ErrorKind::NotFound && candidates.contains(&&None) => {
            contents.push(None);
            disk.mark(BEGAN);
            let store = options.create(STORE).map_err(fails("create"))?;
            disk.mark(RETURNED);
            store
        }
        opened => opened.map_err(fails("open"))?,
    };
    let mut found = Content::of(&store).map_err(fails("read"))?;
    let nothing = Some(Content::default());
    let candidates = if contents.is_empty() { candidates } else { &[&nothing] };
    let expected = find(&found, candidates)?;
    check_verified(&store)?;
    if after != After::PowerCut {
        // Elements changed in place and not flushed are present, and can still be lost.
        found = expected;
    }
    contents.push(Some(found.clone()));

    if after == After::KillThenCollect {
        disk.mark(BEGAN);
        store.gc().map_err(fails("collect"))?;
        disk.mark(RETURNED);
        contents.push(Some(found.clone()));
    }
    let mut content = found;
    disk.mark(BEGAN);
    probe(&store, "probe", &mut content).map_err(fails("save"))?;
    disk.mark(RETURNED);
    contents.push(Some(content.clone()));
    if let Some(log) = content.tensors.get("log").cloned() {
        disk.mark(BEGAN);
        append(&store, &log, &mut content).map_err(fails("append"))?;
        disk.mark(RETURNED);
        contents.push(Some(content.clone()));
        operations += 1;
    }
    store.gc().map_err(fails("collect"))?;
    operations += 5;
    check_no_leftovers(disk, &store)?;
    check_verified(&store)?;
    let reopened = options.open(STORE).and_then(|store| Content::of(&store)).map_err(fails("open again"))?;
    content.compare(&reopened).map_err(|wrong| format!("after the next commit: {wrong}"))?;
    Ok(Run { start, log: disk.log(), contents, earlier: Vec::new(), operations })
}

fn find(found: &Content, candidates: &[&Option<Content>]) -> Result<Content, String> {
    let mut wrongs = Vec::new();
    for candidate in candidates {
        match candidate {
            None => wrongs.push("there is a store".to_owned()),
            Some(candidate) => match candidate.compare(found) {
                Ok(()) => return Ok(candidate.clone()),
                Err(wrong) => wrongs.push(wrong),
            },
        }
    }
    Err(format!("the content is no commit's: {}", wrongs.join("; or ")))
}

pub(crate) fn check_verified(store: &Store) -> Result<(), String> {
    match store.verify(|_| ()).map_err(|e| format!("verify: {e}"))?.findings.first() {
        None => Ok(()),
        Some(finding) => Err(format!("verify: {finding}")),
    }
}

/// Saves one more tensor. Its name replaces the one of an earlier recovery.
fn probe(store: &Store, name: &str, content: &mut Content) -> stridemap::Result<()> {
    let probe = vector(5, 9);
    store.save(name, &probe)?;
    let elements = vec![probe.to_bytes()?];
    let entry =
        Entry { dtype: probe.dtype(), size: vec![5], stride: Some(vec![1]), offset: Some(0), elements };
    content.tensors.insert(name.to_owned(), entry);
    Ok(())
}

/// Appends to the growing tensor. Bytes of a lost append may follow its rows.
fn append(store: &Store, log: &Entry, content: &mut Content) -> stridemap::Result<()> {
    let rows = vector(2, 77);
    store.append("log", &rows)?;
    let mut log = log.clone();
    log.size[0] += 2;
    for version in &mut log.elements {
        version.extend(rows.to_bytes()?);
    }
    content.tensors.insert("log".to_owned(), log);
    Ok(())
}

/// Checks that the newest generation refers to every file, and that each has the recorded length.
pub(crate) fn check_no_leftovers(disk: &SimulatedDisk, store: &Store) -> Result<(), String> {
    let root = Path::new(STORE);
    let list = |dir: &Path| {
        let mut names = disk.list(dir).map_err(|e| e.to_string())?;
        names.sort_unstable();
        Ok::<_, String>(names)
    };
    let mut known = Vec::new();
    for storage in store.snapshot().storages() {
        let storage = storage.map_err(|e| e.to_string())?;
        if storage.kind == StorageKind::External {
            continue;
        }
        let mark_bytes = u64::from(storage.kind == StorageKind::Mutable);
        known.push((format!("{:016x}.bin", storage.id), storage.size_bytes + mark_bytes));
        if storage.kind == StorageKind::Sealed && storage.size_bytes >= 1 << 20 {
            known.push((format!("{:016x}.sum", storage.id), (storage.size_bytes >> 20) * 16));
        }
    }
    known.sort_unstable();
    let mut found = Vec::new();
    for name in list(&root.join("storages"))? {
        let size_bytes = disk.stat(&root.join("storages").join(&name)).map_err(|e| e.to_string())?.size_bytes;
        found.push((name, size_bytes));
    }
    if found != known {
        return Err(format!(
            "left over after the next commit and a collection: {found:?}, and not {known:?}"
        ));
    }
    let manifest = format!("{:016x}.man", store.generation());
    let meta = list(&root.join("meta"))?;
    let tables = meta.iter().filter(|name| name.ends_with(".tab")).count();
    if tables > 1 || meta.len() != 1 + tables || !meta.contains(&manifest) {
        return Err(format!("left over after the next commit and a collection: {meta:?} in meta/"));
    }
    match list(root)? {
        top if top == ["FORMAT", "LOCK", "meta", "storages"] => Ok(()),
        top => Err(format!("left over after the next commit and a collection: {top:?}")),
    }
}
