//! The history of a store: tags, and what they keep.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use stridemap_format::{GarbageKey, RecordKind, StorageRecord};

use super::at::{At, find};
use super::handle::Store;
use super::retention::Retention;
use super::snapshot::Snapshot;
use crate::error::Result;
use crate::generation::{GarbageEntry, Generation, OpenStore};
use crate::maintenance::TaggedGenerations;

/// A tag: a name for a generation, which keeps the generation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct TagInfo {
    /// The name.
    pub name: String,
    /// The generation that it names.
    pub generation: u64,
    /// When the generation was published, by the clock of the machine that did it.
    pub time: SystemTime,
    /// What the user said about it.
    pub message: Option<String>,
}

/// A generation that is kept: one with tags, or the newest.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LogEntry {
    /// The number of the generation.
    pub generation: u64,
    /// When it was published, by the clock of the machine that did it.
    pub time: SystemTime,
    /// What the user said about it: the message of its commit, or of one of its tags.
    pub message: Option<String>,
    /// Its tags, in ascending order of name.
    pub tags: Vec<String>,
    /// The bytes of storages that no other generation in the log has. Removing its tags frees them, unless it is the
    /// newest.
    pub own_bytes: u64,
}

impl Store {
    /// Returns a snapshot of an earlier generation: one that a tag names, or one whose number another process has sent.
    /// A generation without a tag is on disk for as long as a handle or a snapshot, in any process, sees it.
    ///
    /// ```
    /// use stridemap::{ErrorKind, Store};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &1i32)?;
    /// store.tag("first")?;
    /// store.save("x", &2i32)?;
    /// assert_eq!(store.at("first")?.load("x")?.item::<i32>()?, 1);
    ///
    /// let reader = Store::open(store.path())?;
    /// store.save("x", &3i32)?;
    /// assert_eq!(store.at(reader.generation())?.load("x")?.item::<i32>()?, 2);
    /// assert_eq!(store.at(1).unwrap_err().kind(), ErrorKind::Conflict); // nothing keeps the empty store
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NameNotFound` for a tag that does not exist; `Conflict` if the generation is not on disk; `Corrupt` if it is
    /// damaged; `Stale`; `Io`.
    pub fn at(&self, at: impl Into<At>) -> Result<Snapshot> {
        let generation = find(&self.loader.store, &at.into())?;
        Ok(Snapshot::new(Arc::clone(&self.loader), generation))
    }

    /// Tags the generation of this handle, so that it is kept. Sealed tensors cannot change in a tagged generation.
    /// Mutable and live tensors are changed in place: a tag keeps their storages, but not the values of their elements.
    ///
    /// The tag is a commit of its own. To tag the generation that a transaction publishes, call
    /// [`Transaction::tag`](crate::Transaction::tag).
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &1i32)?;
    /// store.tag("before")?;
    /// store.remove("x")?;
    /// assert!(store.at("before")?.contains("x")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Busy`, `Corrupt`, `LimitExceeded`, `Stale`, `ReadOnly`, `Io`, `CommitUnknown` and `Poisoned`, as for every
    /// [write](Store#errors); `NameExists`; `InvalidArgument` for a name that is empty, has a NUL or more than 4096
    /// bytes.
    pub fn tag(&self, name: &str) -> Result<()> {
        let snapshot = self.snapshot();
        self.write(|txn| txn.tag_snapshot(name, &snapshot))
    }

    /// Removes a tag, and deletes what only its generation needed. If a handle or a snapshot, in any process, holds that
    /// generation, a later commit or [`gc`](Store::gc) deletes it.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.tag("empty")?;
    /// store.untag("empty")?;
    /// assert!(store.tags()?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Busy`, `Conflict`, `Corrupt`, `Stale`, `ReadOnly`, `Io`, `CommitUnknown` and `Poisoned`, as for every
    /// [write](Store#errors); `NameNotFound`.
    pub fn untag(&self, name: &str) -> Result<()> {
        self.write(|txn| txn.untag(name))
    }

    /// Returns the tags of the newest generation, in ascending order of generation, then of name.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.write(|txn| {
    ///     txn.save("x", &1i32)?;
    ///     txn.message("the first value");
    ///     txn.tag("v1")
    /// })?;
    /// let tags = store.tags()?;
    /// assert_eq!((tags[0].name.as_str(), tags[0].generation), ("v1", 2));
    /// assert_eq!(tags[0].message.as_deref(), Some("the first value"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Corrupt` for damaged metadata; `Stale`; `Io`.
    pub fn tags(&self) -> Result<Vec<TagInfo>> {
        tags_of(&*self.loader.store.newest_of_all()?)
    }

