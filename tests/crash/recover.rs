//! The checks after a power cut.

use std::collections::{BTreeMap, BTreeSet};
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
    let fails = |e: Error| e.to_string();
    let tags = store.tags().map_err(fails)?;
    let mut snapshots = vec![store.snapshot()];
    for tag in &tags {
        snapshots.push(store.at(&*tag.name).map_err(fails)?);
    }
    // The length of each file. Rows that only a tag without its name had may follow those of a tag.
    let mut known: BTreeMap<String, (u64, bool)> = BTreeMap::new();
    for (index, snapshot) in snapshots.iter().enumerate() {
        for storage in snapshot.storages() {
            let storage = storage.map_err(fails)?;
            if storage.kind == StorageKind::External {
                continue;
            }
            let mark_bytes = u64::from(storage.kind == StorageKind::Mutable);
            let mut add = |name, bytes| {
                let known = known.entry(name).or_insert((bytes, index == 0));
                known.0 = known.0.max(bytes);
            };
            add(format!("{:016x}.bin", storage.id), storage.size_bytes + mark_bytes);
            if storage.kind == StorageKind::Sealed && storage.size_bytes >= 1 << 20 {
                add(format!("{:016x}.sum", storage.id), (storage.size_bytes >> 20) * 16);
            }
        }
    }
    let mut found = BTreeMap::new();
    for name in list(&root.join("storages"))? {
        let size_bytes = disk.stat(&root.join("storages").join(&name)).map_err(|e| e.to_string())?.size_bytes;
        found.insert(name, size_bytes);
    }
    let is_right = |(name, size_bytes): (&String, &u64)| {
        known
            .get(name)
            .is_some_and(|(bytes, is_newest)| size_bytes == bytes || !is_newest && size_bytes > bytes)
    };
    if found.len() != known.len() || !found.iter().all(is_right) {
        return Err(format!(
            "left over after the next commit and a collection: {found:?}, and not {known:?}"
        ));
    }
    let manifest = format!("{:016x}.man", store.generation());
    let meta = list(&root.join("meta"))?;
    let histories = meta.iter().filter(|name| name.ends_with(".his")).count();
    if histories > 1 || meta.len() != 1 + histories || !meta.contains(&manifest) {
        return Err(format!("left over after the next commit and a collection: {meta:?} in meta/"));
    }
    let tagged: BTreeSet<u64> = tags.iter().map(|tag| tag.generation).collect();
    let generations = list(&root.join("generations"))?;
    let tables = generations.iter().filter(|name| name.ends_with(".tab")).count();
    let are_listed = tagged.iter().all(|number| generations.contains(&format!("{number:016x}.man")));
    if tables > tagged.len() + 1 || generations.len() != tagged.len() + tables || !are_listed {
        return Err(format!(
            "left over after the next commit and a collection: {generations:?} in generations/"
        ));
    }
    match list(root)? {
        top if top == ["FORMAT", "LOCK", "generations", "meta", "storages"] => Ok(()),
        top => Err(format!("left over after the next commit and a collection: {top:?}")),
    }
}
