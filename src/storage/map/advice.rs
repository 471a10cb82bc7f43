//! Hints to the kernel about how a file will be read.

use std::fs::File;
use std::num::NonZero;
use std::ops::Range;

/// How the elements of a tensor will be accessed. See [`Tensor::advise`](crate::Tensor::advise).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// No particular order. The kernel reads ahead as it does by default.
    Normal,
    /// From the first element to the last. The kernel reads further ahead.
    Sequential,
    /// A few elements here and there. The kernel does not read ahead.
    Random,
}

/// What the kernel is told about a range of bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hint {
    /// The bytes will be needed soon.
    WillNeed,
    Access(Advice),
}

impl Hint {
    pub(in crate::storage) fn for_memory(self) -> rustix::mm::Advice {
        match self {
            Hint::WillNeed => rustix::mm::Advice::WillNeed,
            Hint::Access(Advice::Normal) => rustix::mm::Advice::Normal,
            Hint::Access(Advice::Sequential) => rustix::mm::Advice::Sequential,
            Hint::Access(Advice::Random) => rustix::mm::Advice::Random,
        }
    }

    /// Returns what the kernel is told about huge pages: for a few elements here and there, it would read 2 MiB each.
    pub(in crate::storage) fn huge_pages(self) -> Option<rustix::mm::Advice> {
        match self {
            Hint::WillNeed => None,
            Hint::Access(Advice::Normal | Advice::Sequential) => Some(rustix::mm::Advice::LinuxHugepage),
            Hint::Access(Advice::Random) => Some(rustix::mm::Advice::LinuxNoHugepage),
        }
    }

    /// Passes the hint to the kernel, for a file that is not mapped. Only [`WillNeed`](Hint::WillNeed) is about the
    /// range: the others are about all reads through this open file.
    pub(in crate::storage) fn pass_to_kernel(self, file: &File, range: Range<u64>) {
        let advice = match self {
            Hint::WillNeed => rustix::fs::Advice::WillNeed,
            Hint::Access(Advice::Normal) => rustix::fs::Advice::Normal,
            Hint::Access(Advice::Sequential) => rustix::fs::Advice::Sequential,
            Hint::Access(Advice::Random) => rustix::fs::Advice::Random,
        };
        // Without the hint, the bytes are read all the same.
        let _ = rustix::fs::fadvise(file, range.start, NonZero::new(range.end - range.start), advice);
    }
}
