"""Tensors that several processes write in parallel, block by block, and that become visible in one commit.

The blocks are written to a file beside the store, which is then copied into it; btrfs and XFS share the blocks on disk
instead. The file is `<store>.writing-<machine>-<process>-<random>`. It is removed at the end; if the process is
killed, the next writer of the store on the same machine removes it.
"""

from __future__ import annotations

import glob
import os
import platform
import secrets
from typing import Any

import numpy as np

from ._arrays import numpy_dtype
from ._store import Store, open

Index = tuple[slice, ...]


class BlockFile:
    """A tensor that is being written. Sent to another process, it is a path and a header."""

    def __init__(self, store_path: str, shape: tuple[int, ...], dtype: str) -> None:
        self.store_path, self.shape, self.dtype = os.path.abspath(store_path), tuple(shape), dtype
        self.path = f"{self.store_path}.writing-{_machine()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.nbytes = int(np.prod(self.shape, dtype=np.int64)) * numpy_dtype(dtype).itemsize
        remove_abandoned(self.store_path)
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            # Without space on the disk, a write through a mapping would end the process.
            if self.nbytes:
                os.posix_fallocate(file, 0, self.nbytes)
        except BaseException:
            self.remove()
            raise
        finally:
            os.close(file)

    def __setitem__(self, index: Index, block: Any) -> None:
        """Write a block. Blocks of different processes must not overlap."""
        if self.nbytes:
            whole = np.memmap(self.path, numpy_dtype(self.dtype), "r+", shape=self.shape)
            whole[index] = block
            # Other machines see what has been written back.
            whole.flush()

    def commit(self, store: Store, name: str) -> None:
        """Save the tensor in one commit."""
        stride = [int(np.prod([max(n, 1) for n in self.shape[axis + 1 :]], dtype=np.int64)) for axis in range(len(self.shape))]
        with store.transaction() as txn:
            number = txn._handle.stage_file(self.path)
            txn._handle.save_header(name, self.dtype, (self.shape, stride, 0), number)

    def remove(self) -> None:
        """Remove the file, if it is still there."""
        if os.path.exists(self.path):
            os.remove(self.path)


def remove_abandoned(store_path: str) -> None:
    """Remove the files of writers of this machine that have ended."""
    for path in glob.glob(f"{glob.escape(store_path)}.writing-{_machine()}-*-*"):
        process = path.rsplit("-", 2)[1]
        if process.isdigit() and not os.path.exists(f"/proc/{process}"):
            os.remove(path)


def _machine() -> str:
    return "".join(letter for letter in platform.node() if letter.isalnum()) or "unknown"


def writable(place: Store | str | os.PathLike[str]) -> Store:
    """Return the store to write to. It is created if there is none at the path."""
    return place if isinstance(place, Store) else open(place, "a")


def readable(place: Store | str | os.PathLike[str]) -> Store:
    """Return the store to read from."""
    return place if isinstance(place, Store) else open(place)
