"""Handles sent to other processes: stores, snapshots and tensors as paths and headers."""

from __future__ import annotations

import os
from typing import Any, Literal

from . import _errors
from ._snapshots import SnapshotView
from ._store import Store, open
from ._stridemap import Tensor

#: How a store was opened: the arguments "mapped" and "external" of `open`, and whether it is "writable".
OpenMode = dict[str, Any]

#: The stores that this process has opened for handles, the last used at the end. A child of a fork opens its own.
_stores: dict[tuple[Any, ...], Store] = {}

#: The maximum number of stores that are kept open.
_MAX_STORES = 8


def store(path: str, uuid: str, open_mode: OpenMode, generation: int | None = None) -> Store:
    """Open a store from a handle that another process made, at a generation if it was opened at one."""
    mode: Literal["r", "r+"] = "r+" if open_mode["writable"] else "r"
    opened = open(path, mode, at=generation, mapped=open_mode["mapped"], external=open_mode["external"])
    if opened.uuid != uuid:
        raise _errors.make("Stale", f"{path}: a different store has taken its place since the handle was made")
    return opened


def _reopened(path: str, uuid: str, open_mode: OpenMode) -> Store:
    """Return the store that this process uses for handles of tensors and snapshots."""
    key = (os.getpid(), path, *sorted(open_mode.items()))
    found = _stores.pop(key, None)
    if found is None or found.uuid != uuid:
        found = store(path, uuid, open_mode)
    _stores[key] = found
    for old in list(_stores)[:-_MAX_STORES]:
        del _stores[old]
    return found


def snapshot(path: str | os.PathLike[str], uuid: str, open_mode: OpenMode, generation: int) -> SnapshotView:
    """Open a snapshot from a handle that another process made. It exists while a tag keeps it, or a reader sees it."""
    return _reopened(os.fspath(path), uuid, open_mode).at(generation)


def reduce(tensor: Tensor) -> tuple[Any, ...]:
    """Return how to open the tensor in another process: its header, not its elements."""
    if tensor._origin is None:
        raise TypeError("a tensor in memory cannot be sent to another process; save it, or send its numpy() array")
    path, uuid, open_mode, generation, name = tensor._origin
    layout = (tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset)
    return load, (os.fspath(path), uuid, open_mode, generation, name, tensor.storage_id, *layout)


def load(
    path: str,
    uuid: str,
    open_mode: OpenMode,
    generation: int,
    name: str,
    storage_id: int,
    dtype: str,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    storage_offset: int,
) -> Tensor:
    """Open a tensor from a handle that another process made."""
    store = _reopened(path, uuid, open_mode)
    found = store[name] if name in store else None
    if found is None or found.storage_id != storage_id or store.generation < generation:
        store.refresh()
        found = store[name] if name in store else None
    if found is None or found.storage_id != storage_id:
        state = "was removed" if found is None else "was moved or has other elements; send it again"
        try:
            found = snapshot(path, uuid, open_mode, generation)[name]
        except (_errors.StateError, _errors.NameNotFoundError):
            found = None
        if found is None or found.storage_id != storage_id:
            message = f"{name!r} of generation {generation} of {path} no longer exists: in generation {store.generation} it"
            raise _errors.make("Conflict", f"{message} {state}")
    same = (found.dtype, found.shape, found.stride(), found.storage_offset)
    if same == (dtype, shape, stride, storage_offset):
        return found
    flat = found.as_strided([found.storage_nbytes // found.itemsize], [1], 0).view_dtype("uint8")
    # The length of the storage need not be a multiple of the new width.
    width = flat.narrow(0, 0, 0).view_dtype(dtype).itemsize
    whole = flat.narrow(0, 0, flat.size // width * width).view_dtype(dtype)
    return whole.as_strided(list(shape), list(stride), storage_offset)
