//! The named steps of the protocol. A test can leave one out and show what is then lost.
//!
//! Without the `simulation` feature no step can be left out, and the compiled code contains no trace of this.

use super::Disk;

macro_rules! steps {
    ($($(#[$doc:meta])+ $step:ident,)+) => {
        /// A step of the protocol: a sync, a rename, a lock, or a check that another process may have invalidated.
        /// The documentation of each says what it prevents.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Step {
            $($(#[$doc])+ $step,)+
        }

        #[cfg(feature = "simulation")]
        impl Step {
            /// All steps.
            pub const ALL: &[Step] = &[$(Step::$step,)+];
        }
    };
}

steps! {
    // Creating a store.
    /// A file of a new store becomes durable before its name. Otherwise the name could exist with an empty file.
    SyncNewFile,
    /// A file of a new store gets its name once it is whole.
    RenameNewFile,
    /// The name of the first manifest becomes durable. Otherwise the store could have no generation.
    SyncNewMeta,
    /// The names in a directory that becomes a store become durable before FORMAT makes it one. Otherwise the store
    /// could lack a part.
    SyncNewNames,
    /// The names in a new store's directory become durable. Otherwise the directory may not be a store.
    SyncNewRoot,
    /// A new store gets its path once it is whole.
    RenameStore,
    /// The name of a new store becomes durable. Otherwise the store could disappear.
    SyncParent,

    // Concurrent writers.
    /// The exclusive lock on LOCK. Otherwise two writers could use one number for two generations, and one id for two
    /// storages.
    LockWriters,
    /// LOCK is still the file that was locked. Otherwise two writers could each hold the lock of a different file.
    LockIsNamed,
    /// `meta/` and `storages/` are still the directories that the handle holds. Otherwise a commit could write to a
    /// directory that no other process reads.
    DirsAreNamed,
    /// The manifest that the handle knows is still the file with that name. Otherwise a commit could build on a
    /// generation of another store, or of an older copy of this one.
    KnownIsNamed,
    /// The newest generation is found under the lock. Otherwise a commit could build on one that is not the newest.
    NewestUnderLock,
    /// Changes are repeated on a newer generation. Otherwise they could undo another commit's changes.
    Rebase,
    /// The newest generation is the one that the transaction allows, if it allows only one.
    ExpectedGeneration,
    /// The storage that a view refers to still exists. Otherwise its header would refer to nothing.
    ExpectedStorage,
    /// A storage has not changed since rows were appended to it. Where locks work, its lock ensures this.
    GrownIsAsBefore,
    /// A storage has not changed since its copy was planned. Otherwise a name could return to its state before
    /// another commit.
    MoveIsUpToDate,
    /// The newest generation is found under the lock by a process that builds on it. A listing during a commit may
    /// show an older one.
    CertainNewest,
    /// A file gets a name only if that is free, and replaces nothing. This still protects the store if LOCK was
    /// replaced while held.
    NeverReplace,
    /// A handle does not write again after a failed sync: a second sync may succeed although data was lost.
    Poison,

    // Commits with and without syncs.
    /// A writer that does not sync marks the store. Otherwise no other process knows that there is something to sync.
    MarkUnsynced,
    /// A writer that builds on the first generation makes the store's own name durable. The creator may have died
    /// before it did.
    SyncCreation,
    /// A writer that syncs makes durable what other writers did not sync. Otherwise its commit could build on data
    /// that a power cut takes.
    SyncFileSystem,
    /// A writer that syncs does so also for a directory of the store on a separate file system.
    SyncMounts,

    // The files of a commit.
    /// The bytes of a storage become durable. Otherwise its record could be longer than the file.
    SyncStorage,
    /// Chunk digests become durable. Otherwise `verify` could find them missing.
    SyncDigests,
    /// A storage gets its name.
    RenameStorage,
    /// Its chunk digests get their name.
    RenameDigests,
    /// A file that an aborted commit left is replaced. Otherwise no other commit could be made.
    ReplaceOrphan,
    /// Such a file is deleted even if nothing replaces it. Otherwise it stays unused until a collection.
    RemoveOrphan,
    /// A file that is adopted is still unchanged. Otherwise the record could have a stamp that does not match the
    /// elements.
    AdoptedIsUnchanged,
    /// An adopted file is still the one that the record describes. Otherwise reads could return different elements
    /// from those that were saved.
    ExternalIsSame,
    /// The source is unchanged after a reflink, which copies it at one moment. So that moment is the one that was
    /// checked.
    SharedIsUnchanged,
    /// The names in `storages/` become durable, including removals. Otherwise a tensor could have no storage, or a
    /// file no record.
    SyncStoragesDir,
    /// The bytes of a table become durable.
    SyncTable,
    /// A table gets its name.
    RenameTable,
    /// The name of a table becomes durable before that of a manifest that refers to it. Of two names, a power cut may
    /// keep either.
    SyncTableName,
    /// The bytes of a manifest become durable. Otherwise the newest manifest could be empty.
    SyncManifest,
    /// A manifest is pinned before it has its name, in place of the lock of an unfinished file.
    PinPublished,
    /// A manifest gets its name, which publishes it.
    RenameManifest,
    /// The name of a manifest becomes durable: the durability point.
    SyncManifestName,

    // Readers.
    /// A reader locks its manifest. Otherwise the files that it needs could be collected.
    PinManifest,
    /// A manifest still has its name after it is locked. Otherwise a collector was faster.
    PinIsNamed,
    /// A listing is used only if a second one agrees with it: a commit during a listing may hide the newest
    /// generation.
    ListAgain,
    /// A check whether a storage is in use ignores a listing with an older generation than is known, for the same
    /// reason.
    KnownIsNewer,

    // Collection.
    /// The name of a newest generation that may not be durable becomes durable before a collection deletes what it
    /// replaced. A power cut could otherwise take it back.
    SyncBeforeCollection,
    /// An older manifest is deleted only if no process holds it.
    LockOlderManifest,
    /// A held generation keeps its storages from deletion.
    PinnedHoldsBack,
    /// A manifest that cannot be read keeps all storages and tables from deletion.
    UnreadHoldsBack,
    /// A storage with a record is not garbage, whatever the garbage list says. A storage that a commit is about to
    /// drop has a record until then.
    GarbageIsGarbage,
    /// The tables of held generations are kept.
    PinnedTables,
    /// A collection keeps the storages of held generations.
    PinnedStorages,
    /// An unfinished file is deleted only if no process is writing it.
    StageIsAbandoned,

    // Growth.
    /// Only one process appends at a time, and no process cuts off bytes that are being written.
    LockGrowth,
    /// The storage still has its name when it is locked. Otherwise rows could be written to a deleted file.
    GrowthIsNamed,
    /// The storage is as long as its record says. Otherwise an append would hide the damage.
    GrowthIsWhole,
    /// The storage has one name. Otherwise a file under another name would grow too.
    GrowthHasOneName,
    /// The last bytes of the storage are those that were sealed. Otherwise damaged bytes would get a valid digest.
    TailIsWhole,
    /// The bytes to be written are not borrowed anywhere in this process.
    KeepStable,
    /// The bytes of a storage that has grown become durable.
    SyncGrown,
    /// The digests of chunks that became full become durable.
    SyncGrownDigests,
    /// The first chunk digests of a storage that has grown get their name.
    RenameGrownDigests,

    // Storages that are changed in place.
    /// A process that changes a storage has exclusive access.
    LockGuard,
    /// The file is the one that was loaded. Otherwise a different storage would be changed.
    InPlaceIsSame,
    /// The file has one name. Otherwise a file under another name would be changed too.
    InPlaceHasOneName,
    /// A tensor still refers to the storage. Otherwise what is written is lost.
    InPlaceIsInUse,
    /// The file is as long as its record says. Otherwise access to a mapping of it could end the process.
    InPlaceIsWhole,
    /// Written bytes become durable, through the file that they were written through.
    SyncInPlace,
    /// Written bytes also become durable through the file that was loaded, which reports data lost before the other
    /// file was opened.
    SyncLoaded,
    /// The name of the generation in which a flushed storage was found becomes durable. Its writer may have died
    /// before that.
    SyncFlushedName,
    /// A storage is not flushed again after a failed flush: a second flush may succeed although data was lost.
    FlushOnce,
    /// An open file is flushed by one thread at a time: if two flushes run at the same time, only one learns of lost
    /// data.
    FlushAlone,
}

impl Step {
    /// Whether the step is taken: always, unless the disk can leave steps out.
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

    /// Runs the step.
    #[inline]
    pub(crate) fn on<E>(self, disk: &dyn Disk, act: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        if self.is_taken(disk) { act() } else { Ok(()) }
    }

    /// Runs the step's check. Returns true if the step is left out.
    #[inline]
    pub(crate) fn holds(self, disk: &dyn Disk, check: impl FnOnce() -> bool) -> bool {
        !self.is_taken(disk) || check()
    }

    /// Takes the step's lock. Returns true if the step is left out.
    #[inline]
    pub(crate) fn locks<E>(self, disk: &dyn Disk, lock: impl FnOnce() -> Result<bool, E>) -> Result<bool, E> {
        if self.is_taken(disk) { lock() } else { Ok(true) }
    }
}
