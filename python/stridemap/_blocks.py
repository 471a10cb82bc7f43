"""Tensors that several processes write in parallel, block by block, and that become visible in one commit.

The blocks are written to a file beside the store. The commit copies the file into the store; on btrfs and XFS, the two
share their disk space instead. The file is `<store>.writing-<machine>-<random>`. The process that created the file
holds a lock on it, and removes it at the end. If the process is killed, the next writer of blocks for the same store
on the same machine removes the file.
"""

from __future__ import annotations

import fcntl
import glob
import itertools
import math
import os
import platform
import secrets
from contextlib import suppress
from typing import Any

import numpy as np

from . import _errors
from ._arrays import dtype_name, elements_of, numpy_dtype
from ._store import Store, Transaction, only_store, open
from ._stridemap import Tensor

#: Where a block is: slices and integers, and perhaps `...`, as in a subscript.
Index = Any


def region(index: Index, shape: tuple[int, ...]) -> tuple[list[range], tuple[int, ...]]:
    """Return the positions of a block along each axis, and the shape that the block must have.

    >>> region(np.s_[2:9, ..., -1], (5, 4, 3))
    ([range(2, 5), range(0, 4), range(2, 3)], (3, 4))
    """
    parts = list(index) if isinstance(index, tuple) else [index]
    missing = [slice(None)] * (len(shape) - sum(part is not Ellipsis for part in parts))
    at = next((at for at, part in enumerate(parts) if part is Ellipsis), len(parts))
    parts[at : at + 1] = missing
    is_index = (isinstance(part, slice | int | np.integer) and not isinstance(part, bool) for part in parts)
    if len(parts) != len(shape) or not all(is_index):
        message = f"a block is at slices and integers of the shape {shape}, and not at {index!r}"
        raise _errors.make("InvalidArgument", message)
    try:
        ranges = [
            range(size)[part] if isinstance(part, slice) else range(at := range(size)[part], at + 1)
            for part, size in zip(parts, shape, strict=True)
        ]
    except IndexError:
        raise _errors.make("OutOfRange", f"{index!r} is out of the bounds of the shape {shape}") from None
    return ranges, tuple(len(r) for r, part in zip(ranges, parts, strict=True) if isinstance(part, slice))


def check_cover(regions: list[list[range]], shape: tuple[int, ...]) -> None:
    """Refuse blocks that do not have each element exactly once.

    A region is a sum of corners, with signs. Without signs, the sum of all regions has the corners of the shape exactly
    if each element is in an odd number of regions. So the smallest corner that is too many or too few is an element
    that is in none, or in an even number of them.
    """
    if 0 in shape:
        return
    split = [axis for axis, size in enumerate(shape) if any(ranges[axis] != range(size) for ranges in regions)]
    corners = set(itertools.product(*((0, shape[axis]) for axis in split)))
    for ranges in regions:
        for box in itertools.product(*(_parts(ranges[axis]) for axis in split)):
            corners ^= set(itertools.product(*box))
    if not corners and sum(math.prod(map(len, ranges)) for ranges in regions) == math.prod(shape):
        return
    element = [0] * len(shape)
    for axis, position in zip(split, min(corners, default=()), strict=False):
        element[axis] = position
    count = sum(all(at in range_ for at, range_ in zip(element, ranges, strict=True)) for ranges in regions)
    found = "blocks overlap" if not corners else f"{count or 'no'} blocks have the element {tuple(element)}"
    message = f"to_store: {found}; each element of the shape {shape} must be in one block"
    raise _errors.make("InvalidArgument", message)


def _parts(positions: range) -> list[tuple[int, int]]:
    """Return positions as ranges without steps."""
    if len(positions) > 1 and abs(positions.step) != 1:
        return [(at, at + 1) for at in positions]
    return [(min(positions), max(positions) + 1)] if positions else []


def _keeps_values(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Return whether each number of a dtype is also one of the other. NumPy takes 64-bit integers to be safe in floats.

    >>> _keeps_values(np.dtype("i4"), np.dtype("f8")), _keeps_values(np.dtype("i8"), np.dtype("f8"))
    (True, False)
    """
    rounds = source.kind in "iu" and source.itemsize == 8 and target.kind in "fc" and target.itemsize <= 16
    return np.can_cast(source, target, "safe") and not rounds


class BlockFile:
    """A tensor that is being written. Sent to another process, it is a path and a header."""

    def __init__(self, store_path: str, shape: tuple[int, ...], dtype: Any) -> None:
        self.store_path, self.dtype = os.path.abspath(store_path), dtype_name(dtype)
        # Refuses a dtype that a store does not have, before anything is computed.
        Tensor._of_elements(elements_of(np.empty(0, numpy_dtype(self.dtype)), "create"))
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
        positions, shape = region(index, self.shape)
        first = tuple(positions_of_axis.start for positions_of_axis in positions)
        action = f"write the block at {first} of the shape {self.shape}"
        name, size, flat = elements_of(block, action)
        if not _keeps_values(numpy_dtype(name), numpy_dtype(self.dtype)):
            message = f"{action}: {name} cannot be converted to {self.dtype} without loss; convert the block with astype"
            raise _errors.DTypeError(message)
        if size != shape:
            raise _errors.make("SizeMismatch", f"{action}: the block has the shape {size}, and its position {shape}")
        if self.nbytes:
            whole = np.memmap(self.path, numpy_dtype(self.dtype), "r+", shape=self.shape)
            whole[index] = flat.view(numpy_dtype(name)).reshape(size)
            # Other machines see what has been written back.
            whole.flush()

    def commit(self, store: Store, name: str) -> None:
        """Save the tensor in one commit."""
        with store.transaction() as txn:
            self.save(txn, name)

    def save(self, txn: Transaction, name: str) -> None:
        """Save the tensor in a transaction."""
        stride = [math.prod(max(size, 1) for size in self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        number = txn._handle.stage_file(self.path)
        txn._handle.save_header(name, (self.dtype, self.shape, stride, 0), number)

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
    return place if isinstance(place, Store) else only_store(open(place), "from_store")
