"""Models that take new generations of a store, without a copy, when their server asks."""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain

import torch
from torch.nn.parameter import is_lazy

from . import _errors, _handles, _torch_models, _torch_storages
from ._files import File
from ._places import Place, ended
from ._snapshots import SnapshotView
from ._store import Store, only_store, open


class Follower:
    """A model that takes the new generations of a store: see `follow`.

    >>> import tempfile
    >>> place = tempfile.mkdtemp() + "/x.smap"
    >>> stridemap.torch.save_model(torch.nn.Linear(3, 2), place)
    >>> follower = stridemap.torch.follow(place, torch.nn.Linear(3, 2))
    >>> follower.generation, follower.update()
    (2, [])
    """

    def __init__(self, place: Place, model: torch.nn.Module, prefix: str) -> None:
        self._store, self._model, self._prefix = _own(place), model, ended(prefix)
        self._served = self._store.snapshot()
        # Once it is loaded, parameters share memory also where only those of the store do.
        kept = model.state_dict(keep_vars=True)
        self._groups = [names for group in _torch_models.grouped(model) if (names := [name for name in group if name in kept])]
        self._check(self._served, self._tied())

    @property
    def generation(self) -> int:
        """The number of the generation that the model has.

        >>> import tempfile
        >>> place = tempfile.mkdtemp() + "/x.smap"
        >>> stridemap.torch.save_model(torch.nn.Linear(3, 2), place)
        >>> stridemap.torch.follow(place, torch.nn.Linear(3, 2)).generation
        2
        """
        return self._served.generation

    def update(self) -> list[str]:
        """Take the newest generation. Return the names of the parameters and buffers that it has replaced.

        Call this between batches, when no other thread uses the model. If the generation does not fit the model, a
        `RuntimeError` says why, and the model stays as it is.

        >>> import tempfile
        >>> place = tempfile.mkdtemp() + "/x.smap"
        >>> model = torch.nn.Linear(3, 2)
        >>> stridemap.torch.save_model(model, place)
        >>> follower = stridemap.torch.follow(place, torch.nn.Linear(3, 2))
        >>> torch.nn.init.ones_(model.bias).sum().item()
        2.0
        >>> stridemap.torch.save_file({"weight": model.weight, "bias": model.bias}, place)
        >>> follower.update()
        ['bias', 'weight']
        """
        self._store.refresh()
        if self._store.generation == self._served.generation:
            return []
        newest = self._store.snapshot()
        change = newest.changes_since(self._served)
        names = {
            name.removeprefix(self._prefix)
            for name in chain(change.added, change.changed, change.removed)
            if name.startswith(self._prefix)
        }
        # A tensor that is made in inference mode could not be the data of a parameter.
        with torch.inference_mode(False), torch.no_grad():
            replaced = self._replace(newest, names) if names else []
        self._served = newest
        return replaced

    def _replace(self, newest: SnapshotView, names: Collection[str]) -> list[str]:
        """Replace what has one of the names, or is tied to one of them."""
        tied = self._tied()
        stored = self._check(newest, tied, names)
        groups = [group for group in tied if not group.keys().isdisjoint(names)]
        present = [[name for name in group if name in stored] for group in groups]
        wanted = list(chain.from_iterable(present))
        loaded = _torch_storages.to_torch([newest[self._prefix + name] for name in wanted], {})
        found = dict(zip(wanted, loaded, strict=True))
        data = []
        for group, own in zip(groups, present, strict=True):
            first, *others = (found[name] for name in own)
            if not all(_torch_models.is_same(first, other) for other in others):
                message = f"{', '.join(map(repr, own))} are tied in the model, but have different elements in the store"
                raise RuntimeError(self._refusal(newest, message))
            target = next(iter(group.values()))
            data.append(first.to(target.device, target.dtype))
        # From here on, nothing can fail.
        for group, tensor in zip(groups, data, strict=True):
            for target in group.values():
                target.data = tensor
        return sorted(chain.from_iterable(groups))

    def _tied(self) -> list[dict[str, torch.Tensor]]:
        """Return the parameters and buffers of the model that a state dict has, by name. Tied ones are in one dict."""
        named = _torch_models.named(self._model)
        return [{name: named[name] for name in group} for group in self._groups]

    def _check(
        self, snapshot: SnapshotView, tied: list[dict[str, torch.Tensor]], changed: Collection[str] | None = None
    ) -> set[str]:
        """Return the names in the store. Raise an error if they are not those of the model, or a shape that changed is not."""
        stored = {name.removeprefix(self._prefix) for name in snapshot._handle.names(self._prefix)}
        missing = [name for group in tied if stored.isdisjoint(group) for name in group]
        unexpected = sorted(stored.difference(*tied))
        if unexpected:
            # A state dict can have more, such as the extra state of a module. To make one takes long.
            unexpected = sorted(set(unexpected).difference(self._model.state_dict()))
        found = {
            name: (snapshot[self._prefix + name].shape, tuple(tensor.shape))
            for group in tied
            for name, tensor in group.items()
            if name in stored and (changed is None or name in changed) and not is_lazy(tensor)
        }
        shapes = [f"{name!r}: {new} in the store, {own} in the model" for name, (new, own) in found.items() if new != own]
        findings = (("missing in the store", missing), ("not in the model", unexpected), ("of another shape", shapes))
        if any(found for _, found in findings):
            message = "; ".join(f"{what}: {', '.join(found)}" for what, found in findings if found)
            raise RuntimeError(self._refusal(snapshot, message))
        return stored

    def _refusal(self, snapshot: SnapshotView, why: str) -> str:
        where = f"the names with the prefix {self._prefix!r} in generation" if self._prefix else "generation"
        what = f"{where} {snapshot.generation} of {self._store.path} and {type(self._model).__name__}"
        return f"follow: {what} do not fit each other, so the model stays as it is: {why}"

    def __repr__(self) -> str:
        return f"<stridemap.torch.Follower of {self._store.path!r}, generation {self.generation}>"


def _own(place: Place) -> Store:
    """Return a handle that only one follower moves."""
    if not isinstance(place, Store | File):
        return only_store(open(place), "follow")
    store = only_store(place, "follow")
    if store._is_fixed:
        message = f"follow: {store.path} is open at generation {store.generation}, and stays on it; open it without at"
        raise _errors.make("InvalidArgument", message)
    mode = {**store._open_mode, "writable": False}
    if mode["remote"]:
        return _handles.remote_store(store.path, store.uuid, mode, store.generation, False)
    return _handles.store(store.path, store.uuid, mode)
