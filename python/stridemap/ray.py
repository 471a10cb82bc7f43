"""Tensors of a store in tasks and actors of Ray.

Tensors, snapshots and stores that are open for reading can be arguments of tasks: they travel as a path and a header,
and each process maps the file once. Those of a store that was opened by a URL travel as the URL and a header.
`stridemap.dask` says what other machines need.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import ray

from ._blocks import BlockFile, Index, check_cover, open_to_write, region
from ._store import Store

__all__ = ["to_store"]


def to_store(
    blocks: Iterable[tuple[Index, Any]],
    place: Store | str | os.PathLike[str],
    name: str,
    shape: tuple[int, ...],
    dtype: Any,
) -> None:
    """Save blocks as one tensor. Tasks write them in parallel; one commit at the end makes the tensor visible.

    A block is a position, such as `np.s_[0:10, :]`, and an array or a Ray reference to one. The task that writes the
    block fetches the referenced array. Each element must be in exactly one block. The dtype of a block must be `dtype`,
    or one that NumPy converts to it safely, as int32 to int64. If a task fails, or the caller is killed, the store
    is as it was.

    >>> blocks = [(np.s_[:2], ray.put(np.zeros(2))), (np.s_[2:], np.ones(3))]
    >>> to_store(blocks, store, "y", (5,), "float64")
    >>> store["y"].tolist()
    [0.0, 0.0, 1.0, 1.0, 1.0]
    """
    store = open_to_write(place)
    file = BlockFile(store, shape, dtype)
    try:
        regions, writes = [], []
        for index, block in blocks:
            regions.append(region(index, file.shape)[0])
            writes.append(_write.remote(file, index, block))
        check_cover(regions, file.shape)
        ray.get(writes)
        with store.transaction() as txn:
            file.save(txn, name)
    finally:
        file.remove()


@ray.remote
def _write(file: BlockFile, index: Index, block: Any) -> None:
    file[index] = block
