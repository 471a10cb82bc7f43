//! Power cuts at every point of a story in which a step of the protocol is omitted. Of the unsynced changes, these
//! survive: all, none, only names, only bytes, or a single name. `crash/explore.rs` tries more outcomes, but these
//! suffice to detect an omitted step.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::simulated::{Op, Outcome, SimulatedDisk};
use stridemap::disk::{Disk, omit_step};
use stridemap::{DType, Durability, Error, ErrorKind, Store, Tensor};
use stridemap_format::Rule;

use super::play::{Fate, Play, STORE, create, expect_ok, holds, open, options, refused, vector};
use super::seat::{Seat, When};
use super::{Simulation, filled, of};

pub(crate) fn simulations() -> Vec<Simulation> {
    vec![
        of(
            "power cuts in a creation",
            creation,
            &[
                "sync-new-file",
                "rename-new-file",
                "sync-new-meta",
                "sync-new-root",
                "rename-store",
                "sync-parent",
            ],
        ),
        of("power cuts in a creation in an existing directory", creation_in_a_directory, &["sync-new-names"]),
        of("power cuts in a creation with tensors", filled_creation, &["rename-store", "sync-parent"]),
        of(
            "power cuts in commits",
            commits,
            &[
                "sync-storage",
                "sync-digests",
                "rename-storage",
                "rename-digests",
                "sync-storages-dir",
                "sync-manifest",
                "rename-manifest",
                "sync-manifest-name",
            ],
        ),
        of(
            "power cuts while others fill a storage",
            filled::power_cuts,
            &["digest-filled", "sync-storage", "sync-digests"],
        ),
        of("power cuts in commits of tables", tables, &["sync-table", "rename-table", "sync-table-name"]),
        of(
            "power cuts in commits with tags",
            tags,
            &["sync-kept-manifest", "rename-kept-manifest", "sync-kept-manifest-name"],
        ),
        of("power cuts in commits of many tags", many_tags, &["sync-history-name"]),
        of(
            "power cuts in appends",
            growth,
            &[
                "sync-grown",
                "sync-grown-digests",
                "sync-digests",
                "rename-grown-digests",
                "sync-storages-dir",
            ],
        ),
        of(
            "power cuts in commits of an appender",
            appender,
            &[
                "sync-grown",
                "sync-grown-digests",
                "sync-digests",
                "rename-grown-digests",
                "sync-storages-dir",
            ],
        ),
        of(
            "power cuts in a copy",
            copying,
            &[
                "sync-storage",
                "sync-digests",
                "sync-storages-dir",
                "sync-manifest",
                "sync-manifest-name",
                "rename-store",
                "sync-parent",
            ],
        ),
        of(
            "power cuts in a copy with tags",
            copying_with_tags,
            &[
                "sync-storage",
                "sync-digests",
                "sync-storages-dir",
                "sync-kept-manifest",
                "rename-kept-manifest",
                "sync-table",
                "sync-table-name",
                "sync-manifest",
                "sync-manifest-name",
                "rename-store",
                "sync-parent",
            ],
        ),
        of(
            "a commit after a copy was killed",
            commit_after_a_copy_was_killed,
            &["mark-unsynced", "sync-file-system"],
        ),
        of("a commit after a creator died", commit_after_a_creator_died, &["sync-creation"]),
        of("a collection after a creator died", collection_after_a_creator_died, &["sync-creation"]),
        of(
            "a commit after a creator died in an existing directory",
            commit_after_a_creator_died_in_a_directory,
            &["sync-new-root"],
        ),
        of("power cuts in a commit that forgets garbage", forgetting, &["sync-storages-dir"]),
        of("power cuts in an append of the first digests", first_digests, &["sync-storages-dir"]),
        of(
            "a commit after commits without syncs",
            settled_by_a_commit,
            &["mark-unsynced", "sync-file-system"],
        ),
        of(
            "a collection after commits without syncs",
            settled_by_a_collection,
            &["mark-unsynced", "sync-file-system"],
        ),
        of(
            "a commit without changes after commits without syncs",
            settled_by_an_empty_commit,
            &["mark-unsynced", "sync-file-system"],
        ),
        of("a commit after commits without syncs, on two file systems", settled_on_two, &["sync-mounts"]),
        of("a commit after a commit of unknown fate", unknown_fate_then_commit, &[]),
        of(
            "a commit without changes after a commit of unknown fate",
            unknown_fate_then_empty_commit,
            &["sync-newest-name"],
        ),
        of(
            "a collection after a commit of unknown fate",
            unknown_fate_then_collection,
            &["sync-newest-name"],
        ),
        of(
            "a collection without syncs after a commit of unknown fate",
            unknown_fate_then_unsynced_collection,
            &["sync-newest-name"],
        ),
    ]
}

