//! External files that change while the store reads them.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use stridemap::{ErrorKind, Tensor};
use stridemap_interop::{ForeignFile, safetensors};

use super::play::{Fate, Play, bytes, create, expect_ok, holds, open, refused};
use super::seat::When;

fn write(path: &Path, x: &Tensor) {
    let tensors = [("x".to_owned(), x.clone())];
    safetensors::Export::new().write(path, &tensors, |_| ()).unwrap();
}

/// Changes the last byte, and sets a later mtime: otherwise it could be the same tick of the clock.
fn change(path: &Path) -> io::Result<()> {
    let mut all = fs::read(path)?;
    *all.last_mut().unwrap() ^= 1;
    fs::write(path, all)?;
    fs::File::options().write(true).open(path)?.set_modified(SystemTime::now() + Duration::from_secs(9))
}

/// An adopted file is changed before the commit.
pub(crate) fn changed_before_it_is_recorded(play: &Play) -> Fate {
    let path = play.dir.path().join("x.safetensors");
    write(&path, &bytes(100, 1));
    let store = create(&play.seat())?;
    let file = expect_ok("open", ForeignFile::open(&path))?;
    let mut txn = expect_ok("begin", store.begin())?;
    expect_ok("adopt", file.adopt_into(&mut txn, ""))?;
    change(&path).map_err(|e| e.to_string())?;
    refused("the adoption of a changed file", txn.commit(), ErrorKind::ExternalChanged)
}

/// An adopted file is changed after the commit.
pub(crate) fn changed_since_it_was_recorded(play: &Play) -> Fate {
    let path = play.dir.path().join("x.safetensors");
    write(&path, &bytes(100, 1));
    expect_ok("adopt", stridemap_interop::adopt(&create(&play.seat())?, &path, ""))?;
    change(&path).map_err(|e| e.to_string())?;
    let read = open(&play.seat())?.load("x").and_then(|x| x.read::<u8>());
    refused("reading a changed file", read, ErrorKind::ExternalChanged)
}

/// A file is changed after its header is read and before its blocks are shared.
pub(crate) fn changed_before_it_is_shared(play: &Play) -> Fate {
    let path = play.dir.path().join("x.safetensors");
    write(&path, &bytes(5 << 20, 1));
    let seat = play.seat().with(|quirks| quirks.shares_blocks = true);
    let store = create(&seat)?;
    let changed = path.clone();
    seat.trap(When::Before, "share_blocks_of", "", move || change(&changed));
    let imported = stridemap_interop::import(&store, &path, "");
    holds("no blocks were shared", seat.is_done())?;
    refused("the import of a changed file", imported, ErrorKind::ExternalChanged)
}
