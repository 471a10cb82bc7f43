//! The files of a store outside a file system: a directory, bytes in memory, and a recorder of what is read.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use stridemap::replica::{FileReader, Files};

/// The files of a store in a directory.
#[derive(Debug)]
pub(crate) struct DirFiles(pub(crate) PathBuf);

#[derive(Debug)]
struct DirFile(File, u64);

impl Files for DirFiles {
    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        assert!(["meta", "generations"].contains(&dir), "{dir:?} is listed");
        fs::read_dir(self.0.join(dir))?.map(|entry| Ok(entry?.file_name().into_string().unwrap())).collect()
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn FileReader>> {
        let file = File::open(self.0.join(name))?;
        let size_bytes = file.metadata()?.len();
        Ok(Arc::new(DirFile(file, size_bytes)))
    }
}

impl FileReader for DirFile {
    fn size_bytes(&self) -> u64 {
        self.1
    }

    fn read_exact_at(&self, buf: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        self.0.read_exact_at(buf, offset_bytes)
    }
}

/// The files of a store in memory, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryFiles(pub(crate) BTreeMap<String, Arc<Vec<u8>>>);

#[derive(Debug)]
struct MemoryFile(Arc<Vec<u8>>);

impl MemoryFiles {
    /// Reads all files of a store that readers open.
    pub(crate) fn of(store: &Path) -> Self {
        let mut files = BTreeMap::new();
        let mut add = |name: String| {
            let bytes = fs::read(store.join(&name)).unwrap();
            files.insert(name, Arc::new(bytes));
        };
        add("FORMAT".to_owned());
        for dir in ["meta", "generations", "storages"] {
            for entry in fs::read_dir(store.join(dir)).unwrap() {
                add(format!("{dir}/{}", entry.unwrap().file_name().into_string().unwrap()));
            }
        }
        MemoryFiles(files)
    }
}

impl Files for MemoryFiles {
    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let names = self.0.keys().filter_map(|name| name.strip_prefix(dir)?.strip_prefix('/'));
        Ok(names.map(str::to_owned).collect())
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn FileReader>> {
        let bytes = self.0.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(MemoryFile(Arc::clone(bytes))))
    }
}

impl FileReader for MemoryFile {
    fn size_bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_exact_at(&self, buf: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        let start = offset_bytes as usize;
        buf.copy_from_slice(self.0.get(start..start + buf.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// What was asked of the files, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    pub(crate) listed: Vec<String>,
    pub(crate) opened: Vec<String>,
    pub(crate) read: Vec<(String, Range<u64>)>,
    pub(crate) announced: Vec<(String, Range<u64>)>,
}

impl Log {
    pub(crate) fn read_bytes(&self) -> u64 {
        self.read.iter().map(|(_, range)| range.end - range.start).sum()
    }
}

/// Called with "list", "open" or "read", and the name. If it returns an error, the operation fails with it.
type Hook = dyn Fn(&str, &str) -> io::Result<()> + Send + Sync;

/// Files that record what is asked of them, and fail if a hook says so.
#[derive(Clone)]
pub(crate) struct Recorded {
    files: Arc<dyn Files>,
    hook: Arc<Hook>,
    log: Arc<Mutex<Log>>,
}

impl fmt::Debug for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recorded")
    }
}

impl Recorded {
    pub(crate) fn new(files: impl Files + 'static) -> Self {
        Recorded { files: Arc::new(files), hook: Arc::new(|_, _| Ok(())), log: Arc::default() }
    }

    pub(crate) fn failing(
        files: impl Files + 'static,
        hook: impl Fn(&str, &str) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Recorded { hook: Arc::new(hook), ..Recorded::new(files) }
    }

    /// Returns the log since the last call.
    pub(crate) fn take(&self) -> Log {
        std::mem::take(&mut *self.log.lock().unwrap())
    }
}

#[derive(Debug)]
struct RecordedFile {
    files: Recorded,
    name: String,
    file: Arc<dyn FileReader>,
}

impl Files for Recorded {
    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.log.lock().unwrap().listed.push(dir.to_owned());
        (self.hook)("list", dir)?;
        self.files.list(dir)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn FileReader>> {
        self.log.lock().unwrap().opened.push(name.to_owned());
        (self.hook)("open", name)?;
        let file = self.files.open(name)?;
        Ok(Arc::new(RecordedFile { files: self.clone(), name: name.to_owned(), file }))
    }
}

impl FileReader for RecordedFile {
    fn size_bytes(&self) -> u64 {
        self.file.size_bytes()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        let range = offset_bytes..offset_bytes + buf.len() as u64;
        self.files.log.lock().unwrap().read.push((self.name.clone(), range));
        (self.files.hook)("read", &self.name)?;
        self.file.read_exact_at(buf, offset_bytes)
    }

    fn prefetch(&self, range: Range<u64>) {
        self.files.log.lock().unwrap().announced.push((self.name.clone(), range));
    }
}
