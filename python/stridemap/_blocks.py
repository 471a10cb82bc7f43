"""Tensors that several processes write in parallel, block by block, and that become visible in one commit.

The blocks are written in place, to an unfinished file of the store, which the commit makes the storage of the tensor. If
the process that created the file is killed, the next writer of the store deletes it.
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import itertools
import math
import os
from collections.abc import Sequence
from io import FileIO
from typing import Any

import numpy as np

from . import _errors
from ._arrays import dtype_name, elements_of, numpy_dtype
from ._store import Store, Transaction, only_store, open
from ._stridemap import StagedFile, Tensor

#: From which size a write is also started to disk at once, in bytes. Small ones would be many requests.
_WRITEBACK_BYTES = 1 << 20

#: The call of the C library of Linux that starts it, its flag, and the errors by which it says that it cannot.
_sync_file_range = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
if _sync_file_range is not None:
    _sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
_SYNC_FILE_RANGE_WRITE = 2
_NO_WRITEBACK = {errno.EINTR, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM, errno.ESPIPE}

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

    def __init__(self, store: Store, shape: Sequence[int], dtype: Any) -> None:
        self.store_path, self.dtype = os.path.abspath(store.path), dtype_name(dtype)
        # Refuses a dtype that a store does not have, before anything is computed.
        Tensor._of_elements(elements_of(np.empty(0, numpy_dtype(self.dtype)), "create"))
        if not all(size >= 0 for size in shape):
            raise _errors.make("SizeMismatch", f"a size is unknown or negative: {tuple(shape)}")
        self.shape = tuple(int(size) for size in shape)
        self.nbytes = math.prod(self.shape) * numpy_dtype(self.dtype).itemsize
        self._staged: StagedFile | None = store._handle.stage_file(self.nbytes)
        self.path = self._staged.path

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs. The file stays with the process that created it, which can commit it."""
        return {**self.__dict__, "_staged": None}

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
        if not math.prod(size):
            return
        values = flat.view(numpy_dtype(name)).reshape(size).astype(numpy_dtype(self.dtype), copy=False)
        # On a network file system, other machines see what has been written when the file is closed.
        with self._open(action) as file:
            if _is_one_run(positions, self.shape):
                elements = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
                write_at(file.fileno(), elements, _offset(positions, self.shape) * values.itemsize)
            else:
                np.memmap(file, values.dtype, "r+", shape=self.shape)[index] = values

    def _open(self, action: str) -> FileIO:
        try:
            return builtins.open(self.path, "r+b", buffering=0)
        except FileNotFoundError as error:
            message = f"{action}: {self.path} does not exist: its writer has ended or was dropped, or the store was renamed"
            advice = "keep the result of to_store(compute=False) until it is computed, and compute it once"
            raise _errors.make("Io", f"{message}; {advice}", error.errno) from None

    def save(self, txn: Transaction, name: str) -> None:
        """Save the tensor in a transaction."""
        stride = [math.prod(max(size, 1) for size in self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        # Another process has no right to the file, and copies it.
        if self._staged is None:
            self._open(f"save {name!r}").close()
        number = txn._handle.stage_file(self._staged) if self._staged else txn._handle.copy_file(self.path)
        txn._handle.save_header(name, (self.dtype, self.shape, stride, 0), number)

    def remove(self) -> None:
        """Remove the file, unless a transaction has it."""
        if self._staged is not None:
            self._staged.remove()


def _is_one_run(positions: list[range], shape: Sequence[int]) -> bool:
    """Return whether a block, which is not empty, is one run of elements in row-major order.

    >>> _is_one_run([range(2, 3), range(1, 3), range(5)], (9, 4, 5)), _is_one_run([range(2), range(1)], (9, 4))
    (True, False)
    """
    sizes = [len(along) for along in positions]
    first = next((axis for axis, size in enumerate(sizes) if size > 1), len(sizes))
    whole = all(along == range(size) for along, size in list(zip(positions, shape, strict=True))[first + 1 :])
    return whole and (first == len(sizes) or positions[first].step == 1)


def _offset(positions: list[range], shape: Sequence[int]) -> int:
    """Return how many elements come before the first one of a block."""
    return sum(along.start * math.prod(shape[axis + 1 :]) for axis, along in enumerate(positions))


def write_at(file: int, rest: memoryview[Any], offset: int) -> None:
    """Write all bytes of a memory to a file of a storage, from an offset on, and start to write them to disk."""
    while rest:
        # The kernel writes at most 2 GiB at a time.
        count = os.pwrite(file, rest, offset)
        if count >= _WRITEBACK_BYTES:
            _start_writeback(file, offset, count)
        rest, offset = rest[count:], offset + count


def _start_writeback(file: int, offset: int, count: int) -> None:
    """Start to write bytes of a file to disk, so that the sync at the commit has less to do. Do not wait for the end."""
    if _sync_file_range is None or _sync_file_range(file, offset, count, _SYNC_FILE_RANGE_WRITE) == 0:
        return
    # A sync does the same later. After other errors, bytes may be lost without one at the sync.
    if (code := ctypes.get_errno()) not in _NO_WRITEBACK:
        raise OSError(code, os.strerror(code), os.readlink(f"/proc/self/fd/{file}"))


def open_to_write(place: Store | str | os.PathLike[str]) -> Store:
    """Return the store to write to. If there is none at the path, create it."""
    # Writing needs no mapping, which a network file system would not allow.
    store = place if isinstance(place, Store) else open(place, "a", mapped=False)
    store._check_writable()
    return store


def open_to_read(place: Store | str | os.PathLike[str]) -> Store:
    """Return the store to read from."""
    return place if isinstance(place, Store) else only_store(open(place), "from_store")
