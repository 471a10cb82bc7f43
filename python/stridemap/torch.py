"""Models, state dicts and checkpoints of PyTorch.

The functions for files and models have the names of those in `safetensors.torch`. Tensors that share memory share it
again when they are loaded: the bytes are saved once, and each tensor is saved as a header over them.

Loaded tensors are mapped, and not copied. Writing to them, as training does, changes a copy of a page in this process,
and never the store. Each load maps the files again, so what is written to the tensors of one load is not seen in those
of another. Tensors that overlap are on one storage of PyTorch, and each of the others is on a storage of its own bytes.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
import torch

from . import _checkpoints, _errors, _torch_storages, _torch_tensors
from ._arrays import elements_of
from ._history import At
from ._snapshots import SnapshotView
from ._store import Store, open

__all__ = ["load_checkpoint", "load_file", "load_model", "save_checkpoint", "save_file", "save_model"]

Place = Store | str | os.PathLike[str]


def save_file(
    tensors: Mapping[str, torch.Tensor], place: Place, *, prefix: str = "", replace: bool = False
) -> None:
    """Save tensors in one commit, each under its name after `prefix`. `load_file` then returns exactly these tensors.

    `place` is an open store, or a path. If the prefix does not end with "." or "/", a "." follows it. Tensors of the
    same names are replaced. If there are others whose names begin with the prefix, an error names them; with `replace`,
    they are removed. What a tag names does not change.
    """
    _save(tensors, place, prefix, replace, "save_file")


def _save(tensors: Mapping[str, torch.Tensor], place: Place, prefix: str, replace: bool, action: str) -> None:
    prefix = _ended(prefix)
    groups = _torch_tensors.groups_of(tensors)
    new = {prefix + name for name in tensors}
    with _writing(place) as store, store.transaction() as txn:
        removed = set(txn._handle.names(prefix)) - new
        if removed and not replace:
            raise _errors.make("NameExists", _refusal(f"{action} to {store.path}", prefix, removed))
        for name in removed:
            del txn[name]
        for group in groups:
            _torch_tensors.save(txn, [(prefix + name, tensor) for name, tensor in group], new)


def load_file(place: Place, *, prefix: str = "") -> dict[str, torch.Tensor]:
    """Return the tensors whose names begin with `prefix`, by their names without it. They are mapped, not read.

    If the prefix does not end with "." or "/", a "." follows it.
    """
    prefix = _ended(prefix)
    with _reading(place) as (_, snapshot):
        names = [name for name in snapshot if name.startswith(prefix)]
        tensors = _torch_storages.to_torch([snapshot[name] for name in names], {})
        return {name.removeprefix(prefix): tensor for name, tensor in zip(names, tensors, strict=True)}


def save_model(model: torch.nn.Module, place: Place, *, prefix: str = "", replace: bool = False) -> None:
    """Save the state dict of a model, as `save_file` does. Tied weights stay tied."""
    _save(model.state_dict(), place, prefix, replace, "save_model")


def load_model(
    model: torch.nn.Module, place: Place, *, prefix: str = "", strict: bool = True, assign: bool = False
) -> tuple[list[str], list[str]]:
    """Copy the tensors of a store into the parameters and buffers of a model, which keep their dtype and device.

    Return the names that are missing in the store, and those that the model does not have. With `strict`, such names
    raise a `RuntimeError`. Parameters that are tied stay tied, and one of their names in the store is enough.

    With `assign`, nothing is copied: the mapped tensors become the parameters and buffers, with the dtypes of the store.
    The parameters are then new objects: do this before the model is moved to its device, before the optimizer is made,
    and before the model is wrapped, as by `DistributedDataParallel`.
    """
    tied = _tied(model)
    state = load_file(place, prefix=prefix)
    loaded = [[name for name in names if name in state] for names in tied]
    for names in loaded:
        for name in names[1:]:
            if not _is_same(state[names[0]], state[name]):
                message = f"{names[0]!r} and {name!r} are tied in the model, but have different elements in the store"
                raise _errors.make("InvalidArgument", message)
    for name, tensor in () if assign else chain(model.named_parameters(), model.named_buffers()):
        if tensor.device.type == "meta" and name in state:
            message = f"load_model: {name!r} of the model is on the device meta, so nothing can be copied into it"
            raise _errors.make("InvalidArgument", f"{message}; give assign=True, or call the model's to_empty() before")
    result = model.load_state_dict(state, strict=False, assign=assign)
    present = {name for names, found in zip(tied, loaded, strict=True) if found for name in names}
    if assign:
        for names, found in zip(tied, loaded, strict=True):
            first = _attribute(model, (found or names)[0])
            for name in names:
                owner, _, own_name = name.rpartition(".")
                setattr(model.get_submodule(owner), own_name, first)
    absent = [name for name in result.missing_keys if name not in present]
    unexpected = list(result.unexpected_keys)
    if strict and (absent or unexpected):
        message = f"missing in the store: {absent}; not in the model: {unexpected}"
        raise RuntimeError(f"load_model: {type(model).__name__}: {message}; pass strict=False to load the others")
    return absent, unexpected


def save_checkpoint(place: Place, name: str, state: Any, *, replace: bool = False) -> None:
    """Save a state, such as that of a model or an optimizer: dicts, lists, tuples, tensors and plain values.

    This is one commit, which gets the tag `name`. An existing tag is moved only if `replace` is true. The tensors have the
    same names in each checkpoint, `checkpoint/` and their key paths, so the newest one is also in the store without a
    tag. A tensor that is equal to that of the last checkpoint is not written again. Other tensors stay as they are.

    >>> import tempfile
    >>> with open(tempfile.mkdtemp() + "/run.smap", "x") as store:
    ...     for step in range(3):
    ...         save_checkpoint(store, f"step{step}", {"w": torch.full((2,), float(step)), "step": step})
    ...     print(load_checkpoint(store), load_checkpoint(store, "step0")["w"])
    ...     print([tag.name for tag in store.prune(keep_last=2)], store["checkpoint/w"].shape)
    {'w': tensor([2., 2.]), 'step': 2} tensor([0., 0.])
    ['step0'] (2,)
    """
    with _writing(place) as store:
        _checkpoints.save(store, name, state, replace)


def load_checkpoint(place: Place, at: At | None = None) -> Any:
    """Return the state of a checkpoint. Its tensors are mapped.

    `at` is the name that it was saved with, or the number of a generation. Without it, this is the newest checkpoint, or
    the one that an open store shows.
    """
    with _reading(place) as (store, snapshot):
        if at is None:
            return _checkpoints.load(snapshot, f"generation {snapshot.generation} of {store.path}")
        return _checkpoints.load(store.at(at), f"{at!r} of {store.path}")


@contextmanager
def _writing(place: Place) -> Iterator[Store]:
    if isinstance(place, Store):
        # What is replaced or removed is decided on what is there now.
        place.refresh()
        yield place
    else:
        with open(place, "a") as store:
            yield store


@contextmanager
def _reading(place: Place) -> Iterator[tuple[Store, SnapshotView]]:
    if isinstance(place, Store):
        yield place, place.snapshot()
    else:
        with open(place) as store:
            yield store, store.snapshot()


def _ended(prefix: str) -> str:
    """Return a prefix with a separator at its end, so that "model1" is not a prefix of "model10.weight"."""
    return prefix if not prefix or prefix.endswith((".", "/")) else f"{prefix}."


def _refusal(request: str, prefix: str, removed: set[str]) -> str:
    """Return the message of an error that says what a save would remove."""
    names = [f'"{name}"' for name in sorted(removed)[:3]]
    if len(removed) > len(names):
        names.append(f"{len(removed) - len(names)} more")
    what = f"{len(removed)} {'tensor' if len(removed) == 1 else 'tensors'}: {', '.join(names)}"
    request += f' with the prefix "{prefix}"' if prefix else ""
    advice = f"choose {'another' if prefix else 'a'} prefix, or give replace=True to remove what is there"
    return f"{request}: it would remove {what}; {advice}"


def _tied(model: torch.nn.Module) -> list[list[str]]:
    """Return the names of each parameter and buffer. Those with the same memory are tied, although they are two objects."""
    named: dict[Hashable, list[str]] = {}
    for name, tensor in chain(
        model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    ):
        key: Hashable = id(tensor)
        if _torch_tensors.why_not(tensor) is None and tensor.numel():
            key = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        named.setdefault(key, []).append(name)
    return [names for names in named.values() if len(names) > 1]


def _attribute(model: torch.nn.Module, name: str) -> Any:
    owner, _, own_name = name.rpartition(".")
    return getattr(model.get_submodule(owner), own_name)


def _is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors have equal elements. A NaN is equal to itself."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    return torch.equal(a, b) or np.array_equal(elements_of(a, "compare")[2], elements_of(b, "compare")[2])
