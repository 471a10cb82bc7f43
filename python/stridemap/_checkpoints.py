"""Checkpoints: states of models and optimizers, as tensors and a description of what holds them.

The checkpoint `NAME` has its description under `NAME.json`, and each tensor under `NAME/` and its key path. A key path
has no "/" and does not end with ".json", which are escaped, so two checkpoints never need the same name. What else is in
the store can have such a name, so the description says which tensors belong to the checkpoint.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from . import _arrays, _errors, _torch_storages, _torch_tensors
from ._store import SnapshotView, Store
from ._stridemap import Tensor

#: The key of a description, by which it is recognized.
_KEY = "stridemap checkpoint"


class Checkpoints:
    """The checkpoints among some names."""

    def __init__(self, names: Mapping[str, Tensor]) -> None:
        self._names = names
        self._found: dict[str, set[str] | None] = {}

    def names_of(self, checkpoint: str) -> set[str]:
        """Return the names of a checkpoint: those of its tensors and of its description. Empty if there is none."""
        if checkpoint not in self._found:
            description = described(self._names, checkpoint)
            names = None if description is None else _tensor_names(description[_KEY], checkpoint)
            self._found[checkpoint] = None if names is None else {*names, f"{checkpoint}.json"}
        return self._found[checkpoint] or set()

    def owner(self, name: str) -> str | None:
        """Return the checkpoint to which the tensor with this name belongs."""
        is_description = name.endswith(".json")
        checkpoint = name.removesuffix(".json") if is_description else name.rpartition("/")[0]
        return checkpoint if name in self.names_of(checkpoint) else None


def described(names: Mapping[str, Tensor], checkpoint: str) -> dict[str, Any] | None:
    """Return the description of a checkpoint, or `None` if there is none."""
    if f"{checkpoint}.json" not in names:
        return None
    tensor = names[f"{checkpoint}.json"]
    if tensor.dtype != "uint8" or tensor.ndim != 1:
        return None
    try:
        found = json.loads(tensor.numpy().tobytes())
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.keys() == {_KEY} else None


def save(store: Store, name: str, state: Any) -> None:
    """Save a state: see `stridemap.torch.save_checkpoint`."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a checkpoint is a str, not {type(name).__name__}")
    parts: dict[str, torch.Tensor] = {}
    text = json.dumps({_KEY: _described(state, "", parts)})
    groups = _torch_tensors.groups_of({f"{name}/{part}": tensor for part, tensor in parts.items()})
    new = {f"{name}.json", *(f"{name}/{part}" for part in parts)}
    with store.transaction() as txn:
        own = Checkpoints(txn).names_of(name)
        for taken in sorted(new - own):
            if taken in txn:
                message = f'the name "{taken}" exists, and does not belong to this checkpoint; choose a different name'
                raise _errors.make("NameExists", f'save_checkpoint "{name}" in {store.path}: {message}')
        last, reused = store.attrs.get("checkpoint"), _Reused()
        for group in groups:
            old_names = [f"{last}/{full.removeprefix(f'{name}/')}" for full, _ in group]
            if last is not None and all(old in txn for old in old_names):
                old_tensors = [txn[old] for old in old_names]
                if _can_reuse(old_tensors, [tensor for _, tensor in group], reused):
                    for old_tensor, (full, _) in zip(old_tensors, group, strict=True):
                        txn.save_view(full, old_tensor, replace=full in own)
                    continue
            _torch_tensors.save(txn, group, own)
        for stale in own - new:
            if stale in txn:
                del txn[stale]
        txn.save(f"{name}.json", np.frombuffer(text.encode(), np.uint8), replace=f"{name}.json" in own)
        txn.attrs["checkpoint"] = name


