"""Snapshots as mappings of names to tensors, and the changes between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from . import _attributes, _errors, _forks, _history, _html
from ._progress import Progress, reporter
from ._stridemap import Snapshot, Tensor

if TYPE_CHECKING:
    from ._groups import Group

#: What the prefix of a group ends with.
_ENDS = (".", "/")


class Names(Mapping[str, Tensor]):
    """What stores, snapshots and transactions have in common: names of tensors."""

    _handle: Any

    #: A mapping is equal to itself only: to compare names, use `list`.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __getitem__(self, name: str) -> Any:
        tensor = self._handle.find(checked_name(name))
        return self._group_or_error(name) if tensor is None else tensor

    def _group_or_error(self, name: str) -> Group:
        if name.endswith(_ENDS) and self._handle.has_prefix(name):
            return self.group(name)
        raise _errors.NameNotFoundError.of(self, name)

    def group(self, prefix: str) -> Group:
        """Return the tensors whose names begin with a prefix, such as "encoder.", as a mapping of what follows it.

        The prefix ends with "." or "/". The group sees what the store sees, and has its methods; its `attrs` are the
        attributes of the prefix. `store["encoder."]` is the same, if there are such names.

        >>> import tempfile, stridemap
        >>> with stridemap.open(tempfile.mkdtemp() + "/x.smap", "x") as store:
        ...     encoder = store.group("encoder.")
        ...     encoder.update({"0.weight": [1, 2], "0.bias": 3})
        ...     print(list(store), list(encoder), store["encoder.0."]["bias"].item())
        ['encoder.0.bias', 'encoder.0.weight'] ['0.bias', '0.weight'] 3
        """
        from ._groups import Group

        return Group(self, checked_prefix(prefix))

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        return self._handle.contains(name) or (name.endswith(_ENDS) and self._handle.has_prefix(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._handle.names())

    def __len__(self) -> int:
        count: int = self._handle.tensor_count()
        return count


class SnapshotView(Names):
    """One generation of a store: a mapping of names to tensors that does not change.

    >>> before = store.snapshot()
    >>> store["x"] = 0
    >>> before["x"].shape, store["x"].shape
    ((2, 3), ())
    """

    _handle: Snapshot

    def __init__(self, handle: Snapshot) -> None:
        self._handle = handle
        if not handle._origin[2]["remote"]:
            _forks.register(self, self.__reduce__())

    @property
    def generation(self) -> int:
        """The number of the commit.

        >>> store.snapshot().generation == store.generation
        True
        """
        return self._handle.generation

    @property
    def time(self) -> datetime:
        """When the generation was published, in UTC, by the clock of the machine that did it.

        >>> store.snapshot().time.tzname()
        'UTC'
        """
        return _history.time(self._handle.time)

    @property
    def message(self) -> str | None:
        """The message of the transaction that published the generation.

        >>> with store.transaction(message="more") as txn:
        ...     txn["y"] = 1
        >>> store.snapshot().message
        'more'
        """
        return self._handle.message

    @property
    def attrs(self) -> Mapping[str, Any]:
        """The attributes of the store in this generation. They cannot be changed.

        >>> store.attrs["author"] = "Ada"
        >>> dict(store.snapshot().attrs)
        {'author': 'Ada'}
        """
        return self.attrs_of("")

    def attrs_of(self, name: str) -> Mapping[str, Any]:
        """Return the attributes of a tensor, or of a prefix of names. Those of the prefix "" are those of the store.

        >>> store.attrs_of("x")["unit"] = "m"
        >>> dict(store.snapshot().attrs_of("x"))
        {'unit': 'm'}
        """
        return _attributes.fixed(self._handle.attributes(checked_name(name)))

    def prefetch(self, names: Iterable[str] | None = None, *, progress: Progress | bool | None = None) -> None:
        """Read tensors, or all, from the disk into the page cache: memory that the system can reclaim. Return when it is done.

        What uses the tensors afterwards does not wait for the disk. The bytes are read in their order on the disk, by several
        threads, which is faster than to read one tensor after another. `progress` is as for `Store.verify`. If the store was
        opened with `verify`, the elements are verified. Of a store in a URL, this only asks for the first 64 MiB.

        >>> store.snapshot().prefetch(["x"])
        """
        if isinstance(names, str):
            raise TypeError(f"prefetch: names are several; give [{names!r}]")
        with reporter("prefetch", progress) as report:
            self._handle.prefetch(None if names is None else [checked_name(name) for name in names], report)

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

    def _repr_html_(self) -> str:
        return _html.of_store(self)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def __repr__(self) -> str:
        message = "" if self.message is None else f", {self.message!r}"
        return f"<stridemap.SnapshotView of {str(self._handle._origin[0])!r}, generation {self.generation}{message}>"


@dataclass(frozen=True)
class Change:
    """The names that were added, changed and removed between an earlier generation and this one.

    >>> before = store.snapshot()
    >>> store["y"] = 1
    >>> store.snapshot().changes_since(before).added
    ['y']
    """

    generation: int
    added: list[str]
    changed: list[str]
    removed: list[str]


def checked_name(name: object, what: str = "tensor") -> str:
    """Return a name, if it is a text."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a {what} is a str, not {type(name).__name__}")
    return name


def checked_prefix(prefix: object) -> str:
    """Return the prefix of a group, if it is one."""
    checked = checked_name(prefix, "group")
    if checked and not checked.endswith(_ENDS):
        message = f"group {checked!r}: a prefix ends with '.' or '/', such as {checked + '.'!r}"
        raise _errors.make("InvalidArgument", message)
    return checked