/// Tensors by name, and those of tags by tag and name: sizes and elements.
type Content = BTreeMap<String, (Vec<usize>, Vec<u8>)>;

fn content(store: &Store) -> stridemap::Result<Content> {
    let mut snapshots = vec![(String::new(), store.snapshot())];
    for tag in store.tags()? {
        snapshots.push((format!("{}@", tag.name), store.at(&*tag.name)?));
    }
    let mut content = Content::new();
    for (tag, snapshot) in snapshots {
        for name in snapshot.names()? {
            let tensor = snapshot.load(&name)?;
            content.insert(format!("{tag}{name}"), (tensor.size().to_vec(), tensor.to_bytes()?));
        }
    }
    Ok(content)
}

pub(super) fn numbers(count: usize, seed: u32) -> Tensor {
    let number = |i: u32| i.wrapping_mul(2_654_435_761).wrapping_add(seed);
    Tensor::from_vec((0..count as u32).map(number).collect(), &[count]).unwrap()
}

const BEGAN: &str = "began";
const RETURNED: &str = "returned";

/// The operations on a store, and its content after each step: `None` while there is no store.
pub(super) struct Story<'a> {
    play: &'a Play,
    contents: Vec<Option<Content>>,
}

impl<'a> Story<'a> {
    pub(super) fn begin(play: &'a Play) -> Self {
        Story { play, contents: vec![None] }
    }

    pub(super) fn step<T>(
        &mut self,
        what: &str,
        act: impl FnOnce() -> stridemap::Result<T>,
    ) -> Result<T, String> {
        self.play.simulated.mark(BEGAN);
        let done = expect_ok(what, act())?;
        self.play.simulated.mark(RETURNED);
        let now = expect_ok("read", content(&open(&self.play.seat())?))?;
        self.contents.push(Some(now));
        Ok(done)
    }

    pub(super) fn create(play: &'a Play) -> Result<(Self, Store), String> {
        let mut story = Self::begin(play);
        let seat = play.seat();
        let store = story.step("create", || options(&seat).create(STORE))?;
        Ok((story, store))
    }

    /// Cuts the power after every operation from this point of the log on.
    pub(super) fn explore(&self, from: usize) -> Fate {
        let log = self.play.simulated.log();
        for point in from..=log.len() {
            let ops = &log[..point];
            let count = |wanted: &str| ops.iter().filter(|op| **op == Op::Mark(wanted.to_owned())).count();
            let (returned, began) = (count(RETURNED), count(BEGAN));
            let candidates = &self.contents[returned..returned + 1 + usize::from(began > returned)];
            let names = SimulatedDisk::pending_names(ops);
            let simple =
                [Outcome::EverythingKept, Outcome::EverythingLost, Outcome::NamesKept, Outcome::DataKept];
            for outcome in simple.into_iter().chain((0..names).map(Outcome::OneNameKept)) {
                let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::after_power_cut(ops, outcome));
                recover(&Seat::new(&disk, 1), candidates).map_err(|wrong| {
                    format!("power cut after operation {point} of {}, {outcome:?}: {wrong}", log.len())
                })?;
            }
        }
        Ok(())
    }
}

/// Returns whether there is no store, or one without FORMAT yet.
fn is_no_store(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotAStore) || e.rule() == Some(Rule::MarkerMagic)
}

/// Checks that the store has one of these contents, verifies, and can be used again.
fn recover(seat: &Seat, candidates: &[Option<Content>]) -> Fate {
    let store = match options(seat).open(STORE) {
        Err(e) if is_no_store(&e) && candidates.contains(&None) => return Ok(()),
        opened => expect_ok("open", opened)?,
    };
    let mut found = expect_ok("read", content(&store))?;
    if !candidates.iter().flatten().any(|candidate| *candidate == found) {
        return Err(format!("{:?} is what no commit left that was acknowledged", found.keys()));
    }
    check_verified(&store)?;
    let probe = vector(9);
    expect_ok("the next commit", store.save("probe", &probe))?;
    found.insert("probe".to_owned(), (vec![5], probe.to_bytes().unwrap()));
    check_every_storage_has_a_record(seat, &store)?;
    expect_ok("a collection", store.gc())?;
    let again = open(seat)?;
    holds("the next commit lost something", expect_ok("read", content(&again))? == found)?;
    check_verified(&again)
}

