//! Power cuts at every point of a script of larger commits, with one step of its log omitted or two swapped. A few
//! outcomes suffice to detect each change, so only those are tried.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::simulated::{Op, Outcome, SimulatedDisk};
use stridemap::disk::Disk;
use stridemap::{DType, Durability, ExternalFiles, Store, StoreOptions, Tensor};

const STORE: &str = "store";

/// The content that a user sees: names, headers and elements.
type Content = BTreeMap<String, (Vec<usize>, Vec<isize>, Vec<u8>)>;

/// External files are on the real disk.
fn options(disk: &SimulatedDisk) -> StoreOptions {
    StoreOptions::new().external(ExternalFiles::Anywhere).disk(Arc::new(disk.clone()))
}

fn open(disk: &SimulatedDisk) -> stridemap::Result<Store> {
    options(disk).open(STORE)
}

fn content(store: &Store) -> stridemap::Result<Content> {
    let mut content = Content::new();
    for name in store.names()? {
        let tensor = store.load(&name)?;
        content.insert(name, (tensor.size().to_vec(), tensor.stride().to_vec(), tensor.to_bytes()?));
    }
    Ok(content)
}

fn vector(n: usize, seed: u32) -> Tensor {
    Tensor::from_vec((0..n as u32).map(|i| i.wrapping_mul(2_654_435_761).wrapping_add(seed)).collect(), &[n])
        .unwrap()
}

/// A completed script: its log, and the content of the store after each commit.
struct Script {
    log: Vec<Op>,
    contents: Vec<Content>,
}

/// Four commits and a collection: storages of one and of two chunks, a removal whose storage becomes garbage, views,
/// enough names for a table, and a commit of only a header over that table.
fn run_script() -> Script {
    let commits: [&dyn Fn(&Store); 4] = [
        &|store| {
            let mut txn = store.begin().unwrap();
            txn.save("chunked", &vector(300_000, 1)).unwrap();
            txn.save("small", &vector(12, 2).view([3, 4]).unwrap()).unwrap();
            txn.commit().unwrap();
        },
        &|store| store.save("doomed", &vector(270_000, 3)).unwrap(),
        &|store| {
            let small = store.load("small").unwrap();
            let mut txn = store.begin().unwrap();
            txn.remove("doomed").unwrap();
            txn.save_view("transposed", &small.t().unwrap()).unwrap();
            for i in 0..70 {
                txn.save(&format!("row.{i}"), &vector(3, i)).unwrap();
            }
            txn.commit().unwrap();
        },
        &|store| {
            let chunked = store.load("chunked").unwrap();
            store.save_view("stepped", &chunked.slice(0, None, None, 1000).unwrap()).unwrap();
        },
    ];
    run(&commits)
}

/// Five commits and a collection: a storage grows to less than a chunk, into the first and the second chunk, and by
/// only a few bytes: without chunk digests, with the first ones, and with more.
fn run_growth() -> Script {
    let append = |count, seed| {
        move |store: &Store| {
            store.append("log", &vector(count, seed)).unwrap();
        }
    };
    run(&[
        &|store| store.create_growable("log", DType::U32, &[1000], 0).unwrap(),
        &append(200_000, 1),
        &append(62_000, 2),
        &append(270_000, 3),
        &append(5, 4),
    ])
}

/// Four commits and a collection: a file is adopted, a view of it is saved, it is adopted again beside a storage of
/// the store, and its names are removed.
fn run_adoption(file: &Path) -> Script {
    let file = stridemap_interop::ForeignFile::open(file).unwrap();
    run(&[
        &|store| {
            let mut txn = store.begin().unwrap();
            file.adopt_into(&mut txn, "").unwrap();
            txn.commit().unwrap();
        },
        &|store| store.save_view("t", &store.load("weight").unwrap().t().unwrap()).unwrap(),
        &|store| {
            let mut txn = store.begin().unwrap();
            file.adopt_into(&mut txn, "again.").unwrap();
            txn.save("own", &vector(12, 2)).unwrap();
            txn.commit().unwrap();
        },
        &|store| {
            let mut txn = store.begin().unwrap();
            for name in ["weight", "bias", "t"] {
                txn.remove(name).unwrap();
            }
            txn.commit().unwrap();
        },
    ])
}

