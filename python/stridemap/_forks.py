"""Stores and snapshots in a forked child, which opens them again when it uses them first.

A child must not use what it inherits: it shares the locks of its parent, and a mutex may be locked forever. The workers of
a `DataLoader` are forked, so a data set with a store that was opened for reading would not work in them.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._snapshots import Names

#: How each store and snapshot is opened again, as `__reduce__` says it.
_reopened: weakref.WeakKeyDictionary[Names, tuple[Callable[..., Names], tuple[Any, ...]]] = weakref.WeakKeyDictionary()

#: The handles of the parent. They are kept: what ends them may wait for a mutex.
_inherited: list[Any] = []


def register(names: Names, reopened: tuple[Callable[..., Names], tuple[Any, ...]]) -> None:
    """Let forked children open a store or a snapshot again."""
    _reopened[names] = reopened


class _Closed:
    """Stands for the handle of a store or a snapshot that the child has not used yet."""

    def __init__(self, names: Names) -> None:
        self._names = weakref.ref(names)

    def __getattr__(self, name: str) -> Any:
        names = self._names()
        assert names is not None, "only its store or snapshot has this"
        function, arguments = _reopened[names]
        names._handle = function(*arguments)._handle
        return getattr(names._handle, name)


def _replace() -> None:
    """Replace the handles in a child. Stores that are closed stay closed."""
    for names in list(_reopened):
        if not getattr(names._handle, "closed", False):
            _inherited.append(names._handle)
            names._handle = _Closed(names)


os.register_at_fork(after_in_child=_replace)
