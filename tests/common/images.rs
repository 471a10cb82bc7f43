//! Mounted images of real file systems, and tensors to save there. The tests of `interop` use this file too.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use stridemap::{Store, Tensor};

use crate::support::{skip, temporary};

/// The file systems that can share blocks, with the commands that create them.
const SHARING: [(&str, &[&str]); 2] = [("btrfs", &["mkfs.btrfs", "-q"]), ("xfs", &["mkfs.xfs", "-q"])];

pub(crate) const IMAGE_BYTES: u64 = 400 << 20;

/// An image of a file system, which is mounted until this is dropped.
pub(crate) struct Image {
    pub(crate) path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Image {
    pub(crate) fn mount(kind: &str, make: &[&str], size_bytes: u64) -> Option<Image> {
        let dir = temporary();
        let (image, path) = (dir.path().join("image"), dir.path().join("mounted"));
        File::create(&image).unwrap().set_len(size_bytes).unwrap();
        fs::create_dir(&path).unwrap();
        let made = Command::new(make[0]).args(&make[1..]).arg(&image).output();
        let mounted = Command::new("mount").args(["-o", "loop", "-t", kind]).args([&image, &path]).output();
        if [&made, &mounted].iter().all(|output| output.as_ref().is_ok_and(|output| output.status.success()))
        {
            return Some(Image { path, _dir: dir });
        }
        let why = format!("no {kind} can be made and mounted here: {made:?}, {mounted:?}");
        skip("STRIDEMAP_REQUIRE_ROOT", &why);
        None
    }

    /// Returns the free bytes, after everything written has been allocated.
    pub(crate) fn free_bytes(&self) -> u64 {
        rustix::fs::syncfs(File::open(&self.path).unwrap()).unwrap();
        let stat = rustix::fs::statvfs(&self.path).unwrap();
        stat.f_bfree * stat.f_frsize
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}

/// Runs a test on each file system that is available.
pub(crate) fn on_each(test: impl Fn(&str, &Image)) {
    for (kind, make) in SHARING {
        if let Some(image) = Image::mount(kind, make, IMAGE_BYTES) {
            test(kind, &image);
        }
    }
}

pub(crate) fn noise(n: usize, seed: u32) -> Vec<u32> {
    let mut state = seed;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state
        })
        .collect()
}

/// Returns 64 MiB of tensors: some are large enough for their own storage, and others are not.
pub(crate) fn model() -> Vec<(String, Tensor)> {
    let mut tensors = vec![
        ("large".to_owned(), Tensor::from_vec(noise(12 << 20, 1), &[3 << 10, 4 << 10]).unwrap()),
        ("bytes".to_owned(), Tensor::from_vec(vec![7u8; 1001], &[1001]).unwrap()),
    ];
    tensors.extend(
        (0..16).map(|n| (format!("small.{n}"), Tensor::from_vec(noise(1 << 18, n), &[1 << 18]).unwrap())),
    );
    tensors
}

pub(crate) fn size_of(tensors: &[(String, Tensor)]) -> u64 {
    tensors.iter().map(|(_, tensor)| tensor.nbytes() as u64).sum()
}

pub(crate) fn assert_same(store: &Store, tensors: &[(String, Tensor)]) {
    for (name, tensor) in tensors {
        let loaded = store.load(name).unwrap();
        assert_eq!((loaded.dtype(), loaded.size()), (tensor.dtype(), tensor.size()), "{name}");
        assert!(loaded.to_bytes().unwrap() == tensor.to_bytes().unwrap(), "{name}");
    }
    assert_eq!(store.verify(|_| ()).unwrap().findings, []);
}

/// Returns whether the kernel reports each extent of a file as shared.
pub(crate) fn is_shared(path: &Path) -> bool {
    let output = Command::new("filefrag").arg("-v").arg(path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let extents: Vec<&str> = text.lines().filter(|line| line.contains("..")).collect();
    assert!(!extents.is_empty(), "{text}");
    extents.iter().all(|line| line.contains("shared"))
}