#[test]
fn adoption_interrupted_by_a_power_cut_is_complete_or_absent() {
    let dir = crate::temporary();
    let file = dir.path().join("model.safetensors");
    crate::scripts::write_model(&file);
    let bytes = std::fs::read(&file).unwrap();
    let script = run_adoption(&file);
    let created = script.log.iter().position(|op| *op == Op::Mark("returned".into())).unwrap() + 1;
    let states = cut_everywhere(&script.log, created, &script.contents).unwrap();
    println!("{states} states of adoptions, none wrong");
    assert!(states > 4 * (script.log.len() - created), "{states} states are too few");
    assert_eq!(std::fs::read(&file).unwrap(), bytes);
}

/// Copies an adopted file into the store.
fn run_materialization(file: &Path) -> Script {
    let file = stridemap_interop::ForeignFile::open(file).unwrap();
    run(&[
        &|store| {
            let mut txn = store.begin().unwrap();
            file.adopt_into(&mut txn, "").unwrap();
            txn.commit().unwrap();
        },
        &|store| assert_eq!(store.materialize(|_| ()).unwrap().storage_count, 1),
    ])
}

#[test]
fn materialization_interrupted_by_a_power_cut_loses_nothing() {
    let dir = crate::temporary();
    let file = dir.path().join("model.safetensors");
    crate::scripts::write_model(&file);
    let script = run_materialization(&file);
    let created = script.log.iter().position(|op| *op == Op::Mark("returned".into())).unwrap() + 1;
    let states = cut_everywhere(&script.log, created, &script.contents).unwrap();
    println!("{states} states of a materialization, none wrong");
}

fn run(commits: &[&dyn Fn(&Store)]) -> Script {
    let disk = SimulatedDisk::new();
    let store = options(&disk).create(STORE).unwrap();
    let mut contents = vec![content(&store).unwrap()];
    disk.mark("returned");
    for commit in commits {
        disk.mark("began");
        commit(&store);
        disk.mark("returned");
        contents.push(content(&store).unwrap());
    }
    store.gc().unwrap();
    disk.mark("collected");
    Script { log: disk.log(), contents }
}

/// Opens the store after a power cut, and returns the problem if there is one. The content must be that of the last
/// completed commit or of the one in progress, all of it must verify, and the next writer must be able to commit.
fn check(disk: &SimulatedDisk, contents: &[Content], returned: usize, under_way: bool) -> Result<(), String> {
    let fails = |what: &str, e: stridemap::Error| format!("{what}: {e}");
    let store = open(disk).map_err(|e| fails("open", e))?;
    let found = content(&store).map_err(|e| fails("read", e))?;
    let candidates = &contents[returned..contents.len().min(returned + 1 + usize::from(under_way))];
    let Some(expected) = candidates.iter().find(|candidate| **candidate == found) else {
        let older = contents.iter().position(|content| *content == found);
        return Err(format!("after commit {returned} the content is that of {older:?}"));
    };
    let findings = store.verify(|_| ()).map_err(|e| fails("verify", e))?.findings;
    if let Some(finding) = findings.first() {
        return Err(format!("verify: {finding}"));
    }
    let mut expected = expected.clone();
    let probe = vector(5, 9);
    expected.insert("probe".into(), (vec![5], vec![1], probe.to_bytes().unwrap()));
    store.save("probe", &probe).map_err(|e| fails("save", e))?;
    let (left, orphaned) = leftovers(disk, &store);
    if !left.is_empty() {
        return Err(format!("left over after the next commit: {left:?}"));
    }
    if orphaned > 0 {
        store.gc().map_err(|e| fails("collect", e))?;
        if leftovers(disk, &store).1 > 0 {
            return Err("chunk digests of nobody left over after a collection".into());
        }
    }
    let reopened = open(disk).and_then(|store| content(&store)).map_err(|e| fails("reopen", e))?;
    if reopened == expected { Ok(()) } else { Err("the next commit lost something".into()) }
}

