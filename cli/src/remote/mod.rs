//! Stores at URLs: the commands about them, and URLs in the arguments of others. This module is the only one that uses
//! `stridemap_remote`.

#[cfg(feature = "remote")]
mod bar;
#[cfg(feature = "remote")]
mod conflict;
#[cfg(feature = "remote")]
pub(crate) mod follow;
#[cfg(feature = "remote")]
mod open;
#[cfg(feature = "remote")]
pub(crate) mod prune;
#[cfg(feature = "remote")]
pub(crate) mod pull;
#[cfg(feature = "remote")]
pub(crate) mod push;
#[cfg(feature = "remote")]
mod requests;
mod url;
#[cfg(not(feature = "remote"))]
mod without;

#[cfg(feature = "remote")]
pub(crate) use conflict::note_unpullable;
#[cfg(feature = "remote")]
pub(crate) use open::{open, open_newest};
pub(crate) use url::{check_local, is_url, shown, split_url};
#[cfg(not(feature = "remote"))]
pub(crate) use without::{follow, note_unpullable, open, open_newest, prune, pull, push};
