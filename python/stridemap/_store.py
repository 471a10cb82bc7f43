"""Stores as mappings of names to tensors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from . import _arrays, _errors, _stridemap
from ._stridemap import Snapshot, Tensor

Kind = Literal["sealed", "mutable", "live"]


def open(
    path: str | os.PathLike[str],
    mode: Literal["r", "r+", "a", "w", "x"] = "r",
    *,
    mapped: bool = True,
    durable: bool = True,
    timeout: float = 30.0,
    external: Literal["refuse", "beside", "anywhere"] = "refuse",
) -> Store:
    """Open a store: a directory of tensors.

    `mode` is "r" to read, or "r+" to read and write. "a", "w" and "x" create the store if there is none. If the store
    exists, "a" opens it like "r+", "w" removes all its tensors and attributes, and "x" fails.

    With `mapped`, arrays are views of the files in memory. This is safe as long as only stridemap changes the files of
    the store, on this and every other machine: if something else shortened a file, reading an array would end the
    process. With `mapped=False`, elements are read and copied, and reading a shortened file raises an exception.

    A commit survives a power cut if `durable`. `timeout` is how long, in seconds, a change or a lock waits for
    another process; Ctrl-C ends the wait. `external` says which files outside the store may be opened, for tensors that
    refer to such a file.

    >>> import tempfile
    >>> with open(tempfile.mkdtemp() + "/x.smap", "x") as store:
    ...     store["points"] = [[1.0, 4.0], [2.0, 1.0], [3.0, 5.0]]
    ...     store.save_view("points_t", store["points"].T)
    ...     print(store["points_t"].shape, list(store))
    (2, 3) ['points', 'points_t']
    """
    if mode not in ("r", "r+", "a", "w", "x"):
        raise ValueError(f"mode must be 'r', 'r+', 'a', 'w' or 'x', and is {mode!r}")
    # Processes with a different working directory open tensors by this path.
    path = os.path.abspath(os.fsdecode(path))
    if mode in ("x", "a", "w"):
        try:
            _stridemap.create(path, durable, timeout)
        except _errors.StoreExistsError:
            if mode == "x":
                raise
    handle = _stridemap.open(path, mapped, mode != "r", durable, timeout, external)
    store = Store(handle, mode != "r", {"mapped": mapped, "writable": mode != "r", "external": external})
    attributes = handle.attribute_keys() if mode == "w" else []
    if mode == "w" and (len(store) or attributes):
        with store.transaction() as txn:
            for scope, key in attributes:
                txn.set_attribute(scope, key, None)
            txn.clear()
    return store


class _Names(Mapping[str, Tensor]):
    """What stores, snapshots and transactions have in common: names of tensors."""

    _handle: Any

    #: A mapping is equal to itself only: to compare names, use `list`.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self._handle.load(_checked(name))
        return tensor

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(self._handle.contains(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._handle.names())

    def __len__(self) -> int:
        return len(self._handle.names())


class _Changes(_Names, MutableMapping[str, Tensor]):
    """What stores and transactions have in common: methods that change names, each in a transaction."""

    def _change(self) -> AbstractContextManager[Transaction]:
        raise NotImplementedError

    def __setitem__(self, name: str, value: Any) -> None:
        self.save(name, value)

    def __delitem__(self, name: str) -> None:
        with self._change() as txn:
            txn._handle.remove(_checked(name))

    def clear(self) -> None:
        """Remove all tensors, in one commit."""
        with self._change() as txn:
            for name in txn:
                txn._handle.remove(name)

    def update(self, other: Any = (), /, **named: Any) -> None:
        """Save several tensors, in one commit."""
        with self._change() as txn:
            for name, value in dict(other, **named).items():
                txn.save(name, value)

    def save(self, name: str, value: Any, *, kind: Kind = "sealed", replace: bool = True) -> None:
        """Save a copy of the elements of an array, a tensor of PyTorch, or whatever NumPy makes an array of.

        The elements of a "mutable" tensor can be changed under `lock()`, and those of a "live" one by `live()`.
        """
        with self._change() as txn:
            txn._handle.on_existing(replace)
            if isinstance(value, Tensor):
                txn._handle.save_tensor(_checked(name), value, kind)
            else:
                txn._handle.save(_checked(name), _arrays.elements_of(value, f'save "{name}"'), kind)

    def save_view(self, name: str, view: Tensor, *, replace: bool = True) -> None:
        """Save a view of a tensor of this store under a name of its own. Only a header is written."""
        with self._change() as txn:
            txn._handle.on_existing(replace)
            txn._handle.save_view(_checked(name), view)

    def create(self, name: str, shape: tuple[int, ...], dtype: Any, *, kind: Kind = "mutable", replace: bool = False) -> None:
        """Create a tensor of zeros. An existing tensor with this name is replaced only if `replace` is true."""
        with self._change() as txn:
            txn._handle.on_existing(replace)
            txn._handle.create_tensor(_checked(name), dtype, _sizes(shape), kind)

    def create_growable(
        self, name: str, row_shape: tuple[int, ...], dtype: Any, *, capacity: int = 0, replace: bool = False
    ) -> None:
        """Create a tensor without rows, for `append`. An existing name is handled as by `create`.

        A process that maps the tensor reserves address space for `capacity` rows. The tensor may have more rows.
        """
        with self._change() as txn:
            txn._handle.on_existing(replace)
            txn._handle.create_growable(_checked(name), dtype, [0, *_sizes(row_shape)], capacity)

    def append(self, name: str, rows: Any) -> range:
        """Append rows to a tensor. Return their positions."""
        with self._change() as txn:
            start, end = txn._handle.append(_checked(name), _arrays.elements_of(rows, f'append to "{name}"'))
            return range(start, end)

    def rename(self, name: str, new_name: str, *, replace: bool = False) -> None:
        """Rename a tensor. An existing tensor with the new name is replaced only if `replace` is true."""
        with self._change() as txn:
            txn._handle.on_existing(replace)
            txn._handle.rename(_checked(name), _checked(new_name))


class Store(_Changes):
    """An open store: a mapping of names to tensors. See `open`."""

    _handle: _stridemap.StoreHandle

    def __init__(self, handle: _stridemap.StoreHandle, writable: bool, open_mode: dict[str, Any]) -> None:
        self._handle, self._writable, self._open_mode = handle, writable, open_mode

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store. Tensors and arrays of it stay valid. Closing it again does nothing."""
        self._handle.close()

    @property
    def closed(self) -> bool:
        """Whether the store is closed."""
        return self._handle.closed

    @property
    def path(self) -> str:
        """The directory of the store."""
        return os.fspath(self._handle.path)

    @property
    def uuid(self) -> str:
        """The identity of the store. A copy made by stridemap has a different one."""
        return self._handle.uuid

    @property
    def generation(self) -> int:
        """The number of the commit that this handle shows.

        Commits by this handle, `refresh` and `wait_for_change` move the handle to a newer one.
        """
        return self._handle.generation

    def refresh(self) -> bool:
        """Move to the newest generation. Return whether there was a newer one."""
        return self._handle.refresh()

    def wait_for_change(self, timeout: float | None = None) -> bool:
        """Wait for a commit by another handle or process, and move to it. Return whether there was one.

        `timeout` is in seconds; without one, it waits until there is a commit. Other threads run meanwhile.
        """
        return self._handle.wait_for_change(timeout)

    def watch(self, timeout: float | None = None) -> Iterator[Change]:
        """Wait for commits, and yield what changed since the last one seen. A `Change` may be that of several commits.

        Changes are counted from this call on. The iterator ends when there was no commit for `timeout` seconds.
        """
        before = self._handle.snapshot()

        def changes(before: Snapshot) -> Iterator[Change]:
            while self.wait_for_change(timeout):
                after = self._handle.snapshot()
                yield Change(after.generation, *after.changes_since(before))
                before = after

        return changes(before)

    def snapshot(self) -> SnapshotView:
        """Return a snapshot of the generation that the handle shows. The snapshot does not change."""
        return SnapshotView(self._handle.snapshot())

    def transaction(self) -> Transaction:
        """Begin a transaction, for a `with` block. The end of the block commits, unless an exception leaves it."""
        self._check_writable()
        return Transaction(self._handle.begin())

    def verify(self) -> list[str]:
        """Check the metadata and all sealed bytes. Return a line for each finding: an empty list without damage."""
        return self._handle.verify()

    def compact(self) -> None:
        """Free disk space: rewrite sealed storages without the bytes that no tensor reaches."""
        self._check_writable()
        self._handle.compact()

    def _check_writable(self) -> None:
        if not self._writable:
            raise _errors.make("ReadOnly", f"{self.path}: the store was opened with mode 'r'; use 'r+'")

    @property
    def attrs(self) -> Attributes:
        """The attributes of the store: a mapping of texts to texts."""
        return Attributes(self, "")

    def attrs_of(self, name: str) -> Attributes:
        """Return the attributes of a tensor, or of a prefix of names."""
        return Attributes(self, _checked(name))

    def _change(self) -> AbstractContextManager[Transaction]:
        return self.transaction()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._writable:
            raise TypeError("only a store opened with mode 'r' can be sent to another process; open it there")
        from . import _handles

        return _handles.store, (self.path, self.uuid, self._open_mode)

    def __repr__(self) -> str:
        if self.closed:
            return "<stridemap.Store, closed>"
        return f"<stridemap.Store {self.path!r}, generation {self.generation}>"