/// Returns the files that no generation needs, and how many of them are the first chunk digests of a growing storage.
/// The next append replaces these, and a collection deletes them.
fn leftovers(disk: &SimulatedDisk, store: &Store) -> (Vec<String>, usize) {
    let snapshot = store.snapshot();
    let (mut known, mut orphans) = (Vec::new(), Vec::new());
    for storage in snapshot.storages() {
        let storage = storage.unwrap();
        known.push(format!("{:016x}.bin", storage.id));
        if storage.size_bytes >= 1 << 20 {
            known.push(format!("{:016x}.sum", storage.id));
        } else {
            orphans.push(format!("{:016x}.sum", storage.id));
        }
    }
    let mut found = disk.list(&Path::new(STORE).join("storages")).unwrap();
    found.retain(|name| !known.contains(name));
    let all = found.len();
    found.retain(|name| !orphans.contains(name));
    let orphaned = all - found.len();
    found.extend(
        disk.list(&Path::new(STORE).join("meta")).unwrap().into_iter().filter(|name| name.contains("stage")),
    );
    (found, orphaned)
}

/// Cuts the power after every operation from `first` on, with every outcome. Returns the number of states tried, or
/// the first wrong one.
fn cut_everywhere(log: &[Op], first: usize, contents: &[Content]) -> Result<usize, String> {
    let mut states = 0;
    for point in first..=log.len() {
        let ops = &log[..point];
        let marks =
            |wanted: &str| ops.iter().filter(|op| matches!(op, Op::Mark(mark) if mark == wanted)).count();
        let (returned, began) = (marks("returned") - 1, marks("began"));
        let mut outcomes =
            vec![Outcome::EverythingKept, Outcome::EverythingLost, Outcome::NamesKept, Outcome::DataKept];
        outcomes.extend((0..SimulatedDisk::pending_names(ops)).map(Outcome::OneNameKept));
        for outcome in outcomes {
            states += 1;
            let disk = SimulatedDisk::after_power_cut(ops, outcome);
            check(&disk, contents, returned, began > returned)
                .map_err(|wrong| format!("power cut after operation {point}, {outcome:?}: {wrong}"))?;
        }
    }
    Ok(states)
}

#[test]
fn power_cut_at_any_point_leaves_the_old_or_the_new_content() {
    for script in [run_script(), run_growth()] {
        let created = script.log.iter().position(|op| *op == Op::Mark("returned".into())).unwrap() + 1;
        let states = cut_everywhere(&script.log, created, &script.contents).unwrap();
        println!("{states} states after {} operations, none wrong", script.log.len());
        assert!(
            states > 4 * (script.log.len() - created),
            "{states} states are too few for four outcomes at every point"
        );
    }
}

/// Compacts two storages, one of which has this many elements.
fn run_compaction(elements: usize) -> Script {
    let disk = SimulatedDisk::new();
    let store = StoreOptions::new().disk(Arc::new(disk.clone())).create(STORE).unwrap();
    for (name, n, step) in [("half", elements, 2), ("some", 6_000, -3)] {
        store.save("all", &vector(n, 4)).unwrap();
        store.save_view(name, &store.load("all").unwrap().slice(0, None, None, step).unwrap()).unwrap();
    }
    store.remove("all").unwrap();
    let before = content(&store).unwrap();
    disk.mark("returned");
    disk.mark("began");
    let compacted = store.compact(false, |_| ()).unwrap();
    assert_eq!((compacted.storage_count, compacted.before_bytes as usize), (2, 4 * (elements + 6_000)));
    assert!((compacted.before_bytes - compacted.after_bytes) as usize > 4 * elements / 2, "{compacted:?}");
    disk.mark("returned");
    Script { log: disk.log(), contents: vec![before, content(&store).unwrap()] }
}

#[test]
fn compaction_interrupted_by_a_power_cut_loses_nothing() {
    // A copy with a full chunk has a file of digests too.
    let script = run_compaction(600_000);
    let began = script.log.iter().position(|op| *op == Op::Mark("began".into())).unwrap();
    let states = cut_everywhere(&script.log, began, &script.contents).unwrap();
    println!("{states} states of a compaction, none wrong");
    // Strides distinguish the two contents, whose elements are the same.
    for (name, (size, _, bytes)) in &script.contents[0] {
        let (size_now, stride_now, bytes_now) = &script.contents[1][name];
        assert_eq!((size, bytes), (size_now, bytes_now));
        assert_eq!(stride_now[0].abs(), 1);
    }
}

