"""The writer of `torch.distributed.checkpoint` for a store."""

from __future__ import annotations

import dataclasses
import os
from contextlib import suppress
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from .. import _errors
from .._store import Store
from . import _saves, _shards


class StoreWriter(StorageWriter):
    """Writes the checkpoints of `torch.distributed.checkpoint.save` and `async_save` to a store.

    `place` is the path of a store, which is created if there is none, or, at the coordinator, a store that is open for
    writing. A save is one commit, which gets the tag `tag`, or `checkpoint_id` if that is given to `save`. An existing tag is
    moved only if `replace` is true. Without a tag, the save replaces the last one that has no tag.

    Tensors have their keys in the flattened state dict as names. What the last save has and this one has not is removed,
    and other tensors stay. If one of them has the name of a key, an error names it; with `replace`, it is replaced.

    If a rank fails or is killed, the store is as it was. What the ranks have written by then is removed by the next save.
    A writer makes one save at a time: wait for an `async_save` before the next.

    >>> import torch.distributed.checkpoint as dcp
    >>> writer = StoreWriter("run.smap")
    >>> for step in range(2):
    ...     state = {"weight": torch.full((2,), float(step))}
    ...     saved = dcp.save(state, storage_writer=writer, checkpoint_id=f"step{step}", no_dist=True)
    >>> run = stridemap.open("run.smap")
    >>> run["weight"].tolist(), run.at("step0")["weight"].tolist(), [tag.name for tag in run.tags()]
    ([1.0, 1.0], [0.0, 0.0], ['step0', 'step1'])
    """

    def __init__(self, place: Store | str | os.PathLike[str], tag: str | None = None, *, replace: bool = False) -> None:
        self._place, self._own_tag, self._tag, self._replace = place, tag, tag, replace
        self._save: _saves.Save | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_save": None}

    def __del__(self) -> None:
        with suppress(Exception):
            self._abandon()

    def _abandon(self) -> None:
        """Discard a save that was not finished, because a rank failed."""
        save, self._save = self._save, None
        if save is not None:
            save.abandon()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Take `checkpoint_id` as the tag of the next save. `torch.distributed.checkpoint` calls this.

        >>> writer = StoreWriter("run.smap")
        >>> writer.reset("step5")
        """
        if checkpoint_id is not None:
            self._tag = os.fspath(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Begin a save. `torch.distributed.checkpoint` calls this at each rank.

        >>> StoreWriter("run.smap").set_up_storage_writer(is_coordinator=True)
        """
        self._abandon()
        if kwargs.get("use_collectives") is False:
            message = "ranks that do not know of each other cannot make one commit; leave out use_collectives=False"
            raise _errors.make("InvalidArgument", f"StoreWriter: {message}")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan of this rank as it is. `torch.distributed.checkpoint` calls this.

        >>> StoreWriter("run.smap").prepare_local_plan(SavePlan([])).items
        []
        """
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Create the files of a save, and tell each rank where to write. The coordinator calls this.

        >>> [plan] = StoreWriter("run.smap").prepare_global_plan([SavePlan([])])
        >>> plan.items
        []
        """
        if not all(plan.usable for plan in plans):
            message = "each save writes new files, so a plan of an earlier one cannot be used again"
            raise _errors.make("InvalidArgument", f"StoreWriter: {message}; give no planner with enable_plan_caching=True")
        tag, self._tag = self._tag, self._own_tag
        save = self._save = _saves.Save(self._place, tag, self._replace, plans)
        return [
            dataclasses.replace(plan, items=_rotated(plan.items, rank / len(plans)), storage_data=(save.id, save.places_of(plan)))
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write the shards of this rank. `torch.distributed.checkpoint` calls this.

        >>> import torch.distributed.checkpoint as dcp
        >>> writer = StoreWriter("run.smap")
        >>> [plan] = writer.prepare_global_plan([SavePlan([])])
        >>> writer.write_data(plan, dcp.DefaultSavePlanner()).wait()
        []
        """
        save_id, places = plan.storage_data
        results = []
        try:
            with _shards.ShardFiles(places) as files:
                for item in plan.items:
                    data = planner.resolve_data(item)
                    if isinstance(data, torch.Tensor):
                        results.append(WriteResult(item.index, files.write(item, data), (save_id, None)))
                    else:
                        value = data.getvalue()
                        results.append(WriteResult(item.index, len(value), (save_id, value)))
        except BaseException:
            self._abandon()
            raise
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commit what all ranks have written. The coordinator calls this.

        >>> import torch.distributed.checkpoint as dcp
        >>> writer = StoreWriter("run.smap", tag="empty")
        >>> [plan] = writer.prepare_global_plan([SavePlan([])])
        >>> writer.finish(Metadata({}), [[]])
        >>> [tag.name for tag in stridemap.open("run.smap").tags()]
        ['empty']
        """
        ids = {result.storage_data[0] for of_rank in results for result in of_rank}
        if (save := self._save) is None or ids - {save.id}:
            message = "another save has begun since with the same writer; wait for each save, or make a writer for each"
            raise _errors.make("Conflict", f"StoreWriter: this save is not committed: {message}")
        self._save = None
        try:
            save.commit(metadata, results)
        except BaseException:
            save.abandon()
            raise

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether this can be the name of a tag.

        >>> StoreWriter.validate_checkpoint_id("step5")
        True
        """
        return isinstance(checkpoint_id, str) and bool(checkpoint_id)


def _rotated(items: list[WriteItem], fraction: float) -> list[WriteItem]:
    """Return items that begin elsewhere. A file takes one write at a time, so ranks do not all begin with the same."""
    first = int(len(items) * fraction)
    return items[first:] + items[:first]