fn check_verified(store: &Store) -> Fate {
    match expect_ok("verify", store.verify(|_| ()))?.findings.first() {
        None => Ok(()),
        Some(finding) => Err(format!("verify finds {finding}")),
    }
}

/// Checks that every storage file has a record: a file without one stays until a collection.
fn check_every_storage_has_a_record(seat: &Seat, store: &Store) -> Fate {
    let mut snapshots = vec![store.snapshot()];
    snapshots.extend(store.tags().unwrap().iter().map(|tag| store.at(&*tag.name).unwrap()));
    let storages = snapshots.iter().flat_map(|snapshot| snapshot.storages().map(Result::unwrap));
    let known: Vec<String> = storages.map(|storage| format!("{:016x}.bin", storage.id)).collect();
    let found = seat.disk().list(&Path::new(STORE).join("storages")).map_err(|e| e.to_string())?;
    let mut others = found.iter().filter(|name| name.ends_with(".bin") && !known.contains(name));
    others.next().map_or(Ok(()), |name| Err(format!("{name} is nobody's")))
}

fn creation(play: &Play) -> Fate {
    let (mut story, store) = Story::create(play)?;
    story.step("save", || store.save("x", &vector(1)))?;
    story.explore(0)
}

fn creation_in_a_directory(play: &Play) -> Fate {
    play.simulated.create_dir(Path::new(STORE)).unwrap();
    play.simulated.sync_dir(Path::new("")).unwrap();
    creation(play)
}

fn filled_creation(play: &Play) -> Fate {
    let mut story = Story::begin(play);
    let seat = play.seat();
    story.step("create", || options(&seat).create_with(STORE, |txn| txn.save("x", &vector(1))).map(drop))?;
    story.explore(0)
}

fn commit_after_a_creator_died(play: &Play) -> Fate {
    creator_died(play, |store| store.save("x", &vector(1)))
}

fn collection_after_a_creator_died(play: &Play) -> Fate {
    creator_died(play, |store| store.gc().map(drop))
}

/// The creator died after it wrote FORMAT, before that name was durable.
fn commit_after_a_creator_died_in_a_directory(play: &Play) -> Fate {
    play.simulated.create_dir(Path::new(STORE)).unwrap();
    play.simulated.sync_dir(Path::new("")).unwrap();
    let seat = play.seat();
    let dying = seat.clone();
    seat.trap(When::After, "rename_new", "FORMAT", move || {
        dying.fail("sync_dir", STORE);
        Ok(())
    });
    another_continues(play, &seat, |store| store.save("x", &vector(1)))
}

/// The store has its name, but its creator died before the name was durable.
fn creator_died(play: &Play, next: fn(&Store) -> stridemap::Result<()>) -> Fate {
    let seat = play.seat();
    seat.fail("sync_dir", ".");
    another_continues(play, &seat, next)
}

fn another_continues(play: &Play, seat: &Seat, next: fn(&Store) -> stridemap::Result<()>) -> Fate {
    refused("the creation", options(seat).create(STORE), ErrorKind::Io)?;
    let mut story = Story::begin(play);
    let store = open(&play.seat())?;
    story.step("the next", || next(&store))?;
    story.explore(play.simulated.log().len())
}

const SOURCE: &str = "source.smap";

/// Returns a handle to a store that was created with every step.
fn source(play: &Play, seat: &Seat) -> Result<Store, String> {
    let every_step = omit_step(None);
    let source = expect_ok("create", options(&Seat::new(&play.disk, 0)).create(SOURCE))?;
    expect_ok("save", source.save("small", &vector(1)))?;
    expect_ok("save", source.save("chunked", &numbers(262_144 + 10, 2)))?;
    drop(every_step);
    expect_ok("open", options(seat).open(SOURCE))
}

fn copying(play: &Play) -> Fate {
    let source = source(play, &play.seat())?;
    let from = play.simulated.log().len();
    let mut story = Story::begin(play);
    story.step("copy", || source.snapshot().copy_to(STORE, None, |_| ()))?;
    story.explore(from)
}

/// Only a tag has a storage of two chunks, and the newest generation has a table.
fn copying_with_tags(play: &Play) -> Fate {
    let seat = play.seat();
    let source = source(play, &seat)?;
    let every_step = omit_step(None);
    let rows = options(&Seat::new(&play.disk, 0)).open(SOURCE).and_then(|whole| {
        whole.tag("v1")?;
        whole.write(|txn| {
            txn.remove("chunked")?;
            (0..70).try_for_each(|row| txn.save(&format!("row.{row}"), &vector(row)))
        })
    });
    expect_ok("save", rows)?;
    drop(every_step);
    let from = play.simulated.log().len();
    let mut story = Story::begin(play);
    story.step("copy", || source.copy_with_tags(STORE, |_| ()))?;
    story.explore(from)
}

