//! A directory as an object store.
//!
//! The one of object_store cannot replace an object on condition, and its versions are times and inode numbers.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path as ObjectPath;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::written_file::{self, Before, LOCK_SUFFIX, TEMPORARY_MARK, content_version};

/// The longest file that has a version, and so can be replaced on condition.
const MAX_VERSIONED_BYTES: u64 = 64 << 10;

/// A remote has two levels of directories. A loop of symbolic links is not followed further than this.
const MAX_DEPTH: usize = 8;

/// A directory whose files are objects.
#[derive(Debug)]
pub(super) struct FileStore {
    root: PathBuf,
}

impl FileStore {
    pub(super) fn new(root: PathBuf) -> Self {
        FileStore { root }
    }

    fn path(&self, location: &ObjectPath) -> PathBuf {
        self.root.join(location.as_ref())
    }
}

/// Returns the local store whose directory this is, or contains it, through symbolic links too. Objects have no place there.
pub(super) fn local_store_around(root: &Path) -> Option<PathBuf> {
    // The rest of the path does not exist yet.
    let existing = root.ancestors().find_map(|dir| dir.canonicalize().ok())?;
    let is_store = |dir: &&Path| dir.join("FORMAT").is_file() && dir.join("meta").is_dir();
    existing.ancestors().find(is_store).map(Path::to_path_buf)
}

impl fmt::Display for FileStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileStore({})", self.root.display())
    }
}

#[async_trait]
impl ObjectStore for FileStore {
    async fn put_opts(
        &self,
        location: &ObjectPath,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let (path, name) = (self.path(location), location.to_string());
        blocking(move || {
            let pieces: Vec<Bytes> = payload.iter().cloned().collect();
            let expected = match &opts.mode {
                PutMode::Update(version) => version.e_tag.clone().unwrap_or_default(),
                _ => String::new(),
            };
            let before = match opts.mode {
                PutMode::Overwrite => Before::Anything,
                PutMode::Create => Before::Nothing,
                PutMode::Update(_) => Before::Version(&expected),
            };
            written_file::write(&path, &pieces, &before).map_err(|e| failed(&name, e))?;
            let length = pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
            let e_tag = (length <= MAX_VERSIONED_BYTES).then(|| content_version(&pieces.concat()));
            Ok(PutResult { e_tag, version: None, extensions: Default::default() })
        })
        .await
    }

    async fn get_opts(&self, location: &ObjectPath, options: GetOptions) -> Result<GetResult> {
        let path = self.path(location);
        let name = location.clone();
        blocking(move || open(&path, &name, options)).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<ObjectPath>>,
    ) -> BoxStream<'static, Result<ObjectPath>> {
        let root = self.root.clone();
        locations
            .and_then(move |location| {
                let path = root.join(location.as_ref());
                blocking(move || match fs::remove_file(path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        Err(failed(location.as_ref(), error))
                    }
                    _ => Ok(location),
                })
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        let prefix = prefix.cloned().unwrap_or_default();
        let dir = self.path(&prefix);
        let listed = blocking(move || {
            let mut found = Vec::new();
            list_dir(&dir, &prefix, MAX_DEPTH, &mut found).map_err(|e| failed(prefix.as_ref(), e))?;
            Ok(stream::iter(found.into_iter().map(Ok)))
        });
        stream::once(listed).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, _prefix: Option<&ObjectPath>) -> Result<ListResult> {
        Err(self.not_implemented("list_with_delimiter"))
    }

    async fn put_multipart_opts(
        &self,
        _location: &ObjectPath,
        _opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(self.not_implemented("put_multipart_opts"))
    }

    async fn copy_opts(&self, _from: &ObjectPath, _to: &ObjectPath, _options: CopyOptions) -> Result<()> {
        Err(self.not_implemented("copy_opts"))
    }
}

impl FileStore {
    /// The client uses no such operation.
    fn not_implemented(&self, operation: &str) -> Error {
        Error::NotImplemented { operation: operation.to_owned(), implementer: self.to_string() }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await?
}

fn failed(name: &str, error: io::Error) -> Error {
    let path = name.to_owned();
    match error.kind() {
        // A file where a directory should be has no objects in it.
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            Error::NotFound { path, source: error.into() }
        }
        io::ErrorKind::AlreadyExists => Error::AlreadyExists { path, source: error.into() },
        _ => Error::Generic { store: "file", source: error.into() },
    }
}

fn open(path: &Path, name: &ObjectPath, options: GetOptions) -> Result<GetResult> {
    let failed = |e| failed(name.as_ref(), e);
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(io::ErrorKind::NotFound.into()));
    }
    let mut meta = meta(name.clone(), &metadata).map_err(failed)?;
    let range = match &options.range {
        Some(range) => {
            range.as_range(meta.size).map_err(|e| Error::Generic { store: "file", source: Box::new(e) })?
        }
        None => 0..meta.size,
    };
    let whole = if options.range.is_none() && meta.size <= MAX_VERSIONED_BYTES {
        let bytes = read(&file, range.clone()).map_err(failed)?;
        meta.e_tag = Some(content_version(&bytes));
        // Conditions are on the version alone.
        let conditions = GetOptions { if_modified_since: None, if_unmodified_since: None, ..options };
        conditions.check_preconditions(&meta)?;
        Some(bytes)
    } else {
        None
    };
    let read_range = range.clone();
    let owned_name = name.to_string();
    let bytes = async move {
        match whole {
            Some(bytes) => Ok(bytes),
            None => blocking(move || read(&file, read_range).map_err(|e| self::failed(&owned_name, e))).await,
        }
    };
    let payload = GetResultPayload::Stream(stream::once(bytes).boxed());
    Ok(GetResult { payload, meta, range, attributes: Default::default(), extensions: Default::default() })
}

fn read(file: &File, range: Range<u64>) -> io::Result<Bytes> {
    let length = usize::try_from(range.end - range.start).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, range.start)?;
    Ok(bytes.into())
}

fn meta(location: ObjectPath, metadata: &fs::Metadata) -> io::Result<ObjectMeta> {
    let last_modified = metadata.modified()?.into();
    Ok(ObjectMeta { location, last_modified, size: metadata.len(), e_tag: None, version: None })
}

fn list_dir(dir: &Path, name: &ObjectPath, depth: usize, found: &mut Vec<ObjectMeta>) -> io::Result<()> {
    let mut entries: Vec<PathBuf> = match fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    entries.sort();
    for path in entries {
        let Some(part) = path.file_name().and_then(|part| part.to_str()) else { continue };
        if part.contains(TEMPORARY_MARK) || part.ends_with(LOCK_SUFFIX) {
            continue;
        }
        let Ok(location) = ObjectPath::parse(format!("{name}/{part}")) else { continue };
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() => {
                if let Some(depth) = depth.checked_sub(1) {
                    list_dir(&path, &location, depth, found)?;
                }
            }
            Ok(metadata) => found.push(meta(location, &metadata)?),
            // Deleted since the directory was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => (),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
