//! Power cuts: what may survive one, and the disk that it leaves.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;

use super::file::{File, Kept};
use super::world::{Inode, World};
use super::{Op, SimulatedDisk};

/// The simplest outcomes of a power cut: which kinds of unsynced changes survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub(crate) enum Outcome {
    /// All unsynced changes survive.
    EverythingKept,
    /// No unsynced change survives.
    EverythingLost,
    /// Names survive, but not bytes and lengths.
    NamesKept,
    /// Bytes and lengths survive, but not names.
    DataKept,
    /// Only one name change survives, given by its index among the pending ones, and no bytes or lengths.
    OneNameKept(usize),
}

/// The unsynced changes to names, lengths and blocks that survive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Survivors {
    /// Whether each pending name change survives, in order.
    pub(super) names: Vec<bool>,
    /// The unsynced files that have a name. Any other file keeps its durable bytes.
    pub(super) files: BTreeMap<Inode, Kept>,
}

/// The possible outcomes of a power cut, each once.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub(crate) struct Possible {
    /// Each outcome with a fingerprint of the disk that is left. Disks with the same contents have the same
    /// fingerprint.
    pub(crate) survivors: Vec<(Survivors, u64)>,
    /// Whether these are all outcomes.
    pub(crate) is_complete: bool,
}

/// The moment before a power cut.
#[derive(Clone, Debug)]
pub(crate) struct PowerCut {
    pub(super) world: World,
}

/// With more pending name changes than this, not every combination is listed.
const MAX_NAMES: usize = 20;

impl PowerCut {
    /// Applies one more operation before the power cut.
    pub(crate) fn apply(&mut self, op: &Op) {
        self.world.apply(op);
    }

    /// Returns the number of pending name changes.
    #[must_use]
    pub(crate) fn pending_names(&self) -> usize {
        self.world.pending.len()
    }

    /// Returns the disk that the power cut leaves.
    #[must_use]
    pub(crate) fn disk(&self, survivors: &Survivors) -> SimulatedDisk {
        SimulatedDisk::of(self.world.cut(survivors))
    }

    /// Returns the disk if every process is killed but the power stays on: nothing is lost, nothing is synced, and no
    /// process holds a lock.
    #[must_use]
    pub(crate) fn disk_after_kill(&self) -> SimulatedDisk {
        SimulatedDisk::of(self.world.clone())
    }

    /// Returns every outcome if there are at most `most`, otherwise the extremes and a random choice of the others.
    /// `draw` returns a number below its argument.
    #[must_use]
    pub(crate) fn possible(&self, most: usize, draw: &mut dyn FnMut(usize) -> usize) -> Possible {
        if let Some(survivors) = self.all(most) {
            return Possible { survivors, is_complete: true };
        }
        let (mut found, mut seen) = (Vec::new(), HashSet::new());
        let mut add = |survivors: Survivors| {
            let fingerprint = self.world.cut(&survivors).fingerprint();
            if found.len() < most && seen.insert(fingerprint) {
                found.push((survivors, fingerprint));
            }
        };
        let names = self.pending_names();
        for outcome in
            [Outcome::EverythingKept, Outcome::EverythingLost, Outcome::NamesKept, Outcome::DataKept]
        {
            add(self.simple(outcome));
        }
        for one in 0..names {
            for is_kept in [true, false] {
                let kept: Vec<bool> = (0..names).map(|at| (at == one) == is_kept).collect();
                add(self.with_names(kept.clone(), |_, versions| versions - 1));
                add(self.with_names(kept, |_, _| 0));
            }
        }
        (0..most).for_each(|_| add(self.random(draw)));
        Possible { survivors: found, is_complete: false }
    }

    /// Returns a random outcome. `draw` returns a number below its argument.
    #[must_use]
    pub(crate) fn random(&self, draw: &mut dyn FnMut(usize) -> usize) -> Survivors {
        let count = self.pending_names();
        let names = match draw(4) {
            // As with a journal: the changes before some moment survive.
            0 => {
                let kept = draw(count + 1);
                (0..count).map(|at| at < kept).collect()
            }
            1 => {
                let (one, is_kept) = (draw(count.max(1)), draw(2) == 0);
                (0..count).map(|at| (at == one) == is_kept).collect()
            }
            _ => (0..count).map(|_| draw(2) == 0).collect(),
        };
        let style = draw(4);
        self.with_names(names, |_, versions| match style {
            0 => versions - 1,
            1 => 0,
            _ => draw(versions),
        })
    }

