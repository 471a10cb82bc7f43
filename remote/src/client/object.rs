//! What requests return.

use std::time::SystemTime;

use bytes::Bytes;
use object_store::{ObjectMeta, PutResult, UpdateVersion};

/// One state of an object, to replace it only if nobody else did. The server chooses it: it says nothing about order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    pub(super) e_tag: Option<String>,
    pub(super) version: Option<String>,
}

impl Version {
    pub(super) fn of_object(meta: &ObjectMeta) -> Self {
        Version { e_tag: meta.e_tag.clone(), version: meta.version.clone() }
    }

    pub(super) fn of_put(result: PutResult) -> Self {
        Version { e_tag: result.e_tag, version: result.version }
    }

    pub(super) fn to_update(&self) -> UpdateVersion {
        UpdateVersion { e_tag: self.e_tag.clone(), version: self.version.clone() }
    }
}

/// The bytes of an object.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Object {
    /// All of its bytes.
    pub bytes: Bytes,
    /// The version that has these bytes.
    pub version: Version,
    /// When it was written, by the server's clock. 1970 if an HTTP server does not say.
    pub modified: SystemTime,
}

/// An object without its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectInfo {
    /// The name below the URL of the remote.
    pub name: String,
    /// Its length.
    pub length_bytes: u64,
    /// When it was written, by the server's clock. 1970 if an HTTP server does not say.
    pub modified: SystemTime,
}

/// The result of a put that has a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Put {
    /// The object has the new bytes, and this version.
    Written(Version),
    /// The condition did not hold: the object exists, or has a different version. If the answer to an earlier attempt was
    /// lost, that attempt may have written it: read the object to find out.
    Exists,
}
