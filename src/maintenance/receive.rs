//! Makes a store the same as a later generation of the same store elsewhere: fetches the files that it lacks, verifies them,
//! and commits once.

use super::fetch::{Fetch, Spooled};
use super::tagged::TaggedGenerations;
use crate::error::{Error, ErrorKind, Result};
use crate::generation::{
    Differences, EarlyFiles, Generation, GenerationId, Incoming, MetadataFetch, Need, OpenStore, StoreDir,
    Transfer, Wanted, differences, publish_received,
};
use crate::storage::{
    Grown, Growth, GrowthLock, InPlaceContext, KnownTails, Spool, Storage, Stored, replace_bytes,
};

/// What is received, and how.
pub(crate) struct Receiving<'a> {
    pub(crate) store: &'a OpenStore,
    pub(crate) tails: &'a KnownTails,
    /// The other store, and the generation of it that is received.
    pub(crate) from: &'a StoreDir,
    pub(crate) generation: &'a Generation,
    /// The generation that this store must have as its newest. `None` for a store that has nothing.
    pub(crate) base: Option<GenerationId>,
    pub(crate) jobs: usize,
    pub(crate) transfer: &'a Transfer<'a>,
    /// Whether the other store still has the elements of a storage that were received from it, or sent to it, last.
    pub(crate) is_unchanged: &'a (dyn Fn(u64) -> bool + Sync),
}

