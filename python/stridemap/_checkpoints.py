"""Checkpoints: states of models and optimizers, as tensors and a description of what holds them.

A checkpoint is a tagged generation. The names in it are the same in each: `checkpoint/` and the key path of a tensor, and
`checkpoint/description.json`. What else is in the store can have such a name, too, so the description says which tensors
belong to the checkpoint.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from . import _arrays, _checkpoint_values, _errors, _history, _torch_storages, _torch_tensors
from ._checkpoint_values import Describer
from ._snapshots import SnapshotView
from ._store import Store
from ._stridemap import Tensor
from ._torch_tensors import Group

#: What the names begin with.
_PREFIX = "checkpoint/"

#: The name of the description, after the prefix.
_DESCRIPTION = "description.json"

#: The key of a description, by which it is recognized.
_KEY = "stridemap checkpoint"

#: The attribute of the description that has the name of the checkpoint.
_NAME = "checkpoint"

#: How many bytes of two tensors are compared at a time.
_PIECE_BYTES = 1 << 20


class Rules(NamedTuple):
    """Which checkpoints stay, as `Store.prune` has it."""

    keep_last: int | None
    keep_every: int | None


def check(name: Any, rules: Rules) -> None:
    """Check the arguments of `stridemap.torch.save_checkpoint`."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a checkpoint is a str, not {type(name).__name__}")
    if name.endswith(".smap"):
        message = f"save_checkpoint: {name!r} is the name of a checkpoint here, and looks like a store; the store comes first"
        raise _errors.make("InvalidArgument", message)
    _history.check_counts("save_checkpoint", *rules)


def groups_of(state: Any) -> list[Group]:
    """Return the tensors of a checkpoint, and its description, by their names in the store."""
    # No tensor gets the name of the description.
    parts = {_DESCRIPTION: torch.empty(0)}
    text = json.dumps({_KEY: Describer(parts).described(state)}, allow_nan=False)
    parts[_DESCRIPTION] = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    return _torch_tensors.groups_of({_PREFIX + part: tensor for part, tensor in parts.items()})


def commit(store: Store, name: str, groups: list[Group], replace: bool, rules: Rules) -> None:
    """Save the tensors of a checkpoint, and remove those that no rule keeps."""
    tensors = {full for group in groups for full, _ in group}
    with store.transaction() as txn:
        txn.tag(name, replace=replace)
        existing = set(txn._handle.names(_PREFIX))
        own = _names(txn) & existing
        for taken in sorted(tensors & existing - own):
            message = f'the name "{taken}" exists, and does not belong to a checkpoint; rename or remove that tensor'
            raise _errors.make("NameExists", f'save_checkpoint "{name}" in {store.path}: {message}')
        for stale in own - tensors:
            del txn[stale]
        # The transaction may be on a newer generation. What was sealed since is saved again.
        sealed, kept = store._handle.snapshot().sealed_storages(), _Kept()
        for group in groups:
            names = [full for full, _ in group]
            saved = [txn[full] for full in names] if own.issuperset(names) else []
            is_sealed = bool(saved) and all(tensor.storage_id in sealed for tensor in saved)
            if not (is_sealed and _is_unchanged(saved, [tensor for _, tensor in group], kept)):
                _torch_tensors.save(txn, group, own)
        txn._handle.set_attribute(_PREFIX + _DESCRIPTION, _NAME, name)
    if any(count is not None for count in rules):
        series = _series(name)
        candidates = {tag for tag, *_ in store._handle.tags() if _series(tag) == series and _is_checkpoint(store, tag)}
        store._handle.prune(candidates, rules.keep_last, None, rules.keep_every)


def _is_checkpoint(store: Store, tag: str) -> bool:
    """Return whether a tag is that of a checkpoint. A tag that was made after it names a generation with its tensors, too."""
    try:
        snapshot = store.at(tag)
    except _errors.NameNotFoundError:  # another process has removed it
        return False
    return snapshot._handle.attributes(_PREFIX + _DESCRIPTION).get(_NAME) == tag


