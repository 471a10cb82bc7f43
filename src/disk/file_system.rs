//! Properties of file systems: how they write files, and which machines may change them.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

use rustix::fs::{FallocateFlags, IFlags};
use rustix::io::Errno;

/// How a file system handles writes to a mapped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileSystem {
    /// Writes to the file's existing blocks.
    InPlace,
    /// Like `InPlace`, except for blocks that files share (XFS, OCFS2).
    Sharing,
    /// Writes to new blocks, except in files that are marked (btrfs).
    CopyOnWriteUnlessMarked,
    /// Writes to new blocks.
    CopyOnWrite,
    /// Copies a file of a lower layer when it is first opened for writing. A mapping that was made before the copy
    /// still shows the lower layer (overlayfs).
    Overlay,
}

impl FileSystem {
    /// Returns the kind of file system that an open file is on.
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        Ok(match kind_of(file)? {
            0x794c_7630 => FileSystem::Overlay,
            0x9123_683e => FileSystem::CopyOnWriteUnlessMarked,
            // XFS, OCFS2
            0x5846_5342 | 0x7461_636f => FileSystem::Sharing,
            // bcachefs, NILFS2
            0xca45_1a4e | 0x3434 => FileSystem::CopyOnWrite,
            _ => FileSystem::InPlace,
        })
    }
}

/// Returns the magic number of the file system that a file is on, from linux/magic.h or the sources of the file
/// system.
fn kind_of(file: impl AsFd) -> io::Result<u32> {
    // On some machines the field is signed or wider.
    Ok(rustix::fs::fstatfs(file)?.f_type as u32)
}

/// Whether other machines may write to the file system, as far as that can be determined. False for FUSE, which may
/// be either.
pub(super) fn is_network(file: impl AsFd) -> io::Result<bool> {
    Ok(NETWORK.contains(&kind_of(file)?))
}

/// File systems on servers, on disks that several machines share, and of the host of a virtual machine. virtiofs has the
/// number of FUSE.
const NETWORK: [u32; 23] = [
    // linux/magic.h
    0x6969,      // NFS
    0x517b,      // SMB, old
    0xff53_4d42, // CIFS
    0xfe53_4d42, // SMB 2 and 3
    0x5346_414f, // AFS
    0x6b41_4653, // AFS, in the kernel
    0x7375_7245, // Coda
    0x00c3_6400, // Ceph
    0x0102_1997, // 9P
    0x7461_636f, // OCFS2
    0x564c,      // NCP
    // Other headers of the kernel
    0x0116_1970, // GFS2: linux/gfs2_ondisk.h
    0x2003_0528, // OrangeFS: fs/orangefs/protocol.h
    0x786f_4256, // vboxsf: fs/vboxsf/super.c
    // Modules outside the kernel
    0x0bd0_0bd0, // Lustre: lustre_user.h
    0x1983_0326, // BeeGFS: FhgfsOpsSuper.h of its client
    // stat.c of GNU coreutils
    0x4750_4653, // GPFS
    0xaad7_aaea, // Panasas
    0x6163_6673, // ACFS
    0x0131_11a8, // IBRIX
    0xbeef_dead, // StorNext
    0xbacb_acbc, // VMware HGFS
    0x7c7c_6673, // Parallels
];

/// Whether only this kernel changes the file system.
pub(super) fn is_local(file: impl AsFd) -> io::Result<bool> {
    Ok(LOCAL.contains(&kind_of(file)?))
}

const LOCAL: [u32; 5] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // btrfs
    0xf2f5_2010, // F2FS
    0x0102_1994, // tmpfs
];

/// Where the locks of a file are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Locks {
    /// In this kernel, as far as that can be determined.
    Local,
    /// In this kernel, but the open file may be that of a lower layer (overlayfs).
    Overlay,
    /// On another machine, or in a program (FUSE).
    Remote,
}

impl Locks {
    pub(super) fn of(file: impl AsFd) -> io::Result<Self> {
        Ok(match kind_of(file)? {
            0x6573_5546 => Locks::Remote,
            kind if NETWORK.contains(&kind) => Locks::Remote,
            0x794c_7630 => Locks::Overlay,
            _ => Locks::Local,
        })
    }
}

/// Marks an empty file to be written in place, on a file system that otherwise writes to new blocks. Best effort:
/// [`is_written_in_place`] returns whether it worked.
pub(crate) fn mark_for_writes_in_place(file: &File) {
    // An overlay may be on top of any file system.
    if matches!(FileSystem::of(file), Ok(FileSystem::CopyOnWriteUnlessMarked | FileSystem::Overlay))
        && let Ok(flags) = rustix::fs::ioctl_getflags(file)
    {
        let _ = rustix::fs::ioctl_setflags(file, flags | IFlags::NOCOW);
    }
}

/// Whether a file is marked to be written in place, and the kernel honours the mark for mappings too.
pub(crate) fn is_written_in_place(file: &File) -> io::Result<bool> {
    Ok(rustix::fs::ioctl_getflags(file)?.contains(IFlags::NOCOW) && is_mark_honoured())
}

/// Before Linux 6.17, btrfs reserves new blocks when a page of a marked file is first written through a mapping.
fn is_mark_honoured() -> bool {
    let system = rustix::system::uname();
    let mut numbers = system.release().to_str().unwrap_or_default().split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next().and_then(|number| number.parse::<u32>().ok()).unwrap_or_default();
    (number(), number()) >= (6, 17)
}

/// Allocates separate blocks for a range of a file, if the range shares any with another file.
pub(crate) fn unshare(file: &File, range: &Range<u64>) -> io::Result<()> {
    let length_bytes = range.end.saturating_sub(range.start);
    loop {
        match rustix::fs::fallocate(file, FallocateFlags::UNSHARE_RANGE, range.start, length_bytes) {
            Err(Errno::INTR) => {}
            // This file system does not share blocks.
            Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(()),
            unshared => return Ok(unshared?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_that_several_machines_share_are_network_file_systems() {
        // As `stat -f -c %t` prints them.
        for magic in
            ["19830326", "1161970", "7461636f", "aad7aaea", "20030528", "bd00bd0", "47504653", "6969"]
        {
            let magic = u32::from_str_radix(magic, 16).unwrap();
            assert!(NETWORK.contains(&magic) && !LOCAL.contains(&magic), "{magic:x}");
        }
        // FUSE, overlayfs, ZFS and bcachefs can be either, or are local.
        for magic in [0x6573_5546, 0x794c_7630, 0x2fc1_2fc1, 0xca45_1a4e].iter().chain(&LOCAL) {
            assert!(!NETWORK.contains(magic), "{magic:x}");
        }
        let different: std::collections::BTreeSet<u32> = NETWORK.into();
        assert_eq!(different.len(), NETWORK.len());
    }
}