/// The copy has its name, which is not durable. A writer continues there.
fn commit_after_a_copy_was_killed(play: &Play) -> Fate {
    let seat = play.seat();
    let source = source(play, &seat)?;
    seat.fail("sync_dir", "x.smap/..");
    refused("the copy", source.snapshot().copy_to(STORE, None, |_| ()), ErrorKind::CommitUnknown)?;
    let mut story = Story::begin(play);
    let store = open(&play.seat())?;
    story.step("save", || store.save("x", &vector(1)))?;
    story.explore(play.simulated.log().len())
}

/// Storages of one and of two chunks, and two that are deleted one after the other.
fn commits(play: &Play) -> Fate {
    let (mut story, store) = Story::create(play)?;
    let from = play.simulated.log().len();
    story.step("save", || store.save("small", &vector(1)))?;
    story.step("save", || store.save("chunked", &numbers(262_144 + 10, 2)))?;
    story.step("save", || store.save("doomed", &vector(3)))?;
    story.step("remove", || store.remove("small"))?;
    story.step("remove", || store.remove("doomed"))?;
    story.explore(from)
}

fn tables(play: &Play) -> Fate {
    let (mut story, store) = Story::create(play)?;
    let from = play.simulated.log().len();
    story.step("the table", || {
        let mut txn = store.begin()?;
        (0..70).try_for_each(|row| txn.save(&format!("row.{row}"), &vector(row)))?;
        txn.commit()
    })?;
    story.step("copy", || store.write(|txn| txn.copy("row.7", "seven")))?;
    story.explore(from)
}

/// A tag with its commit, one of an earlier generation, and their removal.
fn tags(play: &Play) -> Fate {
    let (mut story, store) = Story::create(play)?;
    let from = play.simulated.log().len();
    story.step("tag", || {
        store.write(|txn| {
            txn.save("x", &vector(1))?;
            txn.tag("a")
        })
    })?;
    let before = store.snapshot();
    story.step("replace", || store.save("x", &vector(2)))?;
    story.step("tag the earlier one", || store.write(|txn| txn.tag_snapshot("b", &before)))?;
    drop(before);
    story.step("remove a tag", || store.untag("a"))?;
    story.step("remove the other", || store.untag("b"))?;
    story.explore(from)
}

fn many_tags(play: &Play) -> Fate {
    let (mut story, store) = Story::create(play)?;
    story.step("save", || store.save("x", &vector(1)))?;
    let from = play.simulated.log().len();
    story.step("tag", || store.write(|txn| (0..70).try_for_each(|tag| txn.tag(&format!("{tag}")))))?;
    story.step("replace", || store.save("x", &vector(2)))?;
    story.explore(from)
}

/// Appends without chunk digests, with the first, and with more.
fn growth(play: &Play) -> Fate {
    let (mut story, store) = Story::create(play)?;
    let from = play.simulated.log().len();
    story.step("create", || store.create_growable("log", DType::U32, &[1000], 0))?;
    story.step("append", || store.append("log", &numbers(200_000, 1)))?;
    story.step("append", || store.append("log", &numbers(62_000, 2)))?;
    story.step("append", || store.append("log", &numbers(262_144, 3)))?;
    story.explore(from)
}

/// Commits of an appender that fill the first chunk and the second one.
fn appender(play: &Play) -> Fate {
    let (mut story, store) = Story::create(play)?;
    let from = play.simulated.log().len();
    story.step("create", || store.create_growable("log", DType::U32, &[262_000], 0))?;
    let mut appender = expect_ok("open an appender", store.appender("log"))?;
    for (count, seed) in [(100, 1), (200, 2), (262_144, 3)] {
        story.step("append", || {
            appender.append(&numbers(count, seed))?;
            appender.commit()
        })?;
    }
    story.explore(from)
}

/// A commit of only a header that drops the garbage of earlier commits from the manifest.
fn forgetting(play: &Play) -> Fate {
    let mut story = Story::begin(play);
    let (whole, every_step) = (Seat::new(&play.disk, 99), omit_step(None));
    let store = story.step("create", || options(&whole).create(STORE))?;
    story.step("save", || store.save("kept", &vector(1)))?;
    story.step("save", || store.save("doomed", &vector(2)))?;
    story.step("remove", || store.remove("doomed"))?;
    drop((store, every_step));
    let (other, from) = (open(&play.seat())?, play.simulated.log().len());
    story.step("copy", || other.write(|txn| txn.copy("kept", "again")))?;
    story.explore(from)
}

