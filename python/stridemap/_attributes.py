"""Mappings that are changed by commits, such as the attributes of a store."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from ._store import Changes

_V = TypeVar("_V")
_NONE: Any = object()


class Updates(MutableMapping[str, _V]):
    """A mapping whose methods that read and then write do both in one transaction, so that no writer comes between."""

    def _alone(self) -> AbstractContextManager[MutableMapping[str, _V]]:
        """Return this mapping in a transaction during which no other writer commits."""
        raise NotImplementedError

    def pop(self, key: str, default: Any = _NONE) -> Any:
        """Remove a key, and return its value. If there is no such key, return `default`, or raise a `KeyError`."""
        with self._alone() as alone:
            if default is not _NONE and key not in alone:
                return default
            value = alone[key]
            del alone[key]
            return value

    def popitem(self) -> tuple[str, _V]:
        """Remove the first key, and return it and its value."""
        with self._alone() as alone:
            key = next(iter(alone), None)
            if key is None:
                raise KeyError("popitem: the mapping is empty")
            value = alone[key]
            del alone[key]
            return key, value

    def setdefault(self, key: str, default: Any = None) -> _V:
        """Return the value of a key. If there is no such key, save `default` first."""
        with self._alone() as alone:
            if key in alone:
                return alone[key]
            alone[key] = default
        return self[key]

    def clear(self) -> None:
        """Remove everything, in one commit."""
        with self._alone() as alone:
            for key in list(alone):
                del alone[key]


class Attributes(Updates[str]):
    """Attributes of a store, a tensor or a prefix of names. Each change is a commit, or part of a transaction."""

    def __init__(self, owner: Changes, scope: str) -> None:
        self._owner, self._scope = owner, scope

    def _all(self) -> dict[str, str]:
        return dict(self._owner._handle.attributes(self._scope))

    @contextmanager
    def _alone(self) -> Iterator[Attributes]:
        with self._owner._alone() as txn:
            yield txn.attrs_of(self._scope)

    def __getitem__(self, key: str) -> str:
        return self._all()[key]

    def __setitem__(self, key: str, value: str) -> None:
        self.update({key: value})

    def __delitem__(self, key: str) -> None:
        with self._owner._alone() as txn:
            if key not in txn.attrs_of(self._scope):
                raise KeyError(key)
            txn._handle.set_attribute(self._scope, key, None)

    def update(self, other: Any = (), /, **named: Any) -> None:
        """Set several attributes, in one commit."""
        with self._owner._change() as txn:
            for key, value in dict(other, **named).items():
                if not isinstance(value, str):
                    raise TypeError(f"the value of an attribute is a str, not {type(value).__name__}: {key!r}")
                txn._handle.set_attribute(self._scope, key, value)

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        return repr(self._all())