/// Creates and writes a store without a sync. Then `settle`, on a handle that syncs, makes it durable.
fn run_settled(settle: &dyn Fn(&Store)) -> Script {
    let disk = SimulatedDisk::new();
    let unsynced = StoreOptions::new().durability(Durability::Process).disk(Arc::new(disk.clone()));
    let store = unsynced.create(STORE).unwrap();
    store.save("replaced", &vector(5, 1)).unwrap();
    store.save("chunked", &vector(300_000, 2)).unwrap();
    // Settles the store, so that the following commits must mark it again.
    open(&disk).unwrap().save("settled", &vector(5, 3)).unwrap();
    store.save("replaced", &vector(5, 4)).unwrap();
    let mut contents = vec![content(&store).unwrap()];
    disk.mark("returned");
    disk.mark("began");
    let store = open(&disk).unwrap();
    settle(&store);
    disk.mark("returned");
    contents.push(content(&store).unwrap());
    assert!(!disk.list(Path::new(STORE)).unwrap().contains(&"UNSYNCED".to_owned()));
    Script { log: disk.log(), contents }
}

#[test]
fn full_commit_or_collection_makes_earlier_unsynced_commits_durable() {
    let commit = |store: &Store| store.save("durable", &vector(5, 5)).unwrap();
    let collect = |store: &Store| assert_eq!(store.gc().unwrap().file_count, 0);
    for script in [run_settled(&commit), run_settled(&collect)] {
        let synced = script.log.iter().rposition(|op| *op == Op::SyncAll).unwrap();
        let states = cut_everywhere(&script.log, synced + 1, &script.contents).unwrap();
        println!("{states} states after a commit without syncs, none wrong");
        let mut log = script.log.clone();
        log.remove(synced);
        let noticed = cut_everywhere(&log, log.len(), &script.contents);
        assert!(noticed.is_err(), "nothing noticed that the file system was not synced");
    }
}

/// Another place must not have a generation that a power cut takes back here.
#[test]
fn commits_without_syncs_are_durable_before_they_are_sent_elsewhere() {
    let disk = SimulatedDisk::new();
    let unsynced = StoreOptions::new().durability(Durability::Process).disk(Arc::new(disk.clone()));
    let store = unsynced.create(STORE).unwrap();
    store.save("replaced", &vector(5, 1)).unwrap();
    store.save("chunked", &vector(300_000, 2)).unwrap();
    store.save("replaced", &vector(5, 4)).unwrap();
    let expected = content(&store).unwrap();
    assert!(!disk.log().contains(&Op::SyncAll));
    disk.mark("returned");
    disk.mark("began");
    assert!(!store.snapshot().replica_files(None).unwrap().needed.is_empty());
    disk.mark("returned");
    let log = disk.log();
    let synced = log.iter().rposition(|op| *op == Op::SyncAll).unwrap();
    let states = cut_everywhere(&log, synced + 1, &[expected.clone(), expected]).unwrap();
    println!("{states} states after a list of what another place needs, none wrong");
}

/// Returns the steps of the protocol: the operations of the log whose order matters, named by the kind of file.
fn steps(log: &[Op]) -> Vec<(usize, String)> {
    let kind_of = |inode: u64| {
        let mut names = log.iter().rev().filter_map(|op| match op {
            Op::Names { changes, .. } => changes.iter().rev().find(|(_, to)| *to == Some(inode)),
            _ => None,
        });
        let last = names.next().map(|(name, _)| name.as_str()).unwrap_or("?");
        last.rsplit('.').next().unwrap_or(last).to_owned()
    };
    let step = |(at, op): (usize, &Op)| {
        let name = match op {
            Op::Sync(file) => format!("sync .{}", kind_of(*file)),
            // The name of the store itself, and those in its directory, matter only if its creator was killed, which
            // does not happen in these scripts.
            Op::SyncDir(0) => return None,
            Op::SyncDir(dir) if kind_of(*dir) == STORE => return None,
            Op::SyncDir(dir) => format!("sync {}/", kind_of(*dir)),
            Op::Names { changes, .. } => match changes.as_slice() {
                [(_, None), (to, Some(_))] => format!("rename .{}", to.rsplit('.').next()?),
                [(gone, None)] => format!("delete .{}", gone.rsplit('.').next()?),
                _ => return None,
            },
            _ => return None,
        };
        Some((at, name))
    };
    log.iter().enumerate().filter_map(step).collect()
}

