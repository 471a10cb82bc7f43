//! The generations that a remote had, from the newest back to the last one that was not pruned.

use std::time::SystemTime;

use stridemap::history::At;
use stridemap::replica::GenerationId;
use stridemap::{Error, ErrorKind, Result, Snapshot, Store, StoreOptions};
use stridemap_format::remote::{RemoteManifest, manifest_path};

use crate::Remote;
use crate::push::id_of;
use crate::remote::Published;

/// A remote manifest.
pub(crate) struct Link {
    pub(crate) name: String,
    /// When it was put, by the clock of the server.
    pub(crate) modified: SystemTime,
    pub(crate) manifest: RemoteManifest,
}

impl Remote {
    /// Returns a snapshot of a generation, for reading in place: that of a tag, or one by its number, until it is pruned.
    ///
    /// # Errors
    /// Those of [`store_at`](Self::store_at).
    pub fn at(&self, at: impl Into<At>) -> Result<Snapshot> {
        Ok(self.store_at(at)?.snapshot())
    }

    /// Opens a generation for reading in place: that of a tag, or one by its number, until it is pruned.
    ///
    /// # Errors
    /// Those of [`store`](Self::store); `NameNotFound` if there is no such tag; `Conflict` if the remote does not have
    /// the generation.
    pub fn store_at(&self, at: impl Into<At>) -> Result<Store> {
        let at = at.into();
        let published = self.published()?.ok_or_else(|| self.not_found())?;
        let open = |manifest: &RemoteManifest| {
            StoreOptions::new().at(at.clone()).open_files(self.files(manifest), self.location())
        };
        let found = open(&published.manifest);
        match (&found, &at) {
            (Err(e), At::Generation(number)) if e.kind() == ErrorKind::Conflict => {
                let mut links = self.links(&published);
                while let Some(link) = links.next().transpose()? {
                    if link.manifest.generation == *number {
                        return open(&link.manifest);
                    }
                    if link.manifest.generation < *number {
                        break;
                    }
                }
                let (location, newest) = (self.location(), published.manifest.generation);
                let why = match *number > newest {
                    true => "it was not pushed",
                    false => "it was not pushed, or was pruned",
                };
                let message = format!(
                    "open generation {number} of {location}: it is not there, because {why}; the newest is generation {newest}"
                );
                Err(Error::new(ErrorKind::Conflict, message))
            }
            _ => found,
        }
    }

    /// Iterates over the remote manifests from the newest on, until one does not exist.
    pub(crate) fn links(&self, published: &Published) -> impl Iterator<Item = Result<Link>> {
        let head = &published.head_record;
        let uuid = head.uuid;
        let mut next = Some((head.generation, head.manifest));
        std::iter::from_fn(move || {
            let (generation, digest) = next.take()?;
            let read = self.manifest(uuid, generation, &digest).transpose()?;
            Some(read.map(|(manifest, modified)| {
                next = manifest.previous.as_ref().map(|previous| (previous.generation, previous.digest));
                Link { name: manifest_path(generation, &digest), modified, manifest }
            }))
        })
    }

    /// Whether the remote had a remote manifest of a generation under this name.
    pub(crate) fn has_had(&self, published: &Published, generation: u64, name: &str) -> Result<bool> {
        for link in self.links(published) {
            let link = link?;
            if link.name == name || link.manifest.generation < generation {
                return Ok(link.name == name);
            }
        }
        Ok(false)
    }

    /// Whether the newest generation follows the last one that both sides had, as far as the remote was not pruned. `head` is
    /// that of the remote at that time.
    pub(crate) fn follows(
        &self,
        published: &Published,
        last: GenerationId,
        head: Option<Vec<u8>>,
    ) -> Result<bool> {
        let before = head.and_then(|head| self.decode_head(&head).ok()).map(|head| head.manifest);
        if published.manifest.previous.as_ref().is_some_and(|previous| Some(previous.digest) == before) {
            return Ok(true);
        }
        for link in self.links(published) {
            let manifest = link?.manifest;
            if manifest.generation <= last.number {
                return Ok(id_of(&manifest)? == last);
            }
            if manifest.previous.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the remote had a generation, as far as it was not pruned.
    pub(crate) fn has_had_generation(&self, published: &Published, id: GenerationId) -> Result<bool> {
        for link in self.links(published) {
            let link = link?;
            if link.manifest.generation <= id.number {
                return Ok(id_of(&link.manifest)? == id);
            }
        }
        Ok(false)
    }
}
