//! Power cuts on real file systems: an image on a loop device is told to drop everything unwritten, and is mounted
//! again.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use stridemap::{DType, Durability, Store, StoreOptions};
use tempfile::TempDir;

use crate::random::Random;
use crate::run::{STARTING, is_root, output, role, scaled, skip, spawn, stridemap, try_output};
use crate::script::draw;
use crate::template::{Content, assert_no_leftovers, bytes, content, matching_content};

/// An image of a file system, and its mount point.
struct Image {
    dir: TempDir,
    is_mounted: bool,
}

impl Image {
    /// Returns `None`, and prints the reason, if it cannot be created or mounted.
    fn make(kind: &str, size_bytes: u64) -> Option<Image> {
        if !is_root() {
            return None;
        }
        // In memory if possible. The image keeps what the file system has written to it.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        fs::create_dir(dir.path().join("mounted")).unwrap();
        File::create(dir.path().join("image")).unwrap().set_len(size_bytes).unwrap();
        let mut command = Command::new(format!("mkfs.{kind}"));
        let made = try_output(command.arg("-q").arg(dir.path().join("image")));
        let mut image = Image { dir, is_mounted: false };
        if !made.as_ref().is_ok_and(|made| made.status.success()) || !image.mount() {
            skip("STRIDEMAP_REQUIRE_ROOT", &format!("no {kind} can be made and mounted here: {made:?}"));
            return None;
        }
        Some(image)
    }

    fn mounted(&self) -> PathBuf {
        self.dir.path().join("mounted")
    }

    fn mount(&mut self) -> bool {
        let mut command = Command::new("mount");
        let mounted =
            output(command.args(["-o", "loop"]).arg(self.dir.path().join("image")).arg(self.mounted()));
        self.is_mounted = mounted.status.success();
        if !self.is_mounted {
            println!("{mounted:?}");
        }
        self.is_mounted
    }

    /// Cuts the power: from here on nothing is written, not even pending writes.
    fn cut(&self) {
        // The FS_IOC_SHUTDOWN ioctl of ext4 and XFS, and its flag to leave the journal unwritten.
        const SHUTDOWN: libc::c_ulong = 0x8004_587d;
        let without_log = 2u32;
        let root = File::open(self.mounted()).unwrap();
        // SAFETY: the call reads a number through the pointer, which points to a live value.
        let done = unsafe { libc::ioctl(root.as_raw_fd(), SHUTDOWN, &raw const without_log) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }

    /// Unmounts. Retries, because a child process started by another test may briefly hold open files here.
    fn unmount(&mut self) {
        let done = (0..200).any(|_| {
            let done = output(Command::new("umount").arg(self.mounted())).status.success();
            if !done {
                sleep(Duration::from_millis(10));
            }
            done
        });
        assert!(done, "the image stays mounted");
        self.is_mounted = false;
    }

    fn restore_power(&mut self) {
        self.unmount();
        assert!(self.mount());
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if self.is_mounted {
            let _ = try_output(Command::new("umount").arg("-l").arg(self.mounted()));
        }
    }
}

/// A directory that is also mounted at a second path.
struct Bind(PathBuf);

impl Bind {
    fn new(from: &Path, to: &Path) -> Self {
        let bound = output(Command::new("mount").arg("--bind").arg(from).arg(to));
        assert!(bound.status.success(), "{bound:?}");
        Bind(to.to_owned())
    }
}

impl Drop for Bind {
    fn drop(&mut self) {
        let _ = try_output(Command::new("umount").arg("-l").arg(&self.0));
    }
}

/// The commits that a writer reported.
struct Told {
    /// The number before the power cut: these must survive.
    before: usize,
    /// The number in total. A sync during the cut can still succeed: the ioctl takes time, and makes the kernel forget
    /// the writes that the sync would have waited for. In a real power cut, no process would be left to receive that
    /// result.
    in_all: usize,
}

impl Told {
    /// Returns the possible numbers of commits in the store. It may also hold the commit in progress.
    fn allowed(&self) -> RangeInclusive<usize> {
        self.before..=self.in_all + 1
    }
}

/// Commits in another process until the power is cut, at a random moment after its first commit.
fn commit_until_cut(image: &Image, how: &str, chance: &mut Random) -> Told {
    let path = image.mounted().join("s.smap");
    let mut command = role(&format!("commit {how}"), &path);
    let mut writer = spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()));
    let lines = BufReader::new(writer.stdout.take().unwrap()).lines();
    let told = AtomicUsize::new(0);
    let told = thread::scope(|scope| {
        let listener = scope.spawn(|| {
            for line in lines.map(|line| line.unwrap()) {
                assert!(!line.starts_with("! wrong"), "{line}");
                if let Some(number) = line.strip_prefix("> ") {
                    told.store(number.parse().unwrap(), Ordering::SeqCst);
                }
            }
        });
        while told.load(Ordering::SeqCst) == 0 && !listener.is_finished() {
            sleep(Duration::from_millis(1));
        }
        sleep(Duration::from_micros(chance.below(200_000) as u64));
        let before = told.load(Ordering::SeqCst);
        image.cut();
        listener.join().unwrap();
        Told { before, in_all: told.load(Ordering::SeqCst) }
    });
    let ended = writer.wait_with_output().unwrap();
    assert!(ended.status.success() && told.before > 0, "{ended:?}");
    told
}

