"""Snapshots as mappings of names to tensors, and the changes between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any

from . import _history
from ._stridemap import Snapshot, Tensor


class Names(Mapping[str, Tensor]):
    """What stores, snapshots and transactions have in common: names of tensors."""

    _handle: Any

    #: A mapping is equal to itself only: to compare names, use `list`.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self._handle.load(checked_name(name))
        return tensor

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(self._handle.contains(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._handle.names())

    def __len__(self) -> int:
        return len(self._handle.names())


class SnapshotView(Names):
    """One generation of a store: a mapping of names to tensors that does not change."""

    _handle: Snapshot

    def __init__(self, handle: Snapshot) -> None:
        self._handle = handle

    @property
    def generation(self) -> int:
        """The number of the commit."""
        return self._handle.generation

    @property
    def time(self) -> datetime:
        """When the generation was published, in UTC, by the clock of the machine that did it."""
        return _history.time(self._handle.time)

    @property
    def message(self) -> str | None:
        """The message of the transaction that published the generation."""
        return self._handle.message

    @property
    def attrs(self) -> Mapping[str, str]:
        """The attributes of the store in this generation. They cannot be changed."""
        return self.attrs_of("")

    def attrs_of(self, name: str) -> Mapping[str, str]:
        """Return the attributes of a tensor, or of a prefix of names. Those of the prefix "" are those of the store."""
        return MappingProxyType(self._handle.attributes(checked_name(name)))

    def changes_since(self, earlier: SnapshotView) -> Change:
        """Return the names that were added, changed and removed since an earlier snapshot of the same store.

        A tensor that was saved again counts as changed, even if its elements are the same. Changes in place do not
        count. If `earlier` is the newer of the two, the result lists what undoes the commits between them.

        >>> import tempfile, stridemap
        >>> with stridemap.open(tempfile.mkdtemp() + "/x.smap", "x") as store:
        ...     store["x"] = 1
        ...     store.tag("v1")
        ...     store.update(x=2, y=3)
        ...     print(store.snapshot().changes_since(store.at("v1")))
        Change(generation=4, added=['y'], changed=['x'], removed=[])
        """
        if not isinstance(earlier, SnapshotView):
            raise TypeError(f"changes_since: give a snapshot, such as store.at('v1'), not {type(earlier).__name__}")
        return Change(self.generation, *self._handle.changes_since(earlier._handle))

    def __reduce__(self) -> tuple[Any, ...]:
        from . import _handles

        return _handles.snapshot, self._handle._origin

    def __repr__(self) -> str:
        message = "" if self.message is None else f", {self.message!r}"
        return f"<stridemap.SnapshotView of {str(self._handle._origin[0])!r}, generation {self.generation}{message}>"


@dataclass(frozen=True)
class Change:
    """The names that were added, changed and removed between an earlier generation and this one."""

    generation: int
    added: list[str]
    changed: list[str]
    removed: list[str]


def checked_name(name: object, what: str = "tensor") -> str:
    """Return a name, if it is a text."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a {what} is a str, not {type(name).__name__}")
    return name
