"""Groups: the tensors of a store, a snapshot or a transaction whose names begin with a prefix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from . import _attributes
from ._snapshots import Names, checked_name
from ._store import Changes


class Group(Names):
    """The tensors whose names begin with a prefix, by what follows it. See `Store.group`.

    >>> store.update({"model.weight": [1, 2], "model.bias": 3})
    >>> list(store.group("model."))
    ['bias', 'weight']
    """

    def __init__(self, owner: Names, prefix: str) -> None:
        self._owner, self._prefix = owner, prefix
        self._handle = _Prefixed(owner, prefix)

    @property
    def prefix(self) -> str:
        """What the names of the group begin with in the store.

        >>> store["a.b.x"] = 1
        >>> store["a."]["b."].prefix
        'a.b.'
        """
        prefix: str = getattr(self._owner, "prefix", "") + self._prefix
        return prefix

    @property
    def attrs(self) -> Mapping[str, Any]:
        """The attributes of the prefix.

        >>> store.attrs_of("model.")["kind"] = "MLP"
        >>> store.group("model.").attrs
        {'kind': 'MLP'}
        """
        return self.attrs_of("")

    def attrs_of(self, name: str) -> Mapping[str, Any]:
        """Return the attributes of a tensor of the group, or of a longer prefix.

        >>> store.attrs_of("model.weight")["unit"] = "m"
        >>> dict(store.snapshot().group("model.").attrs_of("weight"))
        {'unit': 'm'}
        """
        return _attributes.fixed(self._handle.attributes(checked_name(name)))

    def __len__(self) -> int:
        return len(self._handle.names())

    def __bool__(self) -> bool:
        return bool(self._handle.has_prefix(""))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._owner, self._prefix)

    def __repr__(self) -> str:
        return f"<stridemap.Group {self.prefix!r} of {self._owner!r}>"


class ChangingGroup(Changes, Group):
    """A group of a store or of a transaction. What it changes, the store changes."""

    _owner: Changes

    @contextmanager
    def _change(self) -> Iterator[ChangingGroup]:
        with self._owner._change() as txn:
            yield ChangingGroup(txn, self._prefix)

    @contextmanager
    def _alone(self) -> Iterator[ChangingGroup]:
        with self._owner._alone() as txn:
            yield ChangingGroup(txn, self._prefix)

    def append(self, name: str, rows: Any) -> range:
        """Append rows to a tensor. Return their positions."""
        return self._owner.append(self._prefix + checked_name(name), rows)


class _Prefixed:
    """The handle of a store, a snapshot or a transaction, for names without their prefix.

    The name is the first argument of every method, except of those that are written out here.
    """

    def __init__(self, owner: Names, prefix: str) -> None:
        # Not the handle of the owner: a forked child replaces it.
        self._owner, self._prefix = owner, prefix

    def __getattr__(self, method: str) -> Any:
        function, prefix = getattr(self._owner._handle, method), self._prefix
        return lambda name, *arguments: function(prefix + name, *arguments)

    def names(self, prefix: str = "") -> list[str]:
        return [name[len(self._prefix) :] for name in self._owner._handle.names(self._prefix + prefix)]

    def on_existing(self, replace: bool) -> None:
        self._owner._handle.on_existing(replace)

    def rename(self, name: str, new_name: str) -> None:
        self._owner._handle.rename(self._prefix + name, self._prefix + new_name)