def load(store: Store, snapshot: SnapshotView, name: str | None) -> Any:
    """Return a state: see `stridemap.torch.load_checkpoint`."""
    name = store.attrs.get("checkpoint") if name is None else name
    description = None if name is None else described(snapshot, name)
    if description is None:
        message = f"{store.path}: no checkpoint {'' if name is None else repr(name)}".rstrip()
        raise _errors.make("NameNotFound", message)
    parts = sorted(_parts(description[_KEY]))
    tensors = _torch_storages.to_torch([snapshot[f"{name}/{part}"] for part in parts], {})
    return _restored(description[_KEY], dict(zip(parts, tensors, strict=True)))


class _Reused:
    """The byte ranges of storages that a checkpoint reuses. They do not overlap."""

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


def _can_reuse(saved: list[Tensor], new: list[torch.Tensor], reused: _Reused) -> bool:
    """Return whether saved tensors can be reused for those of a group.

    They must be equal, overlap each other in the same places, and not overlap saved tensors that another group reuses.
    """
    first, first_new = saved[0], new[0]
    shift = first.storage_offset * first.itemsize - first_new.data_ptr()
    for old, tensor in zip(saved, new, strict=True):
        header = (f"torch.{old.dtype}", old.shape, old.stride(), old.storage_id)
        if header != (str(tensor.dtype), tuple(tensor.shape), tensor.stride(), first.storage_id):
            return False
        if old.size and old.storage_offset * old.itemsize != tensor.data_ptr() + shift:
            return False
        # Compare with the memory that is lent read-only: this process may have written to the mapping of `to_torch`.
        elements = np.asarray(old.contiguous()._lend() or old.copy()._lend())
        if not np.array_equal(elements.reshape(-1).view(np.uint8), _arrays.elements_of(tensor, "compare")[2]):
            return False
    spans = [_torch_tensors.span(tensor) for tensor in new if tensor.numel()]
    if not spans:
        return True
    starts, ends = zip(*spans, strict=True)
    return reused.add(first.storage_id, min(starts) + shift, max(ends) + shift)


def _tensor_names(value: Any, checkpoint: str) -> set[str]:
    return {f"{checkpoint}/{part}" for part in _parts(value)}


def _parts(value: Any) -> set[str]:
    """Return the key paths of the tensors in a description."""
    if isinstance(value, list):
        return set().union(*map(_parts, value))
    if not isinstance(value, dict):
        return set()
    ((kind, content),) = value.items()
    return {content} if kind == "tensor" else _parts(content)


def _described(value: Any, key_path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Return a value for JSON. Tensors go into `tensors` under their key paths; the value has these paths instead."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Tensor):
        part = key_path.removesuffix(".").replace("%", "%25").replace("/", "%2F")
        if part.endswith(".json"):
            part = f"{part.removesuffix('.json')}%2Ejson"
        # Keys such as 1 and "1", or "a.b" and "a" with "b", have the same key path.
        while part in tensors:
            part += "'"
        tensors[part] = value
        return {"tensor": part}
    if isinstance(value, list | tuple):
        parts = [_described(part, f"{key_path}{index}.", tensors) for index, part in enumerate(value)]
        return parts if isinstance(value, list) else {"tuple": parts}
    if isinstance(value, dict):
        return {
            "dict": [
                [_key(key, key_path), _described(part, f"{key_path}{key}.", tensors)] for key, part in value.items()
            ]
        }
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    where = key_path.removesuffix(".") or "the state"
    raise TypeError(f"{where}: a checkpoint cannot hold {kind}; convert it to a plain value or a tensor")


def _key(key: Any, key_path: str) -> Any:
    """Return a key of a dict for JSON."""
    tensors: dict[str, torch.Tensor] = {}
    described = _described(key, key_path, tensors)
    if tensors:
        raise TypeError(f"{key_path.removesuffix('.')}: a checkpoint cannot hold a tensor as a key")
    return described


def _restored(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_restored(part, tensors) for part in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    match kind:
        case "tensor":
            return tensors[content]
        case "tuple":
            return tuple(_restored(part, tensors) for part in content)
        case _:
            return {_restored(key, tensors): _restored(part, tensors) for key, part in content}
