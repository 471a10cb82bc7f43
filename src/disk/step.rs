//! The steps by which the protocol is right, each with a name: so that a test can leave one out, and see what is lost.
//!
//! Without the feature `simulation` nothing can be left out, and no trace of this is in what is compiled.

use super::Disk;

macro_rules! steps {
    ($($(#[$doc:meta])+ $step:ident,)+) => {
        /// A step of the protocol: a sync, a rename, a lock, or a check that somebody else may have made untrue. What is
        /// said of each is what it keeps from happening.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Step {
            $($(#[$doc])+ $step,)+
        }

        #[cfg(feature = "simulation")]
        impl Step {
            /// Every one.
            pub const ALL: &[Step] = &[$(Step::$step,)+];
        }
    };
}

steps! {
    // A store that is created.
    /// A file of a new store becomes durable before its name: else the name is there, and the file is empty.
    SyncNewFile,
    /// A file of a new store gets its name once it is whole.
    RenameNewFile,
    /// The name of the first manifest: else a store without a generation.
    SyncNewMeta,
    /// The names in a directory that becomes a store, before FORMAT says that it is one: else a store without a part of it.
    SyncNewNames,
    /// The names in a new store's directory: else a directory that is no store.
    SyncNewRoot,
    /// A new store gets its place once it is whole.
    RenameStore,
    /// The name of a new store: else it is gone.
    SyncParent,

    // Writers among themselves.
    /// The exclusive lock on LOCK: else two writers give one number to two generations, and one id to two storages.
    LockWriters,
    /// LOCK is still the file that was locked: else each of two writers holds the lock of its own file.
    LockIsNamed,
    /// `meta/` and `storages/` are still the directories that the handle holds: else a commit goes to one that nobody else
    /// reads.
    DirsAreNamed,
    /// The manifest that the handle knows is still the file that has its name: else a commit is made on a generation of
    /// another store, or of an older copy of this one.
    KnownIsNamed,
    /// The newest generation is looked for under the lock: else a commit is made on one that is not the newest.
    NewestUnderLock,
    /// Changes are made again on a newer generation: else they bring back what another commit changed.
    Rebase,
    /// The newest generation is the one that the transaction allows, if it allows but one.
    ExpectedGeneration,
    /// The storage that a view stands on is there still: else its header would stand on nothing.
    ExpectedStorage,
    /// A storage is as it was when rows were written behind it: what its lock sees to, where locks are seen.
    GrownIsAsBefore,
    /// A storage is as it was when its copy was planned: else a name goes back to what it was before another commit.
    MoveIsUpToDate,
    /// The newest generation, looked for by who builds on it, under the lock: a listing that a commit goes by may show an
    /// older one.
    CertainNewest,
    /// A file gets a name that is free, and replaces none: what is left when LOCK was replaced under its holder.
    NeverReplace,
    /// A handle of which a sync has failed writes no more: what a second sync says is not so.
    Poison,

    // Commits without syncs, and with them.
    /// Who does not sync says so: else nobody knows that there is something to sync.
    MarkUnsynced,
    /// Who builds on the first generation makes the store's own name durable: its creator may have died before it did.
    SyncCreation,
    /// Who syncs makes durable what others have not: else its commit stands on what a power cut takes.
    SyncFileSystem,
    /// The same for a directory of the store that is on a file system of its own.
    SyncMounts,

    // The files of a commit.
    /// The bytes of a storage: else its record is longer than the file.
    SyncStorage,
    /// Chunk digests: else `verify` finds them gone.
    SyncDigests,
    /// A storage gets its name.
    RenameStorage,
    /// Its chunk digests get theirs.
    RenameDigests,
    /// A file that a commit left which never came to be gives its name up: else no other commit can be made.
    ReplaceOrphan,
    /// One that has no successor goes too: else it is nobody's until a collection.
    RemoveOrphan,
    /// A file that is adopted is still what it was: else the record states a stamp that elements do not have.
    AdoptedIsUnchanged,
    /// A file that was adopted is still what the record says: else other elements are given for those that were saved.
    ExternalIsSame,
    /// A reflink is of one moment of its source, and that is the one that was looked at.
    SharedIsUnchanged,
    /// The names in `storages/`, those that went among them: else a tensor has no storage, or a file has no record.
    SyncStoragesDir,
    /// The bytes of a table.
    SyncTable,
    /// A table gets its name.
    RenameTable,
    /// The name of a table, before that of a manifest that stands on it: of two names a power cut may keep either.
    SyncTableName,
    /// The bytes of a manifest: else the newest one is empty.
    SyncManifest,
    /// A manifest is pinned before it has its name, in place of the lock of an unfinished file.
    PinPublished,
    /// A manifest gets its name, which publishes it.
    RenameManifest,
    /// The name of a manifest: the durability point.
    SyncManifestName,

    // Readers.
    /// A manifest is locked by who is on it: else what it needs is collected.
    PinManifest,
    /// It had its name still when it was locked: else a collector had been faster.
    PinIsNamed,
    /// A listing is believed when another agrees with it: a commit that goes by one may hide the newest generation.
    ListAgain,
    /// One that shows less than was known is not believed by who asks whether a storage is in use: the same.
    KnownIsNewer,

    // Collection.
    /// The name of a newest generation of unknown fate, before a collection deletes what it replaced: a power cut could
    /// take it back.
    SyncBeforeCollection,
    /// An older manifest goes when nobody holds it.
    LockOlderManifest,
    /// A generation that is held holds its storages back.
    PinnedHoldsBack,
    /// One that cannot be read holds all back.
    UnreadHoldsBack,
    /// What has a record is no garbage, whatever the list says; what a commit is about to drop has one until then.
    GarbageIsGarbage,
    /// The tables of generations that are held stay.
    PinnedTables,
    /// The storages of generations that are held stay in a collection.
    PinnedStorages,
    /// An unfinished file goes when nobody is writing it.
    StageIsAbandoned,

    // Growth.
    /// One appends at a time, and nobody cuts off what is being written.
    LockGrowth,
    /// The storage has its name still when it is locked: else rows are written into a file that is gone.
    GrowthIsNamed,
    /// It is as long as its record says: else the damage is grown over.
    GrowthIsWhole,
    /// It has one name: else what stands under another one grows too.
    GrowthHasOneName,
    /// Its last bytes are those that were sealed: else damage gets a digest of its own.
    TailIsWhole,
    /// Nobody in this process has been lent what is to be written.
    KeepStable,
    /// The bytes of a storage that has grown.
    SyncGrown,
    /// The digests of chunks that became full.
    SyncGrownDigests,
    /// The first chunk digests of a storage that has grown get their name.
    RenameGrownDigests,

    // Storages that are changed in place.
    /// Who changes one is alone.
    LockGuard,
    /// The file is the one that was loaded: else another storage is changed.
    InPlaceIsSame,
    /// It has one name: else what stands under another one is changed too.
    InPlaceHasOneName,
    /// A tensor stands on it still: else what is written is lost.
    InPlaceIsInUse,
    /// It is as long as its record says: else a mapping of it ends the process.
    InPlaceIsWhole,
    /// What was written, by the file that it was written through.
    SyncInPlace,
    /// The same by the file that was loaded, which is told of what was lost before the other was opened.
    SyncLoaded,
    /// The name of the generation that a flushed storage was found in: its writer may have died before it was durable.
    SyncFlushedName,
    /// A storage of which a flush has failed is not flushed again: what a second one says is not so.
    FlushOnce,
    /// One flush of an open file at a time: of two at once only one is told of what was lost.
    FlushAlone,
}

impl Step {
    /// Whether it is taken: always, where no disk can leave it out.
    #[inline]
    pub(crate) fn is_taken(self, disk: &dyn Disk) -> bool {
        #[cfg(feature = "simulation")]
        return !disk.omits(self);
        #[cfg(not(feature = "simulation"))]
        {
            let _ = disk;
            true
        }
    }

    /// Takes it.
    #[inline]
    pub(crate) fn on<E>(self, disk: &dyn Disk, act: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        if self.is_taken(disk) { act() } else { Ok(()) }
    }

    /// Whether what it checks is so.
    #[inline]
    pub(crate) fn holds(self, disk: &dyn Disk, check: impl FnOnce() -> bool) -> bool {
        !self.is_taken(disk) || check()
    }

    /// Whether the lock that it takes is had.
    #[inline]
    pub(crate) fn locks<E>(self, disk: &dyn Disk, lock: impl FnOnce() -> Result<bool, E>) -> Result<bool, E> {
        if self.is_taken(disk) { lock() } else { Ok(true) }
    }
}
