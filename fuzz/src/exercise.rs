//! Performs every operation on an untrusted store.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use stridemap::{
    Durability, Element, Error, ErrorKind, ExternalFiles, Result, Snapshot, Store, StoreOptions, Tensor,
};

use crate::{elements, within};

/// The memory limit for opening a store and reading its headers.
const OPEN_BYTES: usize = 64 << 20;

/// The memory limit for all other work on a store as small as these.
const WORK_BYTES: usize = 96 << 20;

/// The maximum size in bytes of a tensor that is read. A tensor that repeats an element can have any size.
const READ_BYTES: usize = 64 << 10;

/// The dtype and size of a tensor, and its elements if it is small enough.
type Content = (String, Vec<usize>, Option<Vec<u8>>);

type Contents = BTreeMap<String, Result<Content>>;

fn options() -> StoreOptions {
    StoreOptions::new()
        .durability(Durability::Process)
        .lock_timeout(Duration::from_millis(5))
        .external(ExternalFiles::Beside)
}

/// The operations on a store besides opening and reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// No other operations.
    Read,
    /// A salvage.
    Salvage,
    /// Every operation that changes a store.
    Write,
}

impl Work {
    /// Selects the work by a number from the input. Half of the stores are only read.
    #[must_use]
    pub fn of(number: u8) -> Self {
        match number % 4 {
            0 => Work::Write,
            1 => Work::Salvage,
            _ => Work::Read,
        }
    }
}

/// Opens a store, reads all of it, and performs `work` on it. A store that does not open is still verified and
/// salvaged.
///
/// # Panics
/// If an operation takes too much memory, or if two ways to get the same information disagree.
pub fn exercise(root: &Path, work: Work) {
    let store = match within(OPEN_BYTES, || options().open(root)) {
        Ok(store) => store,
        Err(e) => {
            check(&e);
            if work != Work::Read {
                within(WORK_BYTES, || salvage(root, &Contents::new()));
            }
            return;
        }
    };
    let before = within(OPEN_BYTES, || contents(&store));
    let is_whole = within(WORK_BYTES, || verify(&store));
    if is_whole {
        check_whole(&before);
    }
    within(WORK_BYTES, || history(&store, is_whole));
    within(WORK_BYTES, || mapped(root, &before));
    if let Err(e) = within(WORK_BYTES, || store.disk_usage()) {
        check(&e);
        assert!(!is_whole, "a store that verifies has stats: {e}");
    }
    match work {
        Work::Read => {}
        Work::Salvage => within(WORK_BYTES, || salvage(root, &before)),
        Work::Write => within(WORK_BYTES, || write(root, &store, &before, is_whole)),
    }
}

/// Checks that an error is one line of a readable length.
fn check(e: &Error) {
    let line = e.to_string();
    assert!(!line.contains('\n') && line.len() < 64 << 10, "{line}");
}

fn contents(store: &Store) -> Contents {
    let _ = (store.uuid(), store.generation(), store.attributes(""));
    contents_of(&store.snapshot())
}

fn contents_of(snapshot: &Snapshot) -> Contents {
    for (scope, key) in snapshot.all_attributes().keys() {
        assert!(snapshot.attributes(scope).contains_key(key), "{scope:?}: {key:?}");
    }
    for storage in snapshot.storages() {
        let _ = storage.map_err(|e| check(&e));
    }
    let headers = snapshot.iter_tensors("").map(Iterator::collect::<Result<Vec<_>>>);
    let names = match (snapshot.names(), headers) {
        (Ok(names), Ok(Ok(headers))) => {
            assert!(names.iter().eq(headers.iter().map(|info| &info.name)), "two lists of names differ");
            names
        }
        (Ok(names), _) => names,
        (Err(e), _) => {
            check(&e);
            Vec::new()
        }
    };
    let _ = snapshot.load("no such name").map_err(|e| check(&e));
    names
        .into_iter()
        .map(|name| {
            let content = snapshot.load(&name).and_then(|tensor| {
                views(&tensor);
                let _ = snapshot.overlapping(&name).map_err(|e| check(&e));
                content(&tensor)
            });
            (name, content.inspect_err(check))
        })
        .collect()
}

fn content(tensor: &Tensor) -> Result<Content> {
    let is_small = tensor.nbytes() <= READ_BYTES;
    let bytes = if is_small { Some(elements(tensor)?) } else { None };
    if let Some(bytes) = &bytes {
        assert_eq!(bytes.len(), tensor.nbytes());
    }
    Ok((tensor.dtype().to_string(), tensor.size().to_vec(), bytes))
}

