"""Tensors that several processes write in parallel, block by block, and that become visible in one commit.

The blocks are written to a file beside the store. The commit copies the file into the store; on btrfs and XFS, the two
share their disk space instead. The file is `<store>.writing-<machine>-<random>`. The process that created the file
holds a lock on it, and removes it at the end. If the process is killed, the next writer of blocks for the same store
on the same machine removes the file.
"""

from __future__ import annotations

import fcntl
import glob
import math
import os
import platform
import secrets
from contextlib import suppress
from typing import Any

import numpy as np

from . import _errors
from ._arrays import dtype_name, elements_of, numpy_dtype
from ._store import Store, open
from ._stridemap import Tensor

Index = tuple[slice, ...]


class BlockFile:
    """A tensor that is being written. Sent to another process, it is a path and a header."""

    def __init__(self, store_path: str, shape: tuple[int, ...], dtype: Any) -> None:
        self.store_path, self.dtype = os.path.abspath(store_path), dtype_name(dtype)
        # Refuses a dtype that a store does not have, before anything is computed.
        Tensor._of_elements(elements_of(np.empty(0, numpy_dtype(self.dtype))))
        if not all(size >= 0 for size in shape):
            raise _errors.make("SizeMismatch", f"a size is unknown or negative: {tuple(shape)}")
        self.shape = tuple(int(size) for size in shape)
        self.nbytes = math.prod(self.shape) * numpy_dtype(self.dtype).itemsize
        remove_abandoned(self.store_path)
        self.path, self._lock = _create_locked(self.store_path)
        try:
            # Without space on the disk, a write through a mapping would end the process.
            if self.nbytes:
                os.posix_fallocate(self._lock, 0, self.nbytes)
        except BaseException:
            self.remove()
            raise

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs. The lock stays with the process that created the file."""
        return {**self.__dict__, "_lock": None}

    def __del__(self) -> None:
        if (lock := self.__dict__.get("_lock")) is not None:
            os.close(lock)

    def __setitem__(self, index: Index, block: Any) -> None:
        """Write a block. Blocks of different processes must not overlap."""
        if self.nbytes:
            whole = np.memmap(self.path, numpy_dtype(self.dtype), "r+", shape=self.shape)
            whole[index] = block
            # Other machines see what has been written back.
            whole.flush()

    def commit(self, store: Store, name: str) -> None:
        """Save the tensor in one commit."""
        stride = [math.prod(max(size, 1) for size in self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        with store.transaction() as txn:
            number = txn._handle.stage_file(self.path)
            txn._handle.save_header(name, self.dtype, (self.shape, stride, 0), number)

    def remove(self) -> None:
        """Remove the file, if it is still there."""
        with suppress(FileNotFoundError):
            os.remove(self.path)


def _create_locked(store_path: str) -> tuple[str, int]:
    """Create a file beside a store, and lock it. Return its path and its descriptor."""
    while True:
        path = f"{store_path}.writing-{_machine()}-{secrets.token_hex(4)}"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Until it was locked, another writer could remove it as abandoned.
            if os.path.samestat(os.fstat(file), os.stat(path)):
                return path, file
        os.close(file)


def remove_abandoned(store_path: str) -> None:
    """Remove the files of writers of this machine that have ended: no process holds their locks."""
    for path in glob.glob(f"{glob.escape(store_path)}.writing-{_machine()}-*"):
        # Another writer may remove it first, or hold its lock, or it is the file of a different user.
        with suppress(OSError):
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.remove(path)
            finally:
                os.close(file)


def _machine() -> str:
    return "".join(letter for letter in platform.node() if letter.isalnum()) or "unknown"


def open_to_write(place: Store | str | os.PathLike[str]) -> Store:
    """Return the store to write to. If there is none at the path, create it."""
    # Writing needs no mapping, which a network file system would not allow.
    store = place if isinstance(place, Store) else open(place, "a", mapped=False)
    store._check_writable()
    return store


def open_to_read(place: Store | str | os.PathLike[str]) -> Store:
    """Return the store to read from."""
    return place if isinstance(place, Store) else open(place)
