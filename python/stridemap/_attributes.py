"""Mappings that are changed by commits, such as the attributes of a store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from . import _errors

if TYPE_CHECKING:
    from ._store import Changes

_V = TypeVar("_V")
_NONE: Any = object()

#: What the text of an attribute begins with if JSON follows. An attribute is a text in the store.
_JSON = "json:"


class Updates(MutableMapping[str, _V]):
    """A mapping whose methods that read and then write do both in one transaction, so that no writer comes between."""

    def _alone(self) -> AbstractContextManager[MutableMapping[str, _V]]:
        """Return this mapping in a transaction during which no other writer commits."""
        raise NotImplementedError

    def pop(self, key: str, default: Any = _NONE) -> Any:
        """Remove a key, and return its value. If there is no such key, return `default`, or raise a `KeyError`.

        >>> store.attrs["author"] = "Ada"
        >>> store.attrs.pop("author"), store.attrs.pop("author", None)
        ('Ada', None)
        """
        with self._alone() as alone:
            if default is not _NONE and key not in alone:
                return default
            value = alone[key]
            del alone[key]
            return value

    def popitem(self) -> tuple[str, _V]:
        """Remove the first key, and return it and its value.

        >>> store.attrs["author"] = "Ada"
        >>> store.attrs.popitem()
        ('author', 'Ada')
        """
        with self._alone() as alone:
            key = next(iter(alone), None)
            if key is None:
                raise KeyError("popitem: the mapping is empty")
            value = alone[key]
            del alone[key]
            return key, value

    def setdefault(self, key: str, default: Any = None) -> _V:
        """Return the value of a key. If there is no such key, save `default` first.

        >>> store.attrs.setdefault("runs", 0), store.setdefault("x", 5).shape
        (0, (2, 3))
        """
        with self._alone() as alone:
            if key in alone:
                return alone[key]
            alone[key] = default
        return self[key]

    def clear(self) -> None:
        """Remove everything, in one commit.

        >>> store.clear()
        >>> len(store)
        0
        """
        with self._alone() as alone:
            for key in list(alone):
                del alone[key]


class Attributes(Updates[Any]):
    """Attributes of a store, a tensor or a prefix of names: a mapping of texts to whatever JSON has.

    Each change is a commit, or part of a transaction. A value is a copy: to change a list or a dict, set the key again.

    >>> store.attrs["units"] = ["m", "s"]
    >>> store.attrs, store.attrs_of("x")
    ({'units': ['m', 's']}, {})
    """

    def __init__(self, owner: Changes, scope: str) -> None:
        self._owner, self._scope = owner, scope

    def _texts(self) -> dict[str, str]:
        return dict(self._owner._handle.attributes(self._scope))

    @contextmanager
    def _alone(self) -> Iterator[Attributes]:
        with self._owner._alone() as txn:
            yield txn.attrs_of(self._scope)

    def __getitem__(self, key: str) -> Any:
        return decoded(self._texts()[key])

    def __setitem__(self, key: str, value: Any) -> None:
        self.update({key: value})

    def __delitem__(self, key: str) -> None:
        with self._owner._alone() as txn:
            if key not in txn.attrs_of(self._scope):
                raise KeyError(key)
            txn._handle.set_attribute(self._scope, key, None)

    def update(self, other: Any = (), /, **named: Any) -> None:
        """Set several attributes, in one commit.

        >>> store.attrs.update(author="Ada", version=2)
        >>> store.attrs["version"]
        2
        """
        texts = {key: encoded(value, f"set attribute {key!r}") for key, value in dict(other, **named).items()}
        with self._owner._change() as txn:
            for key, text in texts.items():
                txn._handle.set_attribute(self._scope, key, text)

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts())

    def __len__(self) -> int:
        return len(self._texts())

    def __repr__(self) -> str:
        return repr(dict(self))


def fixed(texts: dict[str, str]) -> Mapping[str, Any]:
    """Return attributes as a mapping that cannot be changed."""
    return MappingProxyType({key: decoded(text) for key, text in texts.items()})


def encoded(value: Any, action: str) -> str:
    """Return the text of an attribute: a text as it is, and everything else as JSON after a mark.

    >>> encoded("m/s", ""), encoded([1, None], ""), encoded("json:", "")
    ('m/s', 'json:[1, null]', 'json:"json:"')
    """
    if isinstance(value, str) and not value.startswith(_JSON):
        return value
    try:
        return _JSON + json.dumps(_plain(value, action), allow_nan=False)
    except ValueError:
        message = f"{action}: JSON has no NaN and no infinities; set a text, such as 'nan'"
        raise _errors.make("InvalidArgument", message) from None
    except RecursionError:
        raise _errors.make("InvalidArgument", f"{action}: the lists and dicts are nested too deeply") from None


def decoded(text: str) -> Any:
    """Return the value of an attribute. What is not JSON after the mark is a text.

    >>> decoded("m/s"), decoded("json:[1, null]"), decoded('json:"json:"'), decoded("json:?")
    ('m/s', [1, None], 'json:', 'json:?')
    """
    if not text.startswith(_JSON):
        return text
    try:
        return json.loads(text[len(_JSON) :])
    except (ValueError, RecursionError):
        return text


def _plain(value: Any, action: str) -> Any:
    """Return a value of JSON, or refuse one that would come back as something else."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case np.generic():
            return _plain(value.item(), action)
        case list() | tuple():
            return [_plain(part, action) for part in value]
        case dict():
            if wrong := [key for key in value if not isinstance(key, str)]:
                raise TypeError(f"{action}: a key of a dict is a str, not {type(wrong[0]).__name__}: {wrong[0]!r}")
            return {key: _plain(part, action) for key, part in value.items()}
    advice = "; save it as a tensor, or its tolist()" if hasattr(value, "tolist") else ""
    message = f"{action}: JSON has texts, numbers, bools, None, lists and dicts, and not {type(value).__name__}{advice}"
    raise TypeError(message)