/// Returns the steps of the commit with this number.
fn steps_of_commit(log: &[Op], number: usize) -> Vec<(usize, String)> {
    let mark = |wanted: &str, nth: usize| {
        let mut found =
            log.iter().enumerate().filter(|(_, op)| matches!(op, Op::Mark(mark) if mark == wanted));
        found.nth(nth).unwrap().0
    };
    let (began, returned) = (mark("began", number - 1), mark("returned", number));
    steps(log).into_iter().filter(|(at, _)| (began..returned).contains(at)).collect()
}

#[test]
fn every_omitted_sync_is_detected() {
    let scripts = [("commit", run_script()), ("append", run_growth()), ("compaction", run_compaction(9_000))];
    for (what, script) in scripts {
        for commit in 1..script.contents.len() {
            let steps = steps_of_commit(&script.log, commit);
            for (at, name) in steps.into_iter().filter(|(_, name)| name.starts_with("sync")) {
                let mut log = script.log.clone();
                log.remove(at);
                let noticed = cut_everywhere(&log, at, &script.contents);
                println!("{what} {commit} without `{name}`: {noticed:?}");
                assert!(noticed.is_err(), "nothing noticed that {what} {commit} went without `{name}`");
            }
        }
    }
}

/// Steps that may run in any order among each other.
const COMMUTING: [&[&str]; 4] = [
    // Nothing refers to these files before the manifest does, and the sync of `storages/` covers their names.
    &["sync .bin", "sync .sum", "rename .bin", "rename .sum"],
    // Only the manifest refers to the table, and it comes after both. The sync of `generations/` covers the table's name.
    &["sync .bin", "sync .sum", "sync storages/", "sync .tab", "rename .tab"],
    // The same step twice.
    &["sync meta/"],
    // Nothing refers to the deleted files any more.
    &["delete .man", "delete .bin", "delete .sum"],
];

#[test]
fn swapped_steps_are_detected_unless_they_commute() {
    swap_all_steps("commit", &run_script());
}

#[test]
fn swapped_steps_of_an_append_are_detected_unless_they_commute() {
    swap_all_steps("append", &run_growth());
}

#[test]
fn swapped_steps_of_a_compaction_are_detected_unless_they_commute() {
    swap_all_steps("compaction", &run_compaction(9_000));
}

fn swap_all_steps(what: &str, script: &Script) {
    let mut swaps = Vec::new();
    for commit in 1..script.contents.len() {
        let steps = steps_of_commit(&script.log, commit);
        for (i, step) in steps.iter().enumerate() {
            swaps.extend(steps[i + 1..].iter().map(|other| (commit, step.clone(), other.clone())));
        }
    }
    if crate::number("STRIDEMAP_TEST_CRASH_STATES").is_none() {
        swaps = swaps.into_iter().step_by(4).collect();
    }
    let next = AtomicUsize::new(0);
    let noticed_count: usize = thread::scope(|scope| {
        let work = || {
            let mut count = 0;
            while let Some((commit, (at, name), (other_at, other))) =
                swaps.get(next.fetch_add(1, Ordering::Relaxed))
            {
                let mut log = script.log.clone();
                log.swap(*at, *other_at);
                let noticed = cut_everywhere(&log, *at, &script.contents);
                println!("{what} {commit}: `{name}` <-> `{other}`: {noticed:?}");
                let commutes =
                    COMMUTING.iter().any(|set| [name, other].iter().all(|step| set.contains(&step.as_str())));
                assert!(
                    noticed.is_err() || commutes,
                    "{what} {commit}: nothing noticed `{name}` <-> `{other}`"
                );
                count += usize::from(noticed.is_err());
            }
            count
        };
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..processors).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(noticed_count > 0);
    println!("{noticed_count} swaps noticed, {} harmless", swaps.len() - noticed_count);
}
