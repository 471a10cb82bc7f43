//! The changes that writers make.

use stridemap::{Error, OnExisting, StorageKind, Tensor, Transaction};

use super::content::{Content, content_of, name};
use super::diary::Count;
use super::writer::{LARGE_BYTES, Writer};

/// The approximate maximum number of tensors that every writer may change, and of large ones among them.
const MANY: usize = 120;
const MANY_LARGE: usize = 5;

/// The maximum length of a growing tensor.
const LONGEST_BYTES: usize = 6 << 20;

impl Writer<'_> {
    /// Makes some random changes.
    pub(super) fn change(&mut self, txn: &mut Transaction<'_>, is_numbered: bool) -> Result<(), Error> {
        let is_refused = self.random.one_in(8);
        txn.on_existing(if is_refused { OnExisting::Refuse } else { OnExisting::Replace });
        // Most of its reads are of all names, which others change all the time.
        let ignores_reads = !self.random.one_in(4);
        if ignores_reads {
            txn.ignore_reads();
        }
        let least = u64::from(!is_numbered);
        // Sometimes so many that a table is due.
        let count = if self.random.one_in(15) { 80 } else { least + self.random.below(6) };
        for _ in 0..count {
            let names = names_of_all(txn.names()?);
            let large = names.iter().filter(|name| is_large(name)).collect::<Vec<_>>();
            if names.len() > MANY || large.len() > MANY_LARGE {
                let name = if large.len() > MANY_LARGE {
                    large[0].clone()
                } else {
                    self.random.pick(&names).unwrap().clone()
                };
                self.diary.note(format!("  remove {name}"));
                txn.remove(&name)?;
                continue;
            }
            let from = self.random.pick(&names).cloned();
            match (self.random.below(9), from) {
                (0, Some(from)) => {
                    self.diary.note(format!("  remove {from}"));
                    txn.remove(&from)?;
                }
                (1, Some(from)) => {
                    let to = self.renumbered(&from);
                    self.diary.note(format!("  rename {from} to {to}"));
                    txn.rename(&from, &to)?;
                }
                (2, Some(from)) => {
                    let to = self.renumbered(&from);
                    self.diary.note(format!("  copy {from} to {to}"));
                    txn.copy(&from, &to)?;
                }
                (3 | 4, Some(from)) => {
                    let tensor = txn.load(&from)?;
                    let (name, view) = self.view_of(&from, &tensor);
                    self.diary.note(format!("  save view {name}"));
                    txn.save_view(&name, &view)?;
                }
                // An append is the last change: two could deadlock, and the grown tensor cannot be loaded yet.
                (5, _) => return self.append(txn, ignores_reads),
                (6, Some(from)) => {
                    self.diary.note(format!("  check {from}"));
                    // Staged by this transaction, or from the newest generation at its begin.
                    let tensor = txn.load(&from)?;
                    let compared = content_of(&from).and_then(|content| content.check(&tensor));
                    let compared = compared.unwrap_or_else(|e| panic!("{from} in a transaction: {e}"));
                    self.diary.count(Count::Elements, compared);
                }
                _ => {
                    let (name, tensor) = self.fresh();
                    self.diary.note(format!("  save {name}"));
                    if self.random.one_in(8) {
                        txn.save_as(&name, &tensor, StorageKind::Mutable)?;
                    } else {
                        txn.save(&name, &tensor)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Appends the next batches to a growing tensor, or creates one. It is this writer's own, or one that all writers
    /// append to. Another writer may append these batches to the latter first, and then the transaction must not be
    /// committed: it has read the size.
    fn append(&mut self, txn: &mut Transaction<'_>, ignores_reads: bool) -> Result<(), Error> {
        let owner = if !ignores_reads && self.random.one_in(2) {
            "any".to_owned()
        } else {
            format!("grown by {}", self.number)
        };
        let growing = txn.names()?.into_iter().filter(|name| name.starts_with(&format!("{owner}/")));
        let growing = growing.filter_map(|name| Some((content_of(&name).ok()?, name)));
        let growing: Vec<_> = growing.filter(|(content, _)| content.grows()).collect();
        if growing.len() < 2 {
            return self.begin_growing(txn, &owner);
        }
        let (content, name) = self.random.pick(&growing).unwrap();
        let batch_count = txn.load(name)?.size()[0] / content.size()[0];
        if batch_count * content.size_bytes() > LONGEST_BYTES {
            self.diary.note(format!("  remove {name}"));
            return txn.remove(name);
        }
        let more = 1 + self.random.below(4) as usize;
        self.diary.note(format!("  append {more} to {batch_count} of {name}"));
        txn.append(name, &content.tensor(batch_count, more))?;
        self.diary.count(Count::Appended, more as u64);
        Ok(())
    }

    fn begin_growing(&mut self, txn: &mut Transaction<'_>, owner: &str) -> Result<(), Error> {
        let most_bytes = if self.random.one_in(3) { 400_000 } else { 10_000 };
        let size_bytes = self.random.below(most_bytes);
        let content = Content::draw(&mut self.random, size_bytes).growing();
        let name = name(owner, &content, 0);
        self.diary.note(format!("  begin {name}"));
        if self.random.one_in(6) {
            // Large enough to get its own storage, which can grow.
            let batch_count = (LARGE_BYTES as usize).div_ceil(content.size_bytes());
            return txn.save(&name, &content.tensor(0, batch_count));
        }
        let capacity = self.random.below(2000) as usize;
        txn.create_growable(&name, content.dtype(), &[0, content.size()[1]], capacity).map(drop)
    }

    /// Returns a new tensor and its name.
    pub(super) fn fresh(&mut self) -> (String, Tensor) {
        let size_bytes = match self.random.below(60) {
            0 => LARGE_BYTES + self.random.below(LARGE_BYTES / 2),
            1..10 => self.random.below(600_000),
            _ => self.random.below(8000),
        };
        let content = Content::draw(&mut self.random, size_bytes);
        (name("any", &content, self.random.below(3)), content.tensor(0, 1))
    }

    pub(super) fn view_of(&mut self, of: &str, tensor: &Tensor) -> (String, Tensor) {
        let content = content_of(of).unwrap();
        let (content, view) = match content.view_count() {
            0..8 => content.draw_view(tensor, &mut self.random),
            _ => (content, tensor.clone()),
        };
        (name("any", &content, self.random.below(3)), view)
    }

    /// Returns a name for the same content, which may be the same name.
    pub(super) fn renumbered(&mut self, of: &str) -> String {
        name("any", &content_of(of).unwrap(), self.random.below(3))
    }
}

/// Returns the names that every writer may change.
pub(super) fn names_of_all(mut names: Vec<String>) -> Vec<String> {
    names.retain(|name| name.starts_with("any/"));
    names
}

fn is_large(name: &str) -> bool {
    content_of(name).is_ok_and(|content| content.size_bytes() as u64 >= LARGE_BYTES)
}
