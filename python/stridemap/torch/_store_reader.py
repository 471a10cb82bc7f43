"""The reader of `torch.distributed.checkpoint` for a store."""

from __future__ import annotations

import dataclasses
import io
import os
from collections import deque
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from .. import _errors, _torch_storages
from .._files import File
from .._history import At
from .._places import Place
from .._snapshots import SnapshotView
from .._store import Store, open
from .._stridemap import Tensor
from . import _saves, _shards

#: How many blocks are read ahead.
_BLOCKS_AHEAD = 2


class StoreReader(StorageReader):
    """Reads a store for `torch.distributed.checkpoint.load`, which shards the tensors as the state dict says.

    The store may be saved by `StoreWriter`, or in any other way, as by `save_model`: each tensor is found by its name.

    `place` is an open store, or the path or the URL of one, or of a file that `stridemap.open` reads. `at` is the tag or the
    number of a generation, as is the `checkpoint_id` that is given to `load`. Without one, a load reads the newest
    generation, or the one that an open store shows. Each rank reads the ranges of its shards, and nothing else.

    The tensors in the state dict must have the dtypes and shapes of those in the store. Values that are not tensors are
    unpickled by `torch.distributed.checkpoint`: load them only from stores that you trust.

    >>> import torch.distributed.checkpoint as dcp
    >>> state = {"x": torch.zeros(2, 3, dtype=torch.int64)}
    >>> dcp.load(state, storage_reader=StoreReader("x.smap"), no_dist=True)
    >>> state
    {'x': tensor([[0, 1, 2],
            [3, 4, 5]])}
    """

    def __init__(self, place: Place, at: At | None = None) -> None:
        self._owns_store = not isinstance(place, Store | File)
        self._opened = place if isinstance(place, Store | File) else open(place)
        self._names: SnapshotView | File
        self._own_at = at
        self._pin(at)

    def _pin(self, at: At | None) -> None:
        """Stay on a generation until the next load."""
        self._at = at
        if isinstance(self._opened, File):
            if at is not None:
                message = f"it is a {self._opened.format} file, which has no tags; leave out at and checkpoint_id"
                raise _errors.make("NotAStore", f"StoreReader of {self._opened.path} at {at!r}: {message}")
            self._names = self._opened
        elif at is not None:
            self._names = self._opened.at(at)
        else:
            if self._owns_store:
                self._opened.refresh()
            self._names = self._opened.snapshot()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Take `checkpoint_id` as the tag of the next load. `torch.distributed.checkpoint` calls this.

        >>> store.tag("step5")
        >>> StoreReader("x.smap").reset("step5")
        """
        if checkpoint_id is not None:
            self._pin(os.fspath(checkpoint_id))

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the keys in the store, with the dtypes and shapes of tensors. `torch.distributed.checkpoint` calls this.

        >>> StoreReader("x.smap").read_metadata().state_dict_metadata["x"].size
        torch.Size([2, 3])
        """
        self._pin(self._at)
        self._at = self._own_at
        last = _saves.described(self._names) or _saves.Description({}, {})
        found: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
        for name in self._names:
            dtype = getattr(torch, (tensor := self._names[name])._dtype_name, None)
            if isinstance(dtype, torch.dtype) and not name.startswith(_saves.RESERVED):
                size = torch.Size(tensor.shape)
                whole = ChunkStorageMetadata(torch.Size([0] * len(size)), size)
                found[name] = TensorStorageMetadata(TensorProperties(dtype), size, [whole])
        found |= {key: BytesStorageMetadata() for key in last.values}
        paths = {key: last.values.get(key) or last.tensors.get(key, (key,)) for key in found}
        return Metadata(found, planner_data=paths)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Begin a load. `torch.distributed.checkpoint` calls this at each rank.

        >>> reader = StoreReader("x.smap")
        >>> reader.set_up_storage_reader(reader.read_metadata(), is_coordinator=True)
        """

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Add the generation that this rank sees to its plan. `torch.distributed.checkpoint` calls this.

        >>> StoreReader("x.smap").prepare_local_plan(LoadPlan([])).storage_data == store.generation
        True
        """
        generation = None if isinstance(self._names, File) else self._names.generation
        return dataclasses.replace(plan, storage_data=generation)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Refuse a load by ranks that see different generations. The coordinator calls this.

        >>> StoreReader("x.smap").prepare_global_plan([LoadPlan([])])
        [LoadPlan(items=[], storage_data=None, planner_data=None)]
        """
        seen = sorted({plan.storage_data for plan in plans if plan.storage_data is not None})
        if len(seen) > 1:
            message = f"a commit came between, so ranks see the generations {seen[0]} and {seen[-1]}"
            raise _errors.make("Conflict", f"load from {self._opened.path}: {message}; load again, or give at")
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy the elements that this rank needs. `torch.distributed.checkpoint` calls this.

        >>> import torch.distributed.checkpoint as dcp
        >>> StoreReader("x.smap").read_data(LoadPlan([]), dcp.DefaultLoadPlanner()).wait()
        """
        storages: _torch_storages.Storages = {}
        # The disk reads the next block while one is copied.
        later = (self._block(item) for item in plan.items if item.type != LoadItemType.BYTE_IO)
        blocks: deque[Tensor] = deque()
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                saved = self._names[_saves.VALUES + item.storage_index.fqn]
                planner.load_bytes(item, io.BytesIO(saved.copy().numpy().tobytes()))
                continue
            while len(blocks) <= _BLOCKS_AHEAD and (block := next(later, None)) is not None:
                _shards.announce(block)
                blocks.append(block)
            target = planner.resolve_tensor(item).detach()
            _check(item, self._names[item.storage_index.fqn], target)
            block = blocks.popleft()
            if target.numel():
                _shards.read(block, target, storages)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _block(self, item: ReadItem) -> Tensor:
        """Return the elements that an item of a plan asks for."""
        whole = self._names[item.storage_index.fqn]
        block: Tensor = whole[tuple(slice(at, at + size) for at, size in zip(item.storage_offsets, item.lengths, strict=True))]
        return block

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether this can be the name of a tag.

        >>> StoreReader.validate_checkpoint_id("step5")
        True
        """
        return isinstance(checkpoint_id, str) and bool(checkpoint_id)


def _check(item: ReadItem, saved: Tensor, target: torch.Tensor) -> None:
    """Refuse to load into a tensor of another dtype or shape."""
    key, dtype = item.storage_index.fqn, str(target.dtype).removeprefix("torch.")
    if saved._dtype_name != dtype:
        message = f"the store has {saved._dtype_name}, and the state dict {dtype}"
        raise _errors.DTypeError(f'load "{key}": {message}; load into a tensor of {saved._dtype_name}, and convert that')
    if target.shape != item.lengths:
        message = f"{list(item.lengths)} elements are to be loaded into a tensor of {list(target.shape)}"
        advice = f"give the state dict the shape in the store, {list(saved.shape)}"
        raise _errors.make("SizeMismatch", f'load "{key}": {message}; {advice}')