    /// Returns the generations that are kept, the newest first: those with tags, and the newest.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &vec![1u8; 10_000])?;
    /// store.tag("v1")?;
    /// store.save("x", &vec![2u8; 20_000])?;
    /// let log = store.log()?;
    /// assert_eq!(log.iter().map(|entry| entry.own_bytes).collect::<Vec<_>>(), [20_000, 10_000]);
    /// assert_eq!(log[1].tags, ["v1"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Corrupt` for damaged metadata; `Stale`; `Io`.
    pub fn log(&self) -> Result<Vec<LogEntry>> {
        let newest = self.loader.store.newest_of_all()?;
        let mut entries: BTreeMap<u64, LogEntry> = BTreeMap::new();
        let storages = LoggedStorages::of(&self.loader.store, &newest)?;
        let own = storages.own_bytes();
        for TagInfo { name, generation, time, message } in tags_of(&newest)? {
            let entry = entries.entry(generation).or_insert_with(|| LogEntry {
                generation,
                time,
                message: None,
                tags: Vec::new(),
                own_bytes: own.get(&generation).copied().unwrap_or_default(),
            });
            entry.tags.push(name);
            entry.message = entry.message.take().or(message);
        }
        let is_own = |&&(id, _): &&(u64, u64)| storages.before(newest.number(), id).next().is_none();
        let own =
            storages.newest.iter().filter(is_own).fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
        let manifest = newest.manifest();
        let entry = entries.entry(newest.number()).or_insert_with(|| LogEntry {
            generation: newest.number(),
            time: time_of(manifest.time_ns),
            message: manifest.message.clone(),
            tags: Vec::new(),
            own_bytes: 0,
        });
        entry.own_bytes = own;
        Ok(entries.into_values().rev().collect())
    }

    /// Restores the names, headers and attributes of a snapshot of this store. No element is copied. Names that the
    /// snapshot does not have are removed. Tags stay as they are. To restore a part, call
    /// [`Transaction::restore`](crate::Transaction::restore).
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &1i32)?;
    /// store.tag("v1")?;
    /// store.save("x", &2i32)?;
    /// store.restore(&store.at("v1")?)?;
    /// assert_eq!(store.load("x")?.item::<i32>()?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Busy`, `Conflict`, `Corrupt`, `LimitExceeded`, `Stale`, `ReadOnly`, `Io`, `CommitUnknown` and `Poisoned`, as
    /// for every [write](Store#errors); `InvalidArgument` for a snapshot of a different store.
    pub fn restore(&self, snapshot: &Snapshot) -> Result<()> {
        self.write(|txn| txn.restore(snapshot, ""))
    }

    /// Removes the tags that a policy does not keep, in one commit, and returns them. What only they kept is deleted as by
    /// [`untag`](Store::untag). `is_candidate` says for each name whether the policy is about it; other tags stay.
    ///
    /// ```
    /// # use stridemap::Store;
    /// use stridemap::history::Retention;
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// for step in 0..5 {
    ///     store.write(|txn| {
    ///         txn.save("x", &step)?;
    ///         txn.tag(&format!("step{step}"))
    ///     })?;
    /// }
    /// let removed = store.retain(&Retention { keep_last: Some(2), ..Retention::default() }, |_| true)?;
    /// assert_eq!(removed.iter().map(|tag| &tag.name[..]).collect::<Vec<_>>(), ["step0", "step1", "step2"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Busy`, `Conflict`, `Corrupt`, `Stale`, `ReadOnly`, `Io`, `CommitUnknown` and `Poisoned`, as for every
    /// [write](Store#errors); `InvalidArgument` for a policy without a rule, or with a count of 0.
    pub fn retain(&self, policy: &Retention, is_candidate: impl Fn(&str) -> bool) -> Result<Vec<TagInfo>> {
        let mut txn = self.begin_exclusive()?;
        let removed = policy.removes(tags_of(txn.base())?, is_candidate)?;
        for tag in &removed {
            txn.untag(&tag.name)?;
        }
        txn.commit()?;
        Ok(removed)
    }

    /// Returns how many bytes of storages only the generations of these tags have, so that removing all of them frees
    /// this space. Names that are not tags are ignored.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.save("x", &vec![1u8; 10_000])?;
    /// store.tag("v1")?;
    /// assert_eq!(store.freed_without(&["v1"])?, 0);
    /// store.remove("x")?;
    /// assert_eq!(store.freed_without(&["v1"])?, 10_000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Corrupt` for damaged metadata; `Stale`; `Io`.
    pub fn freed_without(&self, tags: &[&str]) -> Result<u64> {
        let newest = self.loader.store.newest_of_all()?;
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        for name in tags {
            if let Some(tag) = newest.tag(name)? {
                *counts.entry(tag.generation).or_default() += 1;
            }
        }
        let mut removed = BTreeSet::new();
        for entry in newest.tagged(0)? {
            let (generation, kept) = entry?;
            if counts.get(&generation).is_some_and(|count| *count == kept.tag_count) {
                removed.insert(generation);
            }
        }
        let storages = LoggedStorages::of(&self.loader.store, &newest)?;
        let mut freed = 0u64;
        for &(id, dropped, bytes) in &storages.kept {
            let mut with = storages.before(dropped, id).peekable();
            // One that no tag has waits for a collection.
            if with.peek().is_some() && with.all(|generation| removed.contains(&generation)) {
                freed = freed.saturating_add(bytes);
            }
        }
        Ok(freed)
    }
}

