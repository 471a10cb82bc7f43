"""Tensors of a store as arrays of Dask, and arrays of Dask as tensors.

Workers on other machines need a file system that they share with the caller: what one machine has written and synced,
another must see when it opens the file (NFS does this). Mapping a store on a network file system is refused, because a
change by another machine could end the process. Open such a store with `mapped=False`; its blocks are then copied.

Workers that share only a bucket read a store that was pushed there: `from_store` takes its URL, or a store that was opened
by it. Each task requests the bytes of its block, with the credentials of the worker's environment.
"""

from __future__ import annotations

import os
from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.delayed import delayed

from ._blocks import BlockFile, open_to_read, open_to_write
from ._store import Store, open
from ._stridemap import Tensor

__all__ = ["from_store", "to_store"]

Place = Store | str | os.PathLike[str]


class _Sliceable:
    """A tensor that Dask cuts into blocks. Each task gets a handle, and maps the tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.shape, self.ndim = tensor, tensor.shape, tensor.ndim
        self.dtype = tensor.dtype

    def __getitem__(self, index: Any) -> np.ndarray[Any, Any]:
        return np.asarray(self.tensor[index])


def from_store(place: Place, name: str, chunks: Any = "auto") -> da.Array:
    """Return a tensor as an array of Dask. Its blocks are views of the mapped file; the graph has no elements.

    If the place is a URL, or a store that was opened by one, each block is read when it is needed.

    >>> from_store(store, "x", chunks=(1, 3)).sum().compute()
    np.int64(15)
    """
    tensor = open_to_read(place)[name]
    token = tokenize(tensor._origin, tensor.storage_id, tensor._dtype_name, tensor.shape, tensor.stride())
    meta = np.empty((0,) * tensor.ndim, tensor.dtype)
    name = f"stridemap-{token}"
    array: da.Array = da.from_array(  # type: ignore[no-untyped-call]
        _Sliceable(tensor), chunks, name=name, lock=False, inline_array=True, meta=meta
    )
    return array


def to_store(array: da.Array, place: Place, name: str, *, compute: bool = True) -> Any:
    """Save an array as one tensor, which replaces one with this name.

    Workers write its blocks in parallel; one commit at the end makes it visible.

    If a block fails, or the caller is killed, the store is as it was. With `compute=False`, the result is a delayed
    object, whose last task commits. Only this process may take the file with the blocks into the store: a last task in
    another process copies it, or shares its disk space on btrfs and XFS. Keep the result until it is computed, once: the
    file is deleted with it.

    >>> to_store(da.ones((4, 2), chunks=2), store, "ones")
    >>> store["ones"].shape
    (4, 2)
    """
    store = open_to_write(place)
    file = BlockFile(store, array.shape, array.dtype)
    written = da.store(array, file, lock=False, compute=False)  # type: ignore[arg-type]
    if not compute:
        return delayed(_commit)(written, _Target(file, store), name)
    try:
        written.compute()
        with store.transaction() as txn:
            file.save(txn, name)
    finally:
        file.remove()


class _Target:
    """A file and its store. Sent to another process, the store is a path."""

    def __init__(self, file: BlockFile, store: Store | None) -> None:
        self.file, self.store = file, store

    def __reduce__(self) -> Any:
        return _Target, (self.file, None)


def _commit(_: None, target: _Target, name: str) -> None:
    file, store = target.file, target.store
    try:
        if store is not None:
            with store.transaction() as txn:
                file.save(txn, name)
        else:
            with open(file.store_path, "r+", mapped=False) as store, store.transaction() as txn:
                file.save(txn, name)
    finally:
        file.remove()
