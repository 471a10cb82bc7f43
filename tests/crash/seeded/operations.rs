//! The operations on a store between two power cuts.

use std::sync::Arc;

use stridemap::{DType, Durability, ErrorKind, OnExisting, StorageKind, Tensor, Transaction};

use super::episode::{End, Episode, Lived};
use super::model::{Elements, Half, Known};
use crate::random::Random;

/// The prefixes of the names of each half.
const PREFIXES: [&str; 2] = ["a.", "b."];

impl Episode {
    /// Runs one operation or one transaction.
    pub(super) fn operate(&mut self) -> Lived {
        let (handle, half) = (self.random.below(2), self.random.below(2));
        match self.random.below(32) {
            0..16 => self.transact(handle, half, Durability::Full),
            16..20 => self.transact_during_another(handle, half),
            20..23 => self.write_in_place(handle, half),
            23 => {
                let collected = self.handles[handle].gc();
                self.did("collect", collected)?;
                self.unsynced_at = None;
                self.earlier.clear();
                Ok(())
            }
            24 => self.compact(handle),
            25 => self.check_content(handle),
            26 if self.snapshots.len() < 3 => {
                self.snapshots.push(self.handles[handle].snapshot());
                Ok(())
            }
            26..28 => {
                self.snapshots.clear();
                Ok(())
            }
            28 if self.random.below(8) == 0 => self.transact(handle, half, Durability::Process),
            28..30 => {
                let opened = self.options(Durability::Full).open(crate::script::STORE);
                self.handles[handle] = self.did("open", opened)?;
                Ok(())
            }
            _ => self.read_one(handle, half),
        }
    }

    fn half(&self, half: usize) -> &Half {
        &self.model.as_ref().unwrap().halves[half]
    }

    fn transact(&mut self, handle: usize, half: usize, durability: Durability) -> Lived {
        let other;
        let handles = std::mem::take(&mut self.handles);
        let store = match durability {
            Durability::Process => {
                let opened = self.options(durability).open(crate::script::STORE);
                other = self.did("open", opened)?;
                self.unsynced_at = Some(self.disk.file_system_syncs());
                &other
            }
            _ => &handles[handle],
        };
        let ended = self.change_and_commit(store, half, durability, |_| Ok(()));
        self.handles = handles;
        ended
    }

    /// Runs a transaction that commits after a later transaction has committed.
    fn transact_during_another(&mut self, handle: usize, half: usize) -> Lived {
        let handles = std::mem::take(&mut self.handles);
        let ended = self.change_and_commit(&handles[handle], half, Durability::Full, |episode| {
            episode.change_and_commit(&handles[1 - handle], 1 - half, Durability::Full, |_| Ok(()))
        });
        self.handles = handles;
        ended
    }

    fn change_and_commit(
        &mut self,
        store: &stridemap::Store,
        half: usize,
        durability: Durability,
        meanwhile: impl FnOnce(&mut Self) -> Lived,
    ) -> Lived {
        let refreshed = store.refresh();
        self.did("refresh", refreshed)?;
        let begun = store.begin();
        let mut txn = self.did("begin", begun)?;
        txn.on_existing(OnExisting::Replace);
        let mut draft = self.half(half).clone();
        let count = match self.random.below(if self.is_wide { 4 } else { 1000 }) {
            0 => 70,
            _ => 1 + self.random.below(14),
        };
        for _ in 0..count {
            self.change(&mut txn, &mut draft, PREFIXES[half])?;
        }
        draft.tidy();
        meanwhile(self)?;
        let mut next = self.model.clone().unwrap();
        next.halves[half] = draft;
        self.in_flight = Some(next);
        let committed = txn.commit();
        self.did("commit", committed)?;
        self.acknowledge(durability);
        Ok(())
    }

    /// Applies one change to a transaction. A refusal, because of the state of the tensor, changes nothing.
    fn change(&mut self, txn: &mut Transaction<'_>, draft: &mut Half, prefix: &str) -> Lived {
        let random = &mut self.random;
        let new = if self.is_wide { random.below(90) } else { random.below(9) };
        let name = format!("{prefix}{new}");
        let some: Vec<&String> = draft.tensors.keys().collect();
        let from = some.get(random.below(some.len())).map(|name| (*name).clone());
        let kind = match (random.below(20), from) {
            (kind @ 0..10, _) | (kind, None) => (kind % 10, String::new()),
            (kind, Some(from)) => (kind, from),
        };
        let done = match kind {
            (0..7, _) => {
                let tensor = tensor(random);
                let elements = Arc::new(tensor.to_bytes().unwrap());
                let known = Known { offset: None, ..Known::of(&tensor, Elements::Sealed(elements)) };
                let saved = txn.save(&name, &tensor);
                saved.map(|()| drop(draft.tensors.insert(name, known)))
            }
            (7, _) => {
                let tensor = vector(random, 64);
                let storage = random.next();
                let saved = txn.save_as(&name, &tensor, StorageKind::Mutable);
                draft.in_place.insert(storage, vec![tensor.to_bytes().unwrap()]);
                saved.map(|()| {
                    drop(draft.tensors.insert(name, Known::of(&tensor, Elements::InPlace(storage))))
                })
            }
            (8, _) => {
                let tensor = Tensor::from_vec(Vec::<u32>::new(), &[0]).unwrap();
                let elements = Elements::Sealed(Arc::default());
                let known = Known { grows: true, ..Known::of(&tensor, elements) };
                let created = txn.create_growable(&name, DType::U32, &[0], 0);
                created.map(|_| drop(draft.tensors.insert(name, known)))
            }
            (9, _) => {
                let value = random.next().to_string();
                draft.attributes.insert(name.clone(), value.clone());
                txn.set_attribute("", &name, &value)
            }
            (10..13, from) => txn.remove(&from).map(|()| drop(draft.tensors.remove(&from))),
            (13, from) => txn.rename(&from, &name).map(|()| {
                let known = draft.tensors.remove(&from).unwrap();
                draft.tensors.insert(name, known);
            }),
            (14, from) => txn.copy(&from, &name).map(|()| {
                let known = draft.tensors[&from].clone();
                draft.tensors.insert(name, known);
            }),
            (15..18, from) => view(random, txn, draft, &from, name),
            (_, from) => match draft.tensors.iter_mut().find(|(_, known)| known.grows) {
                Some((grows, known)) => {
                    let rows = vector(random, 200);
                    txn.append(grows, &rows).map(|appended| {
                        let Elements::Sealed(elements) = &mut known.elements else {
                            panic!("{grows} is in place")
                        };
                        Arc::make_mut(elements).extend(rows.to_bytes().unwrap());
                        known.size = vec![appended.end];
                    })
                }
                None => txn.remove(&from).map(|()| drop(draft.tensors.remove(&from))),
            },
        };
        match done {
            Err(e) if matches!(e.kind(), ErrorKind::Unsupported | ErrorKind::NeedsCopy) => Ok(()),
            done => self.did("change", done),
        }
    }