/// Appended rows that complete the first chunk of an existing storage.
fn first_digests(play: &Play) -> Fate {
    let mut story = Story::begin(play);
    let (whole, every_step) = (Seat::new(&play.disk, 99), omit_step(None));
    let store = story.step("create", || options(&whole).create(STORE))?;
    story.step("create", || store.create_growable("log", DType::U32, &[262_000], 0))?;
    drop((store, every_step));
    let (other, from) = (open(&play.seat())?, play.simulated.log().len());
    story.step("append", || other.append("log", &numbers(500, 1)))?;
    story.explore(from)
}

fn settled_by_a_commit(play: &Play) -> Fate {
    settled(play, |store| store.save("durable", &vector(5)))
}

fn settled_by_a_collection(play: &Play) -> Fate {
    settled(play, |store| store.gc().map(drop))
}

fn settled_by_an_empty_commit(play: &Play) -> Fate {
    settled(play, |store| store.begin()?.commit().map(drop))
}

fn settled_on_two(play: &Play) -> Fate {
    let seat = play.seat();
    let store = expect_ok("create", options(&seat).durability(Durability::Process).create(STORE))?;
    play.simulated.mount(&Path::new(STORE).join("storages")).unwrap();
    expect_ok("save", store.save("unsynced", &vector(1)))?;
    let mut story = Story::begin(play);
    let last = open(&play.seat())?;
    story.step("settle", || last.save("durable", &vector(5)))?;
    story.explore(play.simulated.log().len())
}

/// Unsynced changes are durable once a handle that syncs has returned.
fn settled(play: &Play, settle: fn(&Store) -> stridemap::Result<()>) -> Fate {
    let mut story = Story::begin(play);
    let seat = play.seat();
    let unsynced = || options(&seat).durability(Durability::Process);
    let store = story.step("create", || unsynced().create(STORE))?;
    story.step("save", || store.save("replaced", &vector(1)))?;
    let other = open(&play.seat())?;
    story.step("settle", || other.save("settled", &vector(2)))?;
    // This commit must mark the store again.
    story.step("replace", || store.save("replaced", &vector(3)))?;
    let last = open(&play.seat())?;
    story.step("settle", || settle(&last))?;
    story.explore(play.simulated.log().len())
}

fn unknown_fate_then_commit(play: &Play) -> Fate {
    unknown(play, Durability::Full, |store| store.save("new", &vector(3)))
}

fn unknown_fate_then_collection(play: &Play) -> Fate {
    unknown(play, Durability::Full, |store| store.gc().map(drop))
}

fn unknown_fate_then_unsynced_collection(play: &Play) -> Fate {
    unknown(play, Durability::Process, |store| store.gc().map(drop))
}

/// What a commit without changes returned for is not lost.
fn unknown_fate_then_empty_commit(play: &Play) -> Fate {
    let seat = play.seat();
    let store = create(&seat)?;
    seat.fail("sync_dir", "meta");
    refused("the commit", store.save("x", &vector(1)), ErrorKind::CommitUnknown)?;
    drop(store);
    let mut story = Story::begin(play);
    let other = open(&play.seat())?;
    story.step("commit nothing", || other.begin()?.commit().map(drop))?;
    story.explore(play.simulated.log().len())
}

/// A writer dies after it renames its manifest and before it syncs that name. The commit deletes a storage. Another
/// writer continues.
fn unknown(play: &Play, durability: Durability, next: fn(&Store) -> stridemap::Result<()>) -> Fate {
    let seat = play.seat();
    let store = create(&seat)?;
    expect_ok("save", store.save("old", &vector(1)))?;
    seat.fail("sync_dir", "meta");
    refused("the commit", store.remove("old"), ErrorKind::CommitUnknown)?;
    drop(store);
    let began = play.simulated.log().len();
    let other = expect_ok("open", options(&play.seat()).durability(durability).open(STORE))?;
    expect_ok("the next", next(&other))?;
    let log = play.simulated.log();
    for ops in (began..=log.len()).map(|end| &log[..end]) {
        for outcome in (0..SimulatedDisk::pending_names(ops)).map(Outcome::OneNameKept) {
            let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::after_power_cut(ops, outcome));
            let verified = open(&Seat::new(&disk, 1)).and_then(|store| check_verified(&store));
            verified
                .map_err(|wrong| format!("power cut after operation {}, {outcome:?}: {wrong}", ops.len()))?;
        }
    }
    Ok(())
}
