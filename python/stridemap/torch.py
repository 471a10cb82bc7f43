"""Models, state dicts and checkpoints of PyTorch.

The functions for files and models have the names of those in `safetensors.torch`. If tensors share
memory, their storage is saved once, and each tensor is saved as a header over it. When they are loaded, they share
memory again.

Loaded tensors are mapped, and not copied. Writing to them, as training does, changes a copy of a page in this process,
and never the store. Each load maps the files again, so what is written to the tensors of one load is not seen in those
of another.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from . import _arrays, _errors
from ._store import Store, Transaction, open

__all__ = ["load_checkpoint", "load_file", "load_model", "save_checkpoint", "save_file", "save_model"]

Place = Store | str | os.PathLike[str]

#: What is saved of a storage begins at a multiple of this many bytes. It is a multiple of the size of every dtype.
_ALIGNMENT = 64


def save_file(tensors: Mapping[str, torch.Tensor], place: Place, *, prefix: str = "") -> None:
    """Save tensors in one commit, each under its name after `prefix`.

    `place` is an open store, or a path. At a path, the commit also removes all other tensors whose names begin with
    `prefix`.
    """
    new = {prefix + name: tensor for name, tensor in tensors.items()}
    groups = _groups(new)
    with _writing(place) as (store, is_path), store.transaction() as txn:
        for name in store if is_path else ():
            if name.startswith(prefix) and name not in new:
                del txn[name]
        for group in groups:
            _save(txn, group)


def load_file(place: Place, *, prefix: str = "") -> dict[str, torch.Tensor]:
    """Return the tensors whose names begin with `prefix`, by their names without it. They are mapped, not read."""
    with _reading(place) as store:
        names = [name for name in store if name.startswith(prefix)]
        storages: _arrays.TorchStorages = {}
        return {name.removeprefix(prefix): _arrays.to_torch(store[name], storages) for name in names}


def save_model(model: torch.nn.Module, place: Place, *, prefix: str = "") -> None:
    """Save the state dict of a model. Tied weights stay tied."""
    save_file(model.state_dict(), place, prefix=prefix)


def load_model(
    model: torch.nn.Module, place: Place, *, prefix: str = "", strict: bool = True
) -> tuple[list[str], list[str]]:
    """Give a model the mapped tensors of a store as its parameters and buffers, without a copy.

    Return the names that are missing in the store, and those that the model does not have. With `strict`, such names
    raise a `RuntimeError`. Parameters that were tied stay tied, and one of their names in the store is enough. The
    parameters are new objects: make the optimizer afterwards, and move the model to its device afterwards.
    """
    names_by_parameter: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names_by_parameter.setdefault(id(parameter), []).append(name)
    state = load_file(place, prefix=prefix)
    parameters = [(names, [name for name in names if name in state]) for names in names_by_parameter.values()]
    for _, loaded in parameters:
        for name in loaded[1:]:
            if not _is_same(state[loaded[0]], state[name]):
                message = f"{loaded[0]!r} and {name!r} are tied in the model, but have different elements in the store"
                raise _errors.make("InvalidArgument", message)
    result = model.load_state_dict(state, strict=False, assign=True)
    missing = set(result.missing_keys)
    for names, loaded in parameters:
        parameter = model.get_parameter((loaded or names)[0])
        for name in names:
            owner, _, own_name = name.rpartition(".")
            setattr(model.get_submodule(owner), own_name, parameter)
        missing.difference_update(names if loaded else ())
    absent, unexpected = [name for name in result.missing_keys if name in missing], list(result.unexpected_keys)
    if strict and (absent or unexpected):
        message = f"missing in the store: {absent}; not in the model: {unexpected}"
        raise RuntimeError(f"load_model: {type(model).__name__}: {message}; pass strict=False to load the others")
    return absent, unexpected


def _is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    header = (a.data_ptr(), a.shape, a.stride(), a.dtype)
    return header == (b.data_ptr(), b.shape, b.stride(), b.dtype) or a.dtype == b.dtype and torch.equal(a, b)


def save_checkpoint(place: Place, name: str, state: Any) -> None:
    """Save a state, such as that of a model or an optimizer: dicts, lists, tuples, tensors and plain values.

    Tensors that are equal to those of the last checkpoint in the store are saved as headers over them.
    """
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(_described(state, f"{name}/", tensors))
    with _writing(place) as (store, _), store.transaction() as txn:
        last = store.attrs.get("checkpoint")
        replaced = _names(_saved_state(store, name)) if f"{name}.json" in store else set()
        for stale in replaced - set(tensors):
            if stale in store:
                del txn[stale]
        reused: dict[int, list[tuple[int, int]]] = {}
        for group in _groups(tensors):
            old = [f"{last}/{new.removeprefix(f'{name}/')}" for new, _ in group]
            if last is not None and _can_reuse(store, old, group, reused):
                for old_name, (new, _) in zip(old, group, strict=True):
                    txn.save_view(new, store[old_name])
            else:
                _save(txn, group)
        txn.save(f"{name}.json", np.frombuffer(text.encode(), np.uint8))
        txn.set_attribute("", "checkpoint", name)


def load_checkpoint(place: Place, name: str | None = None) -> Any:
    """Return the state of a checkpoint, by default the last one. Its tensors are mapped."""
    with _reading(place) as store:
        name = store.attrs.get("checkpoint") if name is None else name
        if name is None or f"{name}.json" not in store:
            message = f"{store.path}: no checkpoint {'' if name is None else repr(name)}".rstrip()
            raise _errors.make("NameNotFound", message)
        return _restored(_saved_state(store, name), store, {})


def _saved_state(store: Store, name: str) -> Any:
    """Return the description of a checkpoint."""
    try:
        return json.loads(store[f"{name}.json"].numpy().tobytes())
    except ValueError:
        message = f"{store.path}: {name}.json is not a checkpoint; choose a different name"
        raise _errors.make("NameExists", message) from None


def _names(value: Any) -> set[str]:
    """Return the names of the tensors in a description."""
    if isinstance(value, list):
        return set().union(*map(_names, value))
    if not isinstance(value, dict):
        return set()
    ((kind, content),) = value.items()
    return {content} if kind == "tensor" else _names(content)


@contextmanager
def _writing(place: Place) -> Iterator[tuple[Store, bool]]:
    """Yield the store, and whether `place` is its path."""
    if isinstance(place, Store):
        yield place, False
    else:
        with open(place, "a") as store:
            yield store, True


@contextmanager
def _reading(place: Place) -> Iterator[Store]:
    if isinstance(place, Store):
        yield place
    else:
        with open(place) as store:
            yield store


Group = list[tuple[str, torch.Tensor]]


def _groups(tensors: Mapping[str, torch.Tensor]) -> list[Group]:
    """Return the tensors grouped by device and storage."""
    groups: dict[tuple[str, int], Group] = {}
    for name, value in tensors.items():
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name!r} is not a tensor but {type(value).__name__}")
        if value.layout != torch.strided or value.is_quantized or value.device.type == "meta":
            raise TypeError(f"{name!r} cannot be saved: its elements are not in a storage ({value.layout}, {value.device})")
        tensor = value.detach().resolve_conj().resolve_neg()
        # A tensor without elements may be on a storage without an address.
        start = tensor.untyped_storage().data_ptr() if tensor.numel() else -len(groups)
        groups.setdefault((str(tensor.device), start), []).append((name, tensor))
    return list(groups.values())


def _save(txn: Transaction, group: Group) -> None:
    """Save the tensors of one storage: its bytes once, and a header each."""
    if len(group) == 1 and group[0][1].is_contiguous():
        ((name, tensor),) = group
        txn.save(name, tensor)
        return
    first = min(int(tensor.storage_offset()) * tensor.itemsize for _, tensor in group)
    first -= first % _ALIGNMENT
    end = max(_end(tensor) for _, tensor in group)
    # Storages of different lengths can begin at one address.
    longest = max((tensor.untyped_storage() for _, tensor in group), key=lambda storage: storage.nbytes())
    empty = torch.empty(0, dtype=torch.uint8, device=group[0][1].device)
    whole = empty.set_(longest, first, (end - first,), (1,))
    storage = txn._handle.stage(_arrays.elements_of(whole))
    for name, tensor in group:
        offset = int(tensor.storage_offset()) - first // tensor.itemsize
        layout = (tuple(tensor.shape), tensor.stride(), offset)
        txn._handle.save_header(name, str(tensor.dtype).removeprefix("torch."), layout, storage)


def _end(tensor: torch.Tensor) -> int:
    """Return where the last element ends in the storage, in bytes."""
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (int(tensor.storage_offset()) + last + 1) * tensor.itemsize


def _can_reuse(store: Store, names: list[str], group: Group, reused: dict[int, list[tuple[int, int]]]) -> bool:
    """Return whether saved tensors can be reused for those of a group.

    They must be equal, overlap each other in the same places, and not overlap saved tensors that another group reuses.
    """
    if any(name not in store for name in names):
        return False
    saved = [store[name] for name in names]
    first, first_new = saved[0], group[0][1]
    shift = first.storage_offset * first.itemsize - int(first_new.storage_offset()) * first_new.itemsize
    for old, (_, new) in zip(saved, group, strict=True):
        header = (f"torch.{old.dtype}", old.shape, old.stride(), old.storage_id)
        offset = int(new.storage_offset()) * new.itemsize + shift
        if header != (str(new.dtype), tuple(new.shape), new.stride(), first.storage_id):
            return False
        if old.size and old.storage_offset * old.itemsize != offset:
            return False
        # Compare with the memory that is lent read-only: this process may have written to the mapping of `to_torch`.
        elements = np.asarray(old.contiguous()._lend() or old.copy()._lend())
        if not np.array_equal(elements.reshape(-1).view(np.uint8), _arrays.elements_of(new)[2]):
            return False
    ends = [_end(new) + shift for _, new in group if new.numel()]
    own = (min((old.storage_offset * old.itemsize for old in saved)), max(ends, default=0))
    others = reused.setdefault(first.storage_id or 0, [])
    if any(start < own[1] and end > own[0] for start, end in others):
        return False
    others.append(own)
    return True


def _described(value: Any, key_path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Return a value for JSON. Tensors go into `tensors` under their key paths; the value has these names instead."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Tensor):
        name = key_path.removesuffix(".")
        # Keys such as 1 and "1", or "a.b" and "a" with "b", have the same key path.
        while name in tensors:
            name += "'"
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, list | tuple):
        parts = [_described(part, f"{key_path}{index}.", tensors) for index, part in enumerate(value)]
        return parts if isinstance(value, list) else {"tuple": parts}
    if isinstance(value, dict):
        return {
            "dict": [
                [_key(key, key_path), _described(part, f"{key_path}{key}.", tensors)] for key, part in value.items()
            ]
        }
    raise TypeError(f"{key_path.removesuffix('.')}: a checkpoint cannot hold {type(value).__name__}")


def _key(key: Any, key_path: str) -> Any:
    """Return a key of a dict for JSON."""
    tensors: dict[str, torch.Tensor] = {}
    described = _described(key, key_path, tensors)
    if tensors:
        raise TypeError(f"{key_path.removesuffix('.')}: a checkpoint cannot hold a tensor as a key")
    return described


def _restored(value: Any, store: Store, storages: _arrays.TorchStorages) -> Any:
    if isinstance(value, list):
        return [_restored(part, store, storages) for part in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    match kind:
        case "tensor":
            return _arrays.to_torch(store[content], storages)
        case "tuple":
            return tuple(_restored(part, store, storages) for part in content)
        case _:
            return {_restored(key, store, storages): _restored(part, store, storages) for key, part in content}