/// Takes views of a tensor and reads small ones. A large tensor is not flattened, because that could copy it.
fn views(tensor: &Tensor) {
    let _ = (tensor.overlaps_itself(), tensor.is_contiguous());
    let _ = tensor.to_text(&stridemap::PrintOptions::default()).map_err(|e| check(&e));
    let views = [
        tensor.flip([0]),
        tensor.t(),
        tensor.view(&[-1]),
        tensor.unsqueeze(0),
        tensor.select(0, -1),
        tensor.view_dtype(stridemap::DType::U8),
    ];
    let flat = (tensor.nbytes() <= READ_BYTES).then(|| tensor.flatten(0, -1));
    for view in views.into_iter().chain(flat).flatten() {
        let _ = content(&view).map_err(|e| check(&e));
        let _ = tensor.overlaps(&view);
    }
    fn read<T: Element>(tensor: &Tensor) {
        if tensor.nbytes() <= READ_BYTES {
            let _ = tensor.read::<T>().map_err(|e| check(&e));
        }
    }
    read::<f32>(tensor);
    read::<bool>(tensor);
}

/// Returns whether verification finds nothing.
fn verify(store: &Store) -> bool {
    match store.verify(|_| ()) {
        Ok(verified) => {
            verified.findings.iter().for_each(|finding| assert!(!finding.to_string().contains('\n')));
            verified.is_whole()
        }
        Err(e) => {
            check(&e);
            false
        }
    }
}

/// Reads the history: the tags, and what their generations contain.
fn history(store: &Store, is_whole: bool) {
    let tags = match (store.log(), store.tags()) {
        (Ok(_), Ok(tags)) => tags,
        (Err(e), _) | (_, Err(e)) => {
            check(&e);
            assert!(!is_whole, "the store verifies, but its history cannot be read: {e}");
            return;
        }
    };
    let names: Vec<_> = tags.iter().map(|tag| &tag.name[..]).collect();
    let _ = store.freed_without(&names).map_err(|e| check(&e));
    for name in names.into_iter().take(4) {
        let contents = match store.at(name) {
            Ok(snapshot) => contents_of(&snapshot),
            Err(e) => {
                check(&e);
                assert!(!is_whole, "the store verifies, but tag {name:?} cannot be opened: {e}");
                continue;
            }
        };
        if is_whole {
            check_whole(&contents);
        }
    }
}

/// Returns whether an error is not damage, but a limit of this machine or this handle.
fn is_excused(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::LimitExceeded | ErrorKind::OutOfMemory | ErrorKind::NotAllowed)
}

fn check_whole(contents: &Contents) {
    for (name, content) in contents {
        if let Err(e) = content {
            assert!(is_excused(e), "the store verifies, but {name:?} cannot be read: {e}");
        }
    }
}

/// Checks that mapped tensors have the same elements as were read before.
fn mapped(root: &Path, before: &Contents) {
    // SAFETY: no other process writes the directory, and while the store is mapped only the library writes to it.
    let Ok(store) = (unsafe { options().open_mapped(root) }) else { return };
    for (name, content_before) in before {
        let loaded = store.load(name);
        let tensor = match (loaded, content_before) {
            (Ok(tensor), _) => tensor,
            (Err(e), _) => {
                check(&e);
                continue;
            }
        };
        let content = content(&tensor);
        if let (Ok(content), Ok(content_before)) = (&content, content_before) {
            assert!(content == content_before, "{name:?} differs when it is mapped");
        }
        if let Ok(bytes) = tensor.as_slice::<u8>() {
            assert_eq!(bytes.len(), tensor.nbytes());
            let sum = bytes.iter().take(READ_BYTES).fold(0u8, |sum, &byte| sum.wrapping_add(byte));
            std::hint::black_box(sum);
        }
        if let Ok(guard) = tensor.lock_shared()
            && let Ok(bytes) = guard.as_slice::<u8>()
        {
            std::hint::black_box(bytes.first().copied());
        }
        if let Ok(live) = tensor.as_live::<f32>()
            && tensor.nbytes() <= READ_BYTES
        {
            let _ = live.read().map_err(|e| check(&e));
        }
    }
}

/// Checks that a salvaged store verifies, that each tensor has its content or is reported as lost, and that the store
/// accepts a commit.
fn salvage(root: &Path, before: &Contents) {
    let _ = options().verify(root, |_| ()).map_err(|e| check(&e));
    let planned = options().salvage(root, None, |_| ());
    let path = root.with_extension("salvaged");
    let _ = std::fs::remove_dir_all(&path);
    let done = match options().external(ExternalFiles::Anywhere).salvage(root, Some(&path), |_| ()) {
        Ok(done) => done,
        Err(e) => return check(&e),
    };
    for line in done.losses.iter().map(ToString::to_string) {
        assert!(!line.contains('\n'), "{line}");
    }
    if let Ok(planned) = planned {
        assert!(planned.losses.len() >= done.losses.len(), "planned {planned:?}, done {done:?}");
    }
    let store = options().open(&path).unwrap_or_else(|e| panic!("after {done:?}: {e}"));
    let found = store.verify(|_| ()).unwrap_or_else(|e| panic!("after {done:?}: {e}")).findings;
    assert!(found.is_empty(), "after {done:?}: {found:?}");
    let after = contents(&store);
    for (name, content) in before {
        let is_lost = done.losses.iter().any(|loss| loss.name.as_ref().is_none_or(|lost| lost == name));
        match (content, after.get(name)) {
            (Ok(content), Some(Ok(after))) => {
                assert!(is_lost || content == after, "{name:?} differs after a salvage: {done:?}");
            }
            (Ok(_), None) => assert!(is_lost, "{name:?} is gone after a salvage: {done:?}"),
            _ => {}
        }
    }
    let new = Tensor::from_vec(vec![1u8], &[1]).expect("a tensor on the heap");
    store.save("~after", &new).unwrap_or_else(|e| panic!("after {done:?} nothing can be saved: {e}"));
    std::fs::remove_dir_all(&path).expect("the salvaged store is deleted");
}