impl Snapshot {
    /// Returns when the generation was published, by the clock of the machine that did it.
    ///
    /// ```
    /// # use stridemap::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// assert!(store.snapshot().time().elapsed()?.as_secs() < 3600);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn time(&self) -> SystemTime {
        time_of(self.pinned_generation().manifest().time_ns)
    }

    /// Returns what the user said about the generation: see [`Transaction::message`](crate::Transaction::message).
    #[must_use]
    pub fn message(&self) -> Option<&str> {
        self.pinned_generation().manifest().message.as_deref()
    }
}

fn tags_of(newest: &Generation) -> Result<Vec<TagInfo>> {
    let times = newest.tagged(0)?.map(|entry| entry.map(|(generation, kept)| (generation, kept.time_ns)));
    let times: BTreeMap<u64, i64> = times.collect::<Result<_>>()?;
    let mut tags = Vec::new();
    for tag in newest.tags()? {
        let (name, tag) = tag?;
        let time = time_of(times.get(&tag.generation).copied().unwrap_or_default());
        tags.push(TagInfo { name, generation: tag.generation, time, message: tag.message });
    }
    // The names ascend already, and the sort keeps the order of equal ones.
    tags.sort_by_key(|tag| tag.generation);
    Ok(tags)
}

/// The storages that generations in the log have.
struct LoggedStorages {
    /// Those of the newest generation: the id and the bytes.
    newest: Vec<(u64, u64)>,
    /// Those that only tagged generations have: the id, the generation that dropped it, and its bytes.
    kept: Vec<(u64, u64, u64)>,
    tagged: TaggedGenerations,
}

impl LoggedStorages {
    fn of(store: &OpenStore, newest: &Generation) -> Result<Self> {
        let (mut storages, mut kept, mut restored) = (Vec::new(), Vec::new(), Vec::new());
        let is_external = |record: &StorageRecord| matches!(record.kind, RecordKind::External(_));
        for entry in newest.storages()? {
            let (id, record) = entry?;
            restored.extend(record.is_restored.then_some(id));
            storages.extend((!is_external(&record)).then_some((id, record.length_bytes)));
        }
        let start = GarbageKey { is_tagged: true, dropped: 0, id: 0 };
        for entry in newest.entries().scan::<GarbageEntry>(Some(&start))? {
            let (GarbageKey { dropped, id, .. }, record) = entry?;
            restored.extend(record.is_restored.then_some(id));
            kept.extend((!is_external(&record)).then_some((id, dropped, record.length_bytes)));
        }
        let mut tagged = TaggedGenerations::list(newest)?;
        tagged.find_restored(store, newest, &restored, &[])?;
        Ok(LoggedStorages { newest: storages, kept, tagged })
    }

    /// Returns the tagged generations before another one that have a storage.
    fn before(&self, generation: u64, id: u64) -> impl Iterator<Item = u64> {
        self.tagged.with_storage(id).take_while(move |&tagged| tagged < generation)
    }

    /// Returns how many bytes of storages each tagged generation has that no other kept generation has.
    fn own_bytes(&self) -> BTreeMap<u64, u64> {
        let mut own = BTreeMap::new();
        for &(id, dropped, bytes) in &self.kept {
            let mut with = self.before(dropped, id);
            if let (Some(only), None) = (with.next(), with.next()) {
                let sum = own.entry(only).or_insert(0u64);
                *sum = sum.saturating_add(bytes);
            }
        }
        own
    }
}

fn time_of(time_ns: i64) -> SystemTime {
    let since_1970 = Duration::from_nanos(time_ns.unsigned_abs());
    let time = if time_ns < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(since_1970)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(since_1970)
    };
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}