    /// Keeps these name changes. For each length and block, `choose` returns the version to keep, given the number of
    /// versions.
    fn with_names(&self, names: Vec<bool>, mut choose: impl FnMut(&File, usize) -> usize) -> Survivors {
        let files = self.unsynced(&names).into_iter().map(|(inode, file)| {
            let length = choose(file, file.length_versions());
            let blocks = file.dirty_blocks(file.length_of(length));
            (inode, Kept { length, blocks: blocks.map(|(_, versions)| choose(file, versions)).collect() })
        });
        let files = files.collect();
        Survivors { names, files }
    }

    pub(super) fn simple(&self, outcome: Outcome) -> Survivors {
        let keeps = |at: usize| match outcome {
            Outcome::EverythingKept | Outcome::NamesKept => true,
            Outcome::OneNameKept(one) => at == one,
            Outcome::EverythingLost | Outcome::DataKept => false,
        };
        let keeps_data = matches!(outcome, Outcome::EverythingKept | Outcome::DataKept);
        let names = (0..self.pending_names()).map(keeps).collect();
        self.with_names(names, |_, versions| if keeps_data { versions - 1 } else { 0 })
    }

    /// Returns the unsynced files that have a name after these changes.
    fn unsynced(&self, names: &[bool]) -> BTreeMap<Inode, &File> {
        let dirs = self.world.cut_names(names);
        let named = dirs.values().flat_map(|dir| dir.live.values());
        let files = named.filter_map(|inode| Some((*inode, &**self.world.files.get(inode)?)));
        files.filter(|(_, file)| !file.is_synced()).collect()
    }

    fn all(&self, most: usize) -> Option<Vec<(Survivors, u64)>> {
        let count = self.pending_names();
        if count > MAX_NAMES || 1 << count > 4 * most {
            return None;
        }
        let (mut found, mut seen) = (Vec::new(), HashSet::new());
        for mask in 0..1usize << count {
            let names: Vec<bool> = (0..count).map(|at| mask >> at & 1 == 1).collect();
            let files = self.unsynced(&names);
            let options: Option<Vec<_>> =
                files.into_iter().map(|(inode, file)| Some((inode, versions_of(file, most)?))).collect();
            let options = options?;
            let product =
                options.iter().try_fold(1usize, |n, (_, versions)| n.checked_mul(versions.len()))?;
            if product > most {
                return None;
            }
            for number in 0..product {
                let mut rest = number;
                let mut pick = |versions: &Vec<Kept>| {
                    let picked = versions.get(rest % versions.len()).cloned().unwrap_or_default();
                    rest /= versions.len();
                    picked
                };
                let files = options.iter().map(|(inode, versions)| (*inode, pick(versions))).collect();
                let survivors = Survivors { names: names.clone(), files };
                let fingerprint = self.world.cut(&survivors).fingerprint();
                if seen.insert(fingerprint) {
                    found.push((survivors, fingerprint));
                }
                if found.len() > most {
                    return None;
                }
            }
        }
        Some(found)
    }

    /// Describes what survives.
    #[must_use]
    pub(crate) fn describe(&self, survivors: &Survivors) -> String {
        let mut text = String::new();
        for ((_, changes), is_kept) in self.world.pending.iter().zip(&survivors.names) {
            let names: Vec<String> = changes
                .iter()
                .map(|(name, to)| match to {
                    Some(inode) => format!("{name} = file {inode}"),
                    None => format!("no {name}"),
                })
                .collect();
            let _ = write!(text, "{} [{}]; ", if *is_kept { "kept" } else { "lost" }, names.join(", "));
        }
        for (inode, kept) in &survivors.files {
            let Some(file) = self.world.files.get(inode) else { continue };
            let length = file.length_of(kept.length);
            let _ = write!(text, "file {inode}: {length} bytes");
            for ((number, versions), version) in file.dirty_blocks(length).zip(&kept.blocks) {
                let _ = write!(text, ", block {number} version {version} of {}", versions - 1);
            }
            text.push_str("; ");
        }
        text
    }
}

/// Returns every version of a file, or `None` if there are more than `most`.
fn versions_of(file: &File, most: usize) -> Option<Vec<Kept>> {
    let mut all = Vec::new();
    for length in 0..file.length_versions() {
        let mut of_length = vec![Kept { length, blocks: Vec::new() }];
        for (_, versions) in file.dirty_blocks(file.length_of(length)) {
            if of_length.len().saturating_mul(versions) > most {
                return None;
            }
            let longer = |kept: &Kept, version| {
                let mut blocks = kept.blocks.clone();
                blocks.push(version);
                Kept { length, blocks }
            };
            of_length = of_length
                .iter()
                .flat_map(|kept| (0..versions).map(move |version| longer(kept, version)))
                .collect();
        }
        all.extend(of_length);
    }
    (all.len() <= most).then_some(all)
}