/// Checks that committed changes are in the store when it is opened again.
fn write(root: &Path, store: &Store, before: &Contents, is_whole: bool) {
    let wrote = |what: &str, result: Result<()>| match result {
        Ok(()) => Some(options().open(root).unwrap_or_else(|e| panic!("after {what}: {e}"))),
        Err(e) => {
            check(&e);
            None
        }
    };
    let new = Tensor::from_vec(vec![1u8, 2, 3], &[3]).expect("a tensor on the heap");
    if let Some(store) = wrote("save", store.save("~new", &new)) {
        assert_eq!(
            store.load("~new").and_then(|tensor| tensor.read::<u8>()).expect("what was saved"),
            [1, 2, 3]
        );
    }
    // The store may already contain the names that are written here.
    if let Some(name) = before.keys().find(|name| !name.starts_with('~')) {
        if let Some(again) = wrote("copy", store.write(|txn| txn.copy(name, "~copy"))) {
            let copied = again.load("~copy").and_then(|tensor| content(&tensor));
            if let (Ok(copied), Some(Ok(content))) = (copied, before.get(name)) {
                assert!(copied == *content, "{name:?} differs when it is copied");
            }
        }
        let viewed = store.load(name).and_then(|tensor| store.save_view("~view", &tensor.unsqueeze(0)?));
        wrote("save_view", viewed);
    }
    if let Some(again) = wrote("append", store.append("~new", &new).map(drop)) {
        assert_eq!(again.load("~new").expect("what was appended to").size(), [6]);
    }
    for (name, content) in before {
        let Ok((_, size, _)) = content else { continue };
        let [_, row @ ..] = size.as_slice() else { continue };
        if row.iter().try_fold(1usize, |n, &size| n.checked_mul(size)).is_none_or(|count| count > 64) {
            continue;
        }
        let rows: Vec<usize> = [1].into_iter().chain(row.iter().copied()).collect();
        let appended = store.load(name).and_then(|tensor| {
            store.write(|txn| txn.copy(name, "~grown"))?;
            store.append("~grown", &Tensor::zeros(tensor.dtype(), &rows)?).map(drop)
        });
        wrote("append", appended);
    }
    // A restore of what was just tagged changes nothing.
    if wrote("tag", store.tag("~tag")).is_some()
        && let Ok(snapshot) = store.at("~tag")
    {
        wrote("restore", store.restore(&snapshot));
    }
    for tag in store.tags().unwrap_or_default().iter().take(4) {
        wrote("untag", store.untag(&tag.name));
    }
    wrote("compact", store.compact(false, |_| ()).map(drop));
    wrote("materialize", store.materialize(|_| ()).map(drop));
    if let Some(again) = wrote("gc", store.gc().map(drop)) {
        for (name, content_before) in before.iter().filter(|(name, _)| !name.starts_with('~')) {
            let now = again.load(name).and_then(|tensor| content(&tensor));
            if let (Ok(content_before), Ok(now)) = (content_before, &now) {
                assert!(now == content_before, "{name:?} differs after the store was rewritten");
            }
            // If a record counts fewer tensors than refer to its storage, which verify reports, the storage is
            // deleted with the last one counted.
            if let (Ok(_), Err(e), true) = (content_before, &now, is_whole) {
                panic!("{name:?} was lost: {e}");
            }
        }
        if is_whole {
            let findings = again.verify(|_| ()).expect("a store that verified").findings;
            assert!(findings.is_empty(), "the store verified before it was written to: {findings:?}");
        }
    }
    if let Some(name) = before.keys().next() {
        wrote("rename", store.rename(name, "~renamed"));
        wrote("remove", store.remove("~renamed"));
    }
    for name in before.keys() {
        // Last, because it changes elements.
        let filled = store.load(name).and_then(|tensor| tensor.lock_exclusive()?.fill_(1).map(drop));
        let _ = filled.map_err(|e| check(&e));
    }
}