/// Returns the content of the store after the first `count` commits of a seed.
fn after(seed: u64, before: &Content, count: usize) -> Content {
    let (mut chance, mut model) = (Random::new(seed), before.clone());
    (0..count).for_each(|_| drop(draw(&mut chance, &mut model)));
    model
}

fn create(path: &Path) {
    let store = Store::create(path).unwrap();
    store.save("saved.0", &bytes(1000, 0)).unwrap();
    store.create_growable("log", DType::U8, &[0], 0).unwrap();
}

fn check_acknowledged_commits(kind: &str, size_bytes: u64, cuts: usize) {
    let Some(mut image) = Image::make(kind, size_bytes) else { return };
    let path = image.mounted().join("s.smap");
    create(&path);
    let mut chance = Random::new(Random::seed(kind));
    let mut before = content(&path).unwrap();
    let (mut commits, mut in_flight, mut gone) = (0, 0, 0);
    for cut in 0..cuts {
        let seed = chance.below(1u64 << 40);
        let told = commit_until_cut(&image, &seed.to_string(), &mut chance);
        image.restore_power();
        let mut allowed: Vec<Content> = told.allowed().map(|count| after(seed, &before, count)).collect();
        let what =
            format!("{kind}, cut {cut}, seed {seed}, told of {} and {} commits", told.before, told.in_all);
        let found = matching_content(&path, &allowed.iter().collect::<Vec<_>>(), &what);
        commits += told.before;
        in_flight += usize::from(found > 0);
        gone += usize::from(told.before + found < told.in_all);
        before = allowed.swap_remove(found);
        // The next commit by the executable, and a collection.
        for args in
            [&["view", "s.smap", "saved.0", "next"][..], &["rm", "s.smap", "next"], &["compact", "s.smap"]]
        {
            let args = if before.contains_key("saved.0") { args } else { &["compact", "s.smap"] };
            let done = output(&mut stridemap(&image.mounted(), args));
            assert!(done.status.success(), "{what}: then {args:?}: {done:?}");
        }
        let _shared = STARTING.read().unwrap();
        assert_no_leftovers(&path, &what);
    }
    println!(
        "{kind}: {cuts} cuts, {commits} commits acknowledged before them, all there; later ones as well after {in_flight}; \
         {gone} took one away that was told of while they came"
    );
}

fn cuts() -> usize {
    scaled("STRIDEMAP_TEST_POWER_CUTS", 6)
}

#[test]
fn real_power_cut_on_ext4_loses_no_acknowledged_commit() {
    check_acknowledged_commits("ext4", 96 << 20, cuts());
}

#[test]
fn real_power_cut_on_xfs_loses_no_acknowledged_commit() {
    check_acknowledged_commits("xfs", 320 << 20, cuts().div_ceil(10));
}

/// A sync of one file system does not sync the other.
#[test]
fn real_power_cut_loses_nothing_if_storages_are_on_a_separate_file_system() {
    let make = || Image::make("ext4", 96 << 20);
    let (Some(mut metadata), Some(mut data)) = (make(), make()) else { return };
    let path = metadata.mounted().join("s.smap");
    Store::create(&path).unwrap();
    let bind = Bind::new(&data.mounted(), &path.join("storages"));
    let unsynced = StoreOptions::new().durability(Durability::Process).open(&path).unwrap();
    unsynced.save("unsynced", &bytes(3_000_000, 1)).unwrap();
    drop(unsynced);
    Store::open(&path).unwrap().save("synced", &bytes(3_000_000, 2)).unwrap();
    let before = content(&path).unwrap();
    data.cut();
    metadata.cut();
    drop(bind);
    data.restore_power();
    metadata.restore_power();
    let _bind = Bind::new(&data.mounted(), &path.join("storages"));
    assert_eq!(Store::open(&path).unwrap().verify(|_| ()).unwrap().findings, []);
    assert!(content(&path).unwrap() == before);
}

/// Checks that these cuts lose data: without syncs, commits are lost.
#[test]
fn real_power_cut_loses_commits_that_were_not_synced() {
    let mut chance = Random::new(Random::seed("unsynced"));
    let mut lost = 0;
    let rounds = cuts().min(10);
    for _ in 0..rounds {
        // A new image each time, because a cut may damage it.
        let Some(mut image) = Image::make("ext4", 96 << 20) else { return };
        let path = image.mounted().join("s.smap");
        create(&path);
        let before = content(&path).unwrap();
        let seed = chance.below(1u64 << 40);
        let told = commit_until_cut(&image, &format!("unsynced {seed}"), &mut chance);
        image.restore_power();
        let _shared = STARTING.read().unwrap();
        let is_kept = |found: Content| told.allowed().any(|count| after(seed, &before, count) == found);
        lost += usize::from(!content(&path).is_ok_and(is_kept));
    }
    assert!(lost > 0, "{rounds} cuts lost no commit");
    println!("unsynced: {lost} of {rounds} cuts took commits away");
}
