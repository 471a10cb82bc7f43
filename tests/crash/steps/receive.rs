//! Replicas that receive generations, with power cuts and other processes in between.

use std::sync::Arc;

use stridemap::disk::{Disk, omit_step};
use stridemap::replica::ReceiveOptions;
use stridemap::{DType, ErrorKind, Store};

use crate::simulated::SimulatedDisk;

use super::play::{Fate, Play, STORE, check_intact, expect_ok, options, refused, vector};
use super::power::{Story, numbers};
use super::seat::Seat;
use super::{Simulation, of};

pub(crate) fn simulations() -> Vec<Simulation> {
    vec![
        of(
            "power cuts in the creation of a replica",
            creation,
            &["sync-storages-dir", "sync-received-names", "rename-store", "sync-parent"],
        ),
        of(
            "power cuts in receives",
            receives,
            &[
                "rename-received",
                "sync-storage",
                "sync-digests",
                "sync-storages-dir",
                "sync-received-metadata",
                "sync-received-names",
                "sync-grown",
                "sync-grown-digests",
            ],
        ),
    ]
}

const SOURCE: &str = "source.smap";

/// The calling thread reads everything, so it omits the same step.
const ONE_THREAD: ReceiveOptions<'_> =
    ReceiveOptions { jobs: 1, progress: &|_| Ok(()), is_unchanged: &|_| false };

/// Changes the store elsewhere with every step.
fn elsewhere<T>(act: impl FnOnce() -> stridemap::Result<T>) -> Result<T, String> {
    let _every_step = omit_step(None);
    expect_ok("a change elsewhere", act())
}

/// Makes the store elsewhere, on a disk of its own, whose power is never cut.
fn source() -> Result<Store, String> {
    let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::new().without_log());
    let seat = Seat::new(&disk, 0);
    elsewhere(|| {
        let source = options(&seat).create(SOURCE)?;
        source.save("chunked", &numbers(262_144 + 10, 2))?;
        source.create_growable("log", DType::U32, &[0], 1000)?;
        source.append("log", &numbers(262_144 + 5, 3))?;
        source.save("small", &vector(1))?;
        source.tag("first")?;
        source.write(|txn| (0..80).try_for_each(|i| txn.save(&format!("n{i}"), &i)))?;
        source.save("small", &vector(2))?;
        Ok(source)
    })
}

fn creation(play: &Play) -> Fate {
    let source = source()?;
    let seat = play.seat();
    let mut story = Story::begin(play);
    story.step("create", || options(&seat).create_replica(STORE, &source.snapshot(), &ONE_THREAD))?;
    story.explore(0)
}

fn replica(source: &Store, seat: &Seat) -> Result<Store, String> {
    elsewhere(|| {
        options(seat).create_replica(STORE, &source.snapshot(), &ONE_THREAD).map(|(replica, _)| replica)
    })
}

fn receive(replica: &Store, source: &Store) -> stridemap::Result<()> {
    let base = replica.snapshot().id()?;
    replica.receive(&source.snapshot(), Some(base), &ONE_THREAD).map(drop)
}

fn receives(play: &Play) -> Fate {
    let source = source()?;
    let seat = play.seat();
    let replica = replica(&source, &seat)?;
    let mut story = Story::begin(play);
    story.step("open", || replica.refresh())?;
    let from = play.simulated.log().len();
    elsewhere(|| {
        source.append("log", &numbers(262_144, 4))?;
        source.save("new", &numbers(262_144 + 1, 5))
    })?;
    story.step("receive storages", || receive(&replica, &source))?;
    elsewhere(|| {
        source.tag("second")?;
        source.write(|txn| (0..80).try_for_each(|i| txn.save(&format!("m{i}"), &i)))?;
        source.untag("first")?;
        source.save("small", &vector(3))
    })?;
    story.step("receive tags and tables", || receive(&replica, &source))?;
    elsewhere(|| {
        source.restore(&source.at("second")?)?;
        source.append("log", &numbers(3, 6))
    })?;
    story.step("receive a restore", || receive(&replica, &source))?;
    story.explore(from)
}

/// A collection deletes the files that have their names before the commit.
pub(crate) fn collection_during_a_receive(play: &Play) -> Fate {
    let source = source()?;
    let (seat, other) = (play.seat(), play.seat());
    let replica = replica(&source, &seat)?;
    let base = expect_ok("id", replica.snapshot().id())?;
    elsewhere(|| {
        source.save("first", &numbers(2000, 5))?;
        source.save("second", &numbers(1000, 6))
    })?;
    let collector = expect_ok("open", options(&other).open(STORE))?;
    let progress = |_| collector.gc().map(drop);
    let options = ReceiveOptions { jobs: 1, progress: &progress, ..ONE_THREAD };
    let names = replica.names().unwrap();
    let received = replica.receive(&source.snapshot(), Some(base), &options);
    refused("the receive", received, ErrorKind::Conflict)?;
    check_intact(play, &names.iter().map(String::as_str).collect::<Vec<_>>())
}