    fn write_in_place(&mut self, handle: usize, half: usize) -> Lived {
        if !self.earlier.is_empty() {
            // A power cut may restore an earlier content with these elements, and the model does not follow changes
            // there.
            return Ok(());
        }
        let is_in_place = |known: &Known| matches!(known.elements, Elements::InPlace(_));
        let names =
            self.half(half).tensors.iter().filter(|(_, known)| is_in_place(known) && known.offset.is_some());
        let names: Vec<String> = names.map(|(name, _)| name.clone()).collect();
        let Some(name) = names.get(self.random.below(names.len())) else { return Ok(()) };
        let refreshed = self.handles[handle].refresh();
        self.did("refresh", refreshed)?;
        let tensor = self.handles[handle].load(name);
        let tensor = self.did("load", tensor)?;
        let locked = tensor.allow_interrupted().lock_exclusive();
        let mut guard = self.did("lock", locked)?;
        let value = self.random.next() as u32;
        // The change may be partly applied, whatever the call returns.
        self.model.as_mut().unwrap().halves[half].fill(name, value);
        let filled = guard.fill_(i64::from(value)).map(drop);
        self.did("fill", filled)?;
        if self.random.below(2) == 0 {
            let flushed = guard.flush();
            self.did("flush", flushed)?;
            self.model.as_mut().unwrap().halves[half].flushed(name);
        }
        Ok(())
    }

    fn compact(&mut self, handle: usize) -> Lived {
        self.in_flight = Some(self.model.as_ref().unwrap().relaxed());
        let compacted = self.handles[handle].compact(false, |_| ());
        self.did("compact", compacted)?;
        self.acknowledge(Durability::Full);
        self.check_content(handle)
    }

    /// Checks that a handle reads a tensor as of the newest commit.
    fn read_one(&mut self, handle: usize, half: usize) -> Lived {
        let names: Vec<String> = self.half(half).tensors.keys().cloned().collect();
        let Some(name) = names.get(self.random.below(names.len())).cloned() else { return Ok(()) };
        let refreshed = self.handles[handle].refresh();
        self.did("refresh", refreshed)?;
        let read = self.handles[handle].load(&name).and_then(|tensor| tensor.allow_interrupted().to_bytes());
        let read = self.did("read", read)?;
        match &self.half(half).tensors[&name].elements {
            Elements::Sealed(bytes) if **bytes != read => Err(End::Wrong(format!("{name} reads otherwise"))),
            _ => Ok(()),
        }
    }
}

/// Saves a view of a tensor of a transaction.
fn view(
    random: &mut Random,
    txn: &mut Transaction<'_>,
    draft: &mut Half,
    from: &str,
    name: String,
) -> stridemap::Result<()> {
    let tensor = txn.load(from)?;
    let view = match (random.below(3), tensor.size().len()) {
        (_, 0) => tensor,
        (0, 2) => tensor.t()?,
        (1, _) => tensor.flip([0])?,
        _ => tensor.slice(0, Some(random.below(3) as isize), None, 1 + random.below(3) as isize)?,
    };
    txn.save_view(&name, &view)?;
    let elements = match &draft.tensors[from].elements {
        Elements::Sealed(_) => Elements::Sealed(Arc::new(view.to_bytes()?)),
        in_place => in_place.clone(),
    };
    draft.tensors.insert(name, Known::of(&view, elements));
    Ok(())
}

/// Returns a tensor of at most `most` elements.
fn vector(random: &mut Random, most: usize) -> Tensor {
    let elements: Vec<u32> = (0..1 + random.below(most)).map(|_| random.next() as u32).collect();
    let size = [elements.len()];
    Tensor::from_vec(elements, &size).unwrap()
}

fn tensor(random: &mut Random) -> Tensor {
    match random.below(8) {
        0 => Tensor::from_vec(vec![random.next() as u8; 7], &[7]).unwrap(),
        1 => Tensor::from_vec((0..6).map(|_| random.next() as i64).collect(), &[2, 3]).unwrap(),
        2 => vector(random, 2000),
        3 => Tensor::from_vec(vec![random.next() as f32], &[]).unwrap(),
        _ => vector(random, 30),
    }
}