impl Receiving<'_> {
    /// Receives the generation. Returns how many storages were read from the other store.
    pub(crate) fn run(&self) -> Result<u64> {
        let Receiving { store, from, generation, transfer, .. } = *self;
        store.check_process()?;
        store.check_poison()?;
        if from.uuid != store.uuid {
            let message = "the two are different stores: their uuids differ; only a store that was received from \
                another one, or sent to it, can receive from it";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let newest = store.newest()?;
        let is_same = self.check_base(&newest)?;
        let early = EarlyFiles::new(store, newest);
        let metadata = MetadataFetch { store, from, early: &early, transfer };
        let incoming = metadata.tables(generation)?;
        let mut differences = differences(&incoming, &early, &store.paths)?;
        for (number, kept) in &differences.gained {
            if *number != generation.number() {
                metadata.tagged(*number, kept)?;
            }
        }
        let wanted = self.needed(&incoming.generation, std::mem::take(&mut differences.wanted))?;
        let storage_count = wanted.len() as u64;
        let spool = Spool::new(&store.disk, &store.paths);
        let spooled = Fetch { receiving: self, early: &early, spool: &spool }.all(wanted)?;
        // The files may be those of an older copy of the other store, restored over it. The manifest was then replaced too.
        generation.check_named(&*from.disk)?;
        // Nothing in this store has changed until here. This is checked again under the lock.
        early.check_base(&*store.newest()?)?;

        let mut replaced_count = 0;
        let changes = (incoming, differences, early);
        let published = self.publish(changes, is_same, (&spooled, &spool), &mut replaced_count);
        published.map_err(|e| match replaced_count {
            0 => e,
            count => e.context(format_args!(
                "the elements of {count} mutable or live storages were replaced by those of the other store before this \
                 error"
            )),
        })?;
        Ok(storage_count)
    }

    /// Makes the generation that of this store. Counts the storages whose elements were replaced in place: these cannot be
    /// undone. Their locks may be waited for, so they are not taken under LOCK, and another process may commit meanwhile.
    fn publish(
        &self,
        (incoming, differences, early): (Incoming, Differences, EarlyFiles<'_>),
        is_same: bool,
        (spooled, spool): (&[Spooled], &Spool<'_>),
        replaced_count: &mut u64,
    ) -> Result<()> {
        let store = self.store;
        // The locks of storages that are changed in place come before those of storages that grow.
        for spooled in spooled.iter().filter(|spooled| matches!(spooled.wanted.need, Need::InPlace)) {
            *replaced_count += u64::from(self.replace(spooled, spool)?);
        }
        if is_same {
            return Ok(());
        }
        let (mut growths, mut grown) = (Vec::new(), Vec::new());
        for spooled in spooled {
            if let Need::Longer(_) = spooled.wanted.need {
                let (growth, longer) = self.grow(spooled, spool)?;
                growths.push(growth);
                grown.push(longer);
            }
        }
        let lock = store.lock_writers()?;
        publish_received(store, (&incoming, differences), early, &mut grown, &lock)?;
        drop(lock);
        for (growth, grown) in growths.into_iter().zip(&grown) {
            growth.release(&grown.to, self.tails);
        }
        Ok(())
    }

    /// Leaves out the garbage that no tagged generation has after all: if it was restored before, it is only listed as if
    /// one had it. The other store may have deleted its files. Also leaves out the elements that only this store has changed.
    fn needed(&self, incoming: &Generation, mut wanted: Vec<Wanted>) -> Result<Vec<Wanted>> {
        wanted.retain(|wanted| !matches!(wanted.need, Need::InPlace) || !(self.is_unchanged)(wanted.id));
        let is_uncertain = |wanted: &&Wanted| wanted.dropped.is_some() && wanted.record.is_restored;
        let uncertain: Vec<u64> = wanted.iter().filter(is_uncertain).map(|wanted| wanted.id).collect();
        let mut tagged = TaggedGenerations::list(incoming)?;
        tagged.find_restored(self.store, incoming, &uncertain, &[])?;
        wanted.retain(|wanted| {
            let first = tagged.with_storage(wanted.id).next();
            wanted.dropped.is_none_or(|dropped| first.is_some_and(|first| first < dropped))
        });
        Ok(wanted)
    }

    /// Checks that the received generation follows the newest one of this store. Returns whether it is the same.
    fn check_base(&self, newest: &Generation) -> Result<bool> {
        let (own, received) = (newest.number(), self.generation.number());
        let conflict = |message: String| Err(Error::new(ErrorKind::Conflict, message));
        if received < own {
            return conflict(format!(
                "this store is at generation {own}, which is later; send it the other way, or restore the earlier one"
            ));
        }
        let id = newest.id()?;
        if received == own {
            return match id == self.generation.id()? {
                true => Ok(true),
                false => conflict(own_commits(own)),
            };
        }
        match self.base {
            Some(base) if base == id => Ok(false),
            Some(base) => conflict(own_commits(base.number.min(own))),
            None if own == 1 && newest.manifest().next_storage_id == 1 => Ok(false),
            None => conflict(format!(
                "this store is at generation {own}, and it is not known to be an earlier state of the other one"
            )),
        }
    }

    /// Replaces the bytes of a storage that is changed in place. Returns whether they were others.
    fn replace(&self, spooled: &Spooled, spool: &Spool<'_>) -> Result<bool> {
        let store = self.store;
        let (id, record) = (spooled.wanted.id, spooled.wanted.record.clone());
        let stored = Stored { store: store.uuid, id, record };
        let context = || InPlaceContext::of_a_reader(store.options.lock_wait, store.poison.clone());
        let storage = Storage::open(&store.disk, &store.paths.storage(id), stored, None, context)?;
        let replaced =
            replace_bytes(&storage, &|sink| spool.read(spooled.range.clone(), sink), store.is_durable());
        store.record_failure(replaced)
    }

    /// Writes the new bytes of a storage that has grown, under its growth lock.
    fn grow(&self, spooled: &Spooled, spool: &Spool<'_>) -> Result<(Growth, Grown)> {
        let (store, id, record) = (self.store, spooled.wanted.id, &spooled.wanted.record);
        let Need::Longer(from) = &spooled.wanted.need else {
            return Err(Error::new(ErrorKind::InvalidArgument, "the storage has not grown"));
        };
        let path = store.paths.storage(id);
        let lock = GrowthLock::take(&store.disk, &path, store.options.lock_wait)?;
        let lock = lock.ok_or_else(|| {
            Error::new(
                ErrorKind::Conflict,
                format!("{}: the storage was deleted; receive again", path.display()),
            )
        })?;
        let mut growth = Growth::begin(&store.paths, lock, (id, from.clone()), self.tails)?;
        let written = growth.reserve(record.length_bytes - from.length_bytes).and_then(|()| {
            spool.read(spooled.range.clone(), &mut |bytes| growth.write(bytes))?;
            growth.finish(&store.paths, store.is_durable())
        });
        let grown = store.record_failure(written)?;
        if grown.to.kind != record.kind {
            // The bytes are cut off again.
            growth.allow_writes()?;
            let message =
                format!("{}: the storage has changed since it was examined; receive again", path.display());
            return Err(Error::new(ErrorKind::Conflict, message));
        }
        Ok((growth, grown))
    }
}

fn own_commits(since: u64) -> String {
    format!(
        "the store has commits of its own since generation {since}, which the other one does not have, and nothing was \
         changed; keep these commits in a copy of the store, or discard them, and receive into a new store"
    )
}
