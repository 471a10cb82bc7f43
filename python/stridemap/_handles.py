"""Handles sent to other processes: stores, snapshots and tensors as paths and headers.

A handle of a store that is read from a URL has the URL instead of a path. The URL holds no credentials: the process that
opens the handle takes those of its environment.
"""

from __future__ import annotations

import os
from typing import Any, Literal

from . import _errors
from ._snapshots import SnapshotView
from ._store import Store, only_store, open
from ._stridemap import Tensor

#: How a store was opened: the arguments "mapped", "external" and "verify" of `open`, whether it is "writable", and whether it is
#: "remote", read from a URL.
OpenMode = dict[str, Any]

#: The stores that this process has opened for handles, the last used at the end. A child of a fork opens its own.
_stores: dict[tuple[Any, ...], Store] = {}

#: The maximum number of stores that are kept open.
_MAX_STORES = 8


def store(path: str, uuid: str, open_mode: OpenMode, generation: int | None = None) -> Store:
    """Open a store from a handle that another process made, at a generation if it was opened at one."""
    mode: Literal["r", "r+"] = "r+" if open_mode["writable"] else "r"
    found = open(path, mode, at=generation, mapped=open_mode["mapped"], external=open_mode["external"], verify=open_mode["verify"])
    opened = only_store(found, "open a store that another process sent")
    if opened.uuid != uuid:
        raise _errors.make("Stale", f"{path}: a different store has taken its place since the handle was made")
    return opened


def _kept(key: tuple[Any, ...], found: Store) -> Store:
    """Keep a store open for more handles."""
    _stores.pop(key, None)
    _stores[key] = found
    for old in list(_stores)[:-_MAX_STORES]:
        _stores.pop(old, None)
    return found


def remote_store(url: str, uuid: str, open_mode: OpenMode, generation: int, is_fixed: bool) -> Store:
    """Open a store of a URL from a handle that another process made, at its generation.

    If the generation is gone, the store is opened at the newest, unless it was opened `at` the one that is gone.
    """
    try:
        found = _remote_at(url, uuid, open_mode, generation)
    except _errors.ConflictError:
        if is_fixed:
            raise
        found = _newest_remote(url, uuid, open_mode)
    return Store(found._handle.duplicate(is_fixed), open_mode, is_fixed)


def _remote_at(url: str, uuid: str, open_mode: OpenMode, generation: int) -> Store:
    """Return the store that this process uses for handles of one generation of a URL."""
    key = (os.getpid(), url, open_mode["external"], generation)
    found = _stores.get(key)
    if found is None or found.uuid != uuid:
        found = _newest_remote(url, uuid, open_mode)
        if found.generation != generation:
            found = store(url, uuid, open_mode, generation)
    return _kept(key, found)


def _newest_remote(url: str, uuid: str, open_mode: OpenMode) -> Store:
    """Open the newest generation of a URL."""
    found = store(url, uuid, open_mode)
    return _kept((os.getpid(), url, open_mode["external"], found.generation), found)


def _reopened(path: str, uuid: str, open_mode: OpenMode) -> Store:
    """Return the store that this process uses for handles of tensors and snapshots."""
    key = (os.getpid(), path, *sorted(open_mode.items()))
    found = _stores.get(key)
    if found is None or found.uuid != uuid:
        found = store(path, uuid, open_mode)
    return _kept(key, found)


def snapshot(path: str, uuid: str, open_mode: OpenMode, generation: int) -> SnapshotView:
    """Open a snapshot from a handle that another process made. It exists while a tag keeps it, or a reader sees it."""
    if open_mode["remote"]:
        return _remote_at(path, uuid, open_mode, generation).snapshot()
    return _reopened(path, uuid, open_mode).at(generation)


def reduce(tensor: Tensor) -> tuple[Any, ...]:
    """Return how to open the tensor in another process: its header, not its elements."""
    if tensor._origin is None:
        raise TypeError("a tensor in memory cannot be sent to another process; save it, or send its numpy() array")
    path, uuid, open_mode, generation, name = tensor._origin
    layout = (tensor._dtype_name, tensor.shape, tensor.stride(), tensor.storage_offset)
    return load, (path, uuid, open_mode, generation, name, tensor.storage_id, *layout)


def _find(path: str, uuid: str, open_mode: OpenMode, generation: int, name: str, storage_id: int) -> Tensor:
    """Return the tensor that has the name and the storage, in the newest generation or in that of the handle."""
    store = _reopened(path, uuid, open_mode)
    found = store._handle.find(name)
    if found is None or found.storage_id != storage_id or store.generation < generation:
        store.refresh()
        found = store._handle.find(name)
    if found is not None and found.storage_id == storage_id:
        return found
    try:
        earlier = snapshot(path, uuid, open_mode, generation)._handle.find(name)
    except _errors.StateError:
        earlier = None
    if earlier is not None and earlier.storage_id == storage_id:
        return earlier
    raise _gone(name, generation, store, found)


def _find_remote(url: str, uuid: str, open_mode: OpenMode, generation: int, name: str, storage_id: int) -> Tensor:
    """Return the tensor that has the name and the storage, in the generation of the handle or in the newest."""
    try:
        store = _remote_at(url, uuid, open_mode, generation)
    except _errors.ConflictError:
        store = _newest_remote(url, uuid, open_mode)
    found = store._handle.find(name)
    if found is not None and found.storage_id == storage_id:
        return found
    raise _gone(name, generation, store, found)


def _gone(name: str, generation: int, store: Store, found: Tensor | None) -> _errors.Error:
    state = "was removed" if found is None else "was moved or has other elements; send it again"
    message = f"{name!r} of generation {generation} of {store.path} no longer exists: in generation {store.generation} it"
    return _errors.make("Conflict", f"{message} {state}")


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
    find = _find_remote if open_mode["remote"] else _find
    found = find(path, uuid, open_mode, generation, name, storage_id)
    same = (found._dtype_name, found.shape, found.stride(), found.storage_offset)
    if same == (dtype, shape, stride, storage_offset):
        return found
    flat = found.as_strided([found.storage_nbytes // found.itemsize], [1], 0).view_dtype("uint8")
    # The length of the storage need not be a multiple of the new width.
    width = flat.narrow(0, 0, 0).view_dtype(dtype).itemsize
    whole = flat.narrow(0, 0, flat.size // width * width).view_dtype(dtype)
    return whole.as_strided(list(shape), list(stride), storage_offset)