class SnapshotView(_Names):
    """One generation of a store: a mapping of names to tensors that does not change."""

    _handle: Snapshot

    def __init__(self, handle: Snapshot) -> None:
        self._handle = handle

    @property
    def generation(self) -> int:
        """The number of the commit."""
        return self._handle.generation

    def __reduce__(self) -> tuple[Any, ...]:
        from . import _handles

        return _handles.snapshot, self._handle._origin


class Transaction(_Changes):
    """Changes that become visible together. See `Store.transaction`."""

    _handle: _stridemap.TransactionHandle

    def __init__(self, handle: _stridemap.TransactionHandle) -> None:
        self._handle = handle
        self._has_begun, self._has_ended = False, False

    def __enter__(self) -> Transaction:
        if self._has_begun:
            raise RuntimeError("a transaction has one with block; begin another transaction")
        self._has_begun = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._has_ended:
            return
        if kind is None:
            self.commit()
        else:
            self.abort()

    def commit(self) -> int:
        """Commit the changes made so far, without waiting for the end of the block. Return the new generation."""
        self._has_ended = True
        return self._handle.commit()

    def abort(self) -> None:
        """Discard the changes made so far, without waiting for the end of the block."""
        self._has_ended = True
        self._handle.abort()

    def set_attribute(self, scope: str, key: str, value: str | None) -> None:
        """Set an attribute. `scope` is the name of a tensor, a prefix of names, or "" for the store.

        The value `None` removes the attribute.
        """
        with self._change() as txn:
            txn._handle.set_attribute(scope, key, value)

    def _change(self) -> AbstractContextManager[Transaction]:
        if not self._has_begun:
            raise RuntimeError("use a transaction in a with block")
        return nullcontext(self)


class Attributes(MutableMapping[str, str]):
    """Attributes of a store, a tensor or a prefix of names. Each change is a commit."""

    def __init__(self, store: Store, scope: str) -> None:
        self._store, self._scope = store, scope

    def _all(self) -> dict[str, str]:
        return self._store._handle.attributes(self._scope)

    def __getitem__(self, key: str) -> str:
        return self._all()[key]

    def __setitem__(self, key: str, value: str) -> None:
        with self._store.transaction() as txn:
            txn.set_attribute(self._scope, key, value)

    def __delitem__(self, key: str) -> None:
        self[key]
        with self._store.transaction() as txn:
            txn.set_attribute(self._scope, key, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        return repr(self._all())


@dataclass(frozen=True)
class Change:
    """The names that were added, changed and removed between the last generation seen and this one."""

    generation: int
    added: list[str]
    changed: list[str]
    removed: list[str]


def _sizes(shape: Any) -> list[int]:
    sizes = [shape] if isinstance(shape, int) else list(shape)
    if any(size < 0 for size in sizes):
        raise _errors.make("InvalidArgument", f"a size is negative: {sizes}")
    return sizes


def _checked(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name of a tensor is a str, not {type(name).__name__}")
    return name