def _series(name: str) -> str:
    """Return what names such as "step1" and "step20" have in common.

    >>> _series("epoch3-step20")
    'epoch#-step#'
    """
    return re.sub("[0-9]+", "#", name)


def load(snapshot: SnapshotView, where: str) -> Any:
    """Return a state: see `stridemap.torch.load_checkpoint`. `where` is for the error if there is none."""
    found = _description(snapshot)
    if found is None:
        raise _errors.make("NameNotFound", f"load_checkpoint: there is no checkpoint in {where}; Store.tags lists the names to load")
    description = found[_KEY]
    parts = sorted(_checkpoint_values.names(description))
    tensors = _torch_storages.to_torch([snapshot[_PREFIX + part] for part in parts], {})
    return _checkpoint_values.restored(description, dict(zip(parts, tensors, strict=True)))


def _description(names: Mapping[str, Tensor]) -> dict[str, Any] | None:
    """Return the description of the checkpoint among some names, under its key, or `None` if there is none."""
    if (name := _PREFIX + _DESCRIPTION) not in names:
        return None
    tensor = names[name]
    if tensor._dtype_name != "uint8" or tensor.ndim != 1:
        return None
    try:
        found = json.loads(tensor.numpy().tobytes())
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found.keys() == {_KEY} else None


def _names(names: Mapping[str, Tensor]) -> set[str]:
    """Return the names of the checkpoint among some names: those of its tensors and of its description."""
    found = _description(names)
    return set() if found is None else {_PREFIX + part for part in (_DESCRIPTION, *_checkpoint_values.names(found[_KEY]))}


class _Kept:
    """The byte ranges of storages that a checkpoint keeps from the last one. They do not overlap."""

    def __init__(self) -> None:
        self._ranges: dict[int | None, list[tuple[int, int]]] = {}

    def add(self, storage_id: int | None, start: int, end: int) -> bool:
        """Add a range, unless it overlaps another. Return whether it was added."""
        ranges = self._ranges.setdefault(storage_id, [])
        at = bisect_left(ranges, (start, end))
        if at < len(ranges) and ranges[at][0] < end or at and ranges[at - 1][1] > start:
            return False
        ranges.insert(at, (start, end))
        return True


def _is_unchanged(saved: list[Tensor], new: list[torch.Tensor], kept: _Kept) -> bool:
    """Return whether the saved tensors of a group can stay: then adds them to `kept`.

    They must be equal, overlap each other in the same places, and not overlap saved tensors that another group keeps.
    """
    first, first_new = saved[0], new[0]
    shift = first.storage_offset * first.itemsize - first_new.data_ptr()
    for old, tensor in zip(saved, new, strict=True):
        header = (f"torch.{old._dtype_name}", old.shape, _steps(old), old.storage_id)
        if header != (str(tensor.dtype), tuple(tensor.shape), _steps(tensor), first.storage_id):
            return False
        if old.size and old.storage_offset * old.itemsize != tensor.data_ptr() + shift:
            return False
    if not all(map(_is_equal, saved, new)):
        return False
    spans = [_torch_tensors.span(tensor) for tensor in new if tensor.numel()]
    if not spans:
        return True
    starts, ends = zip(*spans, strict=True)
    return kept.add(first.storage_id, min(starts) + shift, max(ends) + shift)


def _steps(tensor: Tensor | torch.Tensor) -> list[int]:
    """Return the strides that matter: a dimension of size 1 can have any."""
    return [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]


def _is_equal(saved: Tensor, tensor: torch.Tensor) -> bool:
    """Return whether two tensors of the same dtype and shape have the same bytes."""
    # The memory that is lent read-only: this process may have written to the mapping of `to_torch`.
    lent = np.asarray(saved.contiguous()._lend() or saved.copy()._lend()).reshape(-1).view(np.uint8)
    elements = _arrays.elements_of(tensor, "compare")[2]
    pieces = (slice(start, start + _PIECE_BYTES) for start in range(0, len(lent), _PIECE_BYTES))
    return all(np.array_equal(lent[piece], elements[piece]) for piece in pieces)
