"""Stores as mappings of names to tensors."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

from . import _arrays, _errors, _forks, _history, _html, _operators, _progress, _remotes, _stridemap
from ._attributes import Attributes, Updates
from ._history import At, LogEntry, TagInfo
from ._snapshots import Change, Names, SnapshotView, checked_name, checked_prefix
from ._stridemap import Snapshot, Tensor

if TYPE_CHECKING:
    from ._files import File
    from ._groups import ChangingGroup

Kind = Literal["sealed", "mutable", "live"]


External = Literal["refuse", "beside", "anywhere"]


@overload
def open(
    path: str | os.PathLike[str],
    mode: Literal["r+", "a", "w", "w-", "x"],
    *,
    at: None = None,
    mapped: bool = True,
    durable: bool = True,
    timeout: float = 30.0,
    external: External = "refuse",
    verify: bool = False,
) -> Store: ...
@overload
def open(
    path: str | os.PathLike[str],
    mode: Literal["r"] = "r",
    *,
    at: At,
    mapped: bool = True,
    durable: bool = True,
    timeout: float = 30.0,
    external: External = "refuse",
    verify: bool = False,
) -> Store: ...
@overload
def open(
    path: str | os.PathLike[str],
    mode: Literal["r", "r+", "a", "w", "w-", "x"] = "r",
    *,
    at: At | None = None,
    mapped: bool = True,
    durable: bool = True,
    timeout: float = 30.0,
    external: External = "refuse",
    verify: bool = False,
) -> Store | File: ...
def open(
    path: str | os.PathLike[str],
    mode: Literal["r", "r+", "a", "w", "w-", "x"] = "r",
    *,
    at: At | None = None,
    mapped: bool = True,
    durable: bool = True,
    timeout: float = 30.0,
    external: External = "refuse",
    verify: bool = False,
) -> Store | File:
    """Open a store: a directory of tensors. Or open a file of tensors, to read it.

    `mode` is "r" to read, or "r+" to read and write. "a", "w" and "x" create the store if there is none. If the store
    exists, "a" opens it like "r+", "w" removes all its tensors and attributes, and "x" (or "w-") fails. Tags stay with "w", and so
    do the bytes that they keep: `untag` and `prune` remove them.

    With `at`, the name of a tag or the number of a generation, the store shows that generation, and stays on it. The
    mode must be "r". A path such as "x.smap@v1", as commands take it, is not the path of a store.

    With `mapped`, arrays are views of the files in memory. This is safe as long as only stridemap changes the files of
    the store, on this and every other machine: if something else shortened a file, reading an array would end the
    process. With `mapped=False`, elements are read and copied, and reading a shortened file raises an exception.

    A commit survives a power cut if `durable`. `timeout` is how long, in seconds, a change or a lock waits for
    another process; Ctrl-C ends the wait. `external` says which files outside the store may be opened, for tensors that
    refer to such a file.

    With `verify`, elements are compared with their checksums when this store first reads or lends them, once. What the disk
    has changed is then a `DamagedError`, and not a wrong value. Mutable, live and adopted tensors have no checksums.

    The path may be that of a file: safetensors, also the index of a sharded model, `.npy` and `.npz` of NumPy, `.pt` of
    PyTorch, or `.gguf` of llama.cpp. The result is then a `File`, a mapping that can be read, and not a `Store`. The format is recognized from the
    contents, and no code in a file is run. The mode must be "r".

    The path may be a URL to which a store was pushed, such as "s3://bucket/x.smap". The store is then read in place, by
    ranges of its objects: elements are copied when they are needed. The mode must be "r". The store stays on the
    generation that was the newest, until `refresh`. Elements are always verified, with or without `verify`. A failed
    request is repeated for up to `timeout`. Credentials come from the environment.

    >>> import tempfile
    >>> with open(tempfile.mkdtemp() + "/x.smap", "x") as store:
    ...     store["points"] = [[1.0, 4.0], [2.0, 1.0], [3.0, 5.0]]
    ...     store.save_view("points_t", store["points"].T)
    ...     print(store["points_t"].shape, list(store))
    ...     store.tag("v1")
    ...     del store["points_t"]
    ...     print(list(store), list(open(store.path, at="v1")))
    (2, 3) ['points', 'points_t']
    ['points'] ['points', 'points_t']
    """
    if "torch" in sys.modules:
        from . import _torch_batches  # noqa: F401
    if mode == "w-":
        mode = "x"
    if mode not in ("r", "r+", "a", "w", "x"):
        raise ValueError(f"mode must be 'r', 'r+', 'a', 'w', 'w-' or 'x', and is {mode!r}")
    if at is not None and mode != "r":
        raise ValueError(f"with at, a store is opened to be read: mode must be 'r', and is {mode!r}")
    if not os.fspath(path):
        raise _errors.make("NotFound", "open '': the path is empty")
    if isinstance(path, str) and _remotes.is_url(path):
        return _open_url(path, mode, at, timeout, external)
    if os.path.isfile(path):
        return _open_file(path, mode, at, verify)
    # Processes with a different working directory open tensors by this path.
    path = os.path.abspath(os.fsdecode(path))
    if mode in ("x", "a", "w"):
        _stridemap.create(path, mode, durable, timeout)
    wanted = None if at is None else _history.checked(at)
    try:
        handle = _stridemap.open(path, wanted, mapped, mode != "r", durable, timeout, external, verify)
    except _errors.StoreNotFoundError as error:
        if (meant := _history.meant(path)) is None:
            raise
        raise _errors.make(error.kind, f"{error}; {meant}") from None
    open_mode = {"mapped": mapped, "writable": mode != "r", "external": external, "remote": False, "verify": verify}
    store = Store(handle, open_mode, at is not None)
    if mode == "w":
        with store.transaction(exclusive=True) as txn:
            store.refresh()
            for scope, key in handle.attribute_keys():
                del txn.attrs_of(scope)[key]
            txn.clear()
    return store


def _open_url(url: str, mode: str, at: At | None, timeout: float, external: str) -> Store:
    if mode != "r":
        message = f"open with mode {mode!r}: a URL can only be read; change a store on this machine, and push it"
        raise _errors.make("ReadOnly", message)
    wanted = None if at is None else _history.checked(at)
    try:
        handle = _stridemap.open_remote(url, wanted, timeout, external)
    except _errors.StoreNotFoundError as error:
        found = _remotes.tag_in(url)
        if found is None:
            raise
        place, tag = found
        raise _errors.make(error.kind, f"{error}; to open {place} at a tag, give at={tag!r}") from None
    return Store(handle, {"mapped": False, "writable": False, "external": external, "remote": True, "verify": False}, at is not None)


def _open_file(path: str | os.PathLike[str], mode: str, at: At | None, verify: bool) -> File:
    from . import _files

    if verify:
        message = f"open with verify: {os.fsdecode(path)} is a file, which has no checksums; import_file makes a store of it"
        raise _errors.make("InvalidArgument", message)
    if mode == "x":
        raise _errors.make("AlreadyExists", f"{os.fsdecode(path)}: a file has this path; choose another")
    if mode != "r" or at is not None:
        what = f"mode {mode!r}" if at is None else "at"
        advice = "it is a file, which can only be read; import_file and export convert files and stores"
        raise _errors.make("NotAStore", f"open {os.fsdecode(path)} with {what}: {advice}")
    return _files.open_file(path)


def _rows(tensors: Names, name: str, rows: Any) -> Any:
    """Return the elements of rows that are appended to a tensor."""
    action = f'append to "{name}"'
    if not hasattr(rows, "dtype") and not hasattr(rows, "__array__") and (tensor := tensors.get(name)) is not None:
        rows = _arrays.of_dtype(rows, tensor, action)
    return _arrays.elements_of(rows, action)


def only_store(opened: Store | File, request: str) -> Store:
    """Return what was opened, if it is a store."""
    if isinstance(opened, Store):
        return opened
    message = f"{request}: {opened.path} is a {opened.format} file, not a store; import_file makes a store of it"
    raise _errors.make("NotAStore", message)


class Changes(Names, Updates[Tensor]):
    """What stores and transactions have in common: methods that change names, each in a transaction."""

    def _change(self) -> AbstractContextManager[Changes]:
        raise NotImplementedError

    def _alone(self) -> AbstractContextManager[Changes]:
        raise NotImplementedError

    def group(self, prefix: str) -> ChangingGroup:
        """Return the tensors whose names begin with a prefix: see `SnapshotView.group`. Its changes are changes here.

        >>> store.group("model.").update(weight=[1, 2], bias=3)
        >>> list(store)
        ['model.bias', 'model.weight', 'x']
        """
        from ._groups import ChangingGroup

        return ChangingGroup(self, checked_prefix(prefix))

    @property
    def attrs(self) -> Attributes:
        """The attributes of the store: a mapping of texts to whatever JSON has, such as texts, numbers and lists.

        >>> store.attrs["author"] = "Ada"
        >>> store.attrs
        {'author': 'Ada'}
        """
        return Attributes(self, "")

    def attrs_of(self, name: str) -> Attributes:
        """Return the attributes of a tensor, or of a prefix of names. Those of the prefix "" are those of the store.

        >>> store.attrs_of("x")["unit"] = "m"
        >>> store.attrs_of("x")["unit"]
        'm'
        """
        return Attributes(self, checked_name(name))

    def __setitem__(self, name: str, value: Any) -> None:
        if not _operators.is_changed_in_place(value, lambda: self._handle.find(checked_name(name))):
            self.save(name, value)

    def __delitem__(self, name: str) -> None:
        with self._change() as txn:
            txn._handle.remove(checked_name(name))

    def update(self, other: Any = (), /, **named: Any) -> None:
        """Save several tensors, in one commit.

        >>> store.update(y=[1, 2], z=3)
        >>> list(store)
        ['x', 'y', 'z']
        """
        with self._change() as txn:
            for name, value in dict(other, **named).items():
                txn.save(name, value)

    def save(self, name: str, value: Any, *, kind: Kind = "sealed", replace: bool = True) -> None:
        """Save a copy of the elements of an array, a tensor of PyTorch, or whatever NumPy makes an array of.

        The elements of a "mutable" tensor can be changed under `lock()`, and those of a "live" one by `live()`.

        >>> store.save("y", [1.0, 2.0])
        >>> store["y"].numpy()
        array([1., 2.])
        """
        with self._change() as txn:
            txn._handle.on_existing(replace)
            if isinstance(value, Tensor):
                txn._handle.save_tensor(checked_name(name), value, kind)
            else:
                txn._handle.save(checked_name(name), _arrays.elements_of(value, f'save "{name}"'), kind)

    def save_view(self, name: str, view: Tensor, *, replace: bool = True) -> None:
        """Save a view of a tensor of this store under a name of its own. Only a header is written.

        >>> store.save_view("x_t", store["x"].T)
        >>> store["x_t"].shape, store["x_t"].shares_storage(store["x"])
        ((3, 2), True)
        """
        with self._change() as txn:
            txn._handle.on_existing(replace)
            txn._handle.save_view(checked_name(name), view)

    def create(self, name: str, shape: tuple[int, ...], dtype: Any, *, kind: Kind = "mutable", replace: bool = False) -> None:
        """Create a tensor of zeros. An existing tensor with this name is replaced only if `replace` is true.

        >>> store.create("grid", (2, 2), "float32")
        >>> store["grid"].tolist()
        [[0.0, 0.0], [0.0, 0.0]]
        """
        with self._change() as txn:
            txn._handle.on_existing(replace)
            txn._handle.create_tensor(checked_name(name), dtype, _sizes(shape), kind)

    def create_growable(
        self, name: str, row_shape: tuple[int, ...], dtype: Any, *, capacity: int = 0, replace: bool = False
    ) -> None:
        """Create a tensor without rows, for `append`. An existing name is handled as by `create`.

        A process that maps the tensor reserves address space for `capacity` rows. The tensor may have more rows.

        >>> store.create_growable("log", (3,), "int64", capacity=1000)
        >>> store.append("log", [[1, 2, 3], [4, 5, 6]])
        range(0, 2)
        """
        with self._change() as txn:
            txn._handle.on_existing(replace)
            txn._handle.create_growable(checked_name(name), dtype, [0, *_sizes(row_shape)], capacity)

    def append(self, name: str, rows: Any) -> range:
        """Append rows to a tensor. Return their positions.

        >>> store.create_growable("log", (), "int64")
        >>> with store.transaction() as txn:
        ...     txn.append("log", [7, 8])
        range(0, 2)
        """
        with self._change() as txn:
            start, end = txn._handle.append(checked_name(name), _rows(self, name, rows))
            return range(start, end)

    def rename(self, name: str, new_name: str, *, replace: bool = False) -> None:
        """Rename a tensor. An existing tensor with the new name is replaced only if `replace` is true.

        >>> store.rename("x", "y")
        >>> list(store)
        ['y']
        """
        with self._change() as txn:
            txn._handle.on_existing(replace)
            txn._handle.rename(checked_name(name), checked_name(new_name))


class Store(Changes):
    """An open store: a mapping of names to tensors. See `open`.

    >>> store["y"] = [1.5, 2.5]
    >>> list(store), store["y"].numpy()
    (['x', 'y'], array([1.5, 2.5]))
    """

    _handle: _stridemap.StoreHandle

    def __init__(
        self, handle: _stridemap.StoreHandle, open_mode: dict[str, Any], is_fixed: bool
    ) -> None:
        self._handle, self._open_mode, self._is_fixed = handle, open_mode, is_fixed
        self._writable: bool = open_mode["writable"]
        if not self._writable and not open_mode["remote"]:
            _forks.register(self, self.__reduce__())

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, _errors.NameNotFoundError):
            str(error)  # while similar names can be looked up
        self.close()

    def close(self) -> None:
        """Close the store. Tensors and arrays of it stay valid. Closing it again does nothing.

        >>> array = store["x"].numpy()
        >>> store.close()
        >>> array[1]
        array([3, 4, 5])
        """
        self._handle.close()

    @property
    def closed(self) -> bool:
        """Whether the store is closed.

        >>> store.closed
        False
        """
        return self._handle.closed

    @property
    def path(self) -> str:
        """The directory of the store, or the URL that it is read from.

        >>> os.path.basename(store.path)
        'x.smap'
        """
        return self._handle.path

    @property
    def uuid(self) -> str:
        """The identity of the store. A copy made by stridemap has a different one.

        >>> stridemap.open(store.path).uuid == store.uuid
        True
        """
        return self._handle.uuid

    @property
    def generation(self) -> int:
        """The number of the commit that this handle shows.

        Commits by this handle, `refresh` and `wait_for_change` move the handle to a newer one, unless it was opened with
        `at`.

        >>> before = store.generation
        >>> store["y"] = 1
        >>> store.generation - before
        1
        """
        return self._handle.generation

    def refresh(self) -> bool:
        """Move to the newest generation. Return whether there was a newer one. A store opened `at` one stays on it.

        >>> reader = stridemap.open(store.path)
        >>> store["y"] = 1
        >>> reader.refresh(), list(reader), reader.refresh()
        (True, ['x', 'y'], False)
        """
        return self._handle.refresh()

    def wait_for_change(self, timeout: float | None = None) -> bool:
        """Wait for a commit by another handle or process, and move to it. Return whether there was one.

        `timeout` is in seconds; without one, it waits until there is a commit. Other threads run meanwhile.

        >>> reader = stridemap.open(store.path)
        >>> store["y"] = 1
        >>> reader.wait_for_change(timeout=5)
        True
        """
        return self._handle.wait_for_change(timeout)

    def watch(self, timeout: float | None = None) -> Iterator[Change]:
        """Wait for commits, and yield what changed since the last one seen. A `Change` may be that of several commits.

        Changes are counted from this call on. The iterator ends when there was no commit for `timeout` seconds.

        >>> changes = stridemap.open(store.path).watch(timeout=5)
        >>> store["y"] = 1
        >>> next(changes).added
        ['y']
        """
        before = self.snapshot()

        def changes(before: SnapshotView) -> Iterator[Change]:
            while self.wait_for_change(timeout):
                after = self.snapshot()
                yield after.changes_since(before)
                before = after

        return changes(before)

    def snapshot(self) -> SnapshotView:
        """Return a snapshot of the generation that the handle shows. The snapshot does not change.

        >>> before = store.snapshot()
        >>> store["y"] = 1
        >>> list(before), list(store)
        (['x'], ['x', 'y'])
        """
        return SnapshotView(self._handle.snapshot())

    def at(self, at: At) -> SnapshotView:
        """Return a snapshot of an earlier generation: that of a tag, or the one with a number.

        A generation without a tag is there for as long as a store or a snapshot, in any process, sees it.

        >>> import tempfile
        >>> with open(tempfile.mkdtemp() + "/x.smap", "x") as store:
        ...     store["x"] = 1
        ...     store.tag("before")
        ...     store["x"] = 2
        ...     print(store.at("before")["x"].item(), store["x"].item())
        1 2
        """
        return SnapshotView(self._handle.at(_history.checked(at)))

    def _snapshot_of(self, at: At | SnapshotView) -> SnapshotView:
        return at if isinstance(at, SnapshotView) else self.at(at)

    def tag(self, name: str, message: str | None = None, *, at: At | SnapshotView | None = None, replace: bool = False) -> None:
        """Give a generation a name, which keeps it: the one that this handle shows, or `at`, an earlier one.

        The tag is a commit of its own. To tag the generation that a transaction publishes, call its `tag`. An existing
        tag is moved only if `replace` is true. Sealed tensors do not change in a tagged generation. Mutable and live
        ones are changed in place: a tag keeps their storages, and not the values of their elements.

        >>> import tempfile
        >>> with open(tempfile.mkdtemp() + "/x.smap", "x") as store:
        ...     store["x"] = 1
        ...     store.tag("v1", "the first value")
        ...     [tag] = store.tags()
        ...     print(tag.name, tag.generation, tag.message)
        v1 2 the first value
        """
        earlier = self._handle.snapshot() if at is None else self._snapshot_of(at)._handle
        with self.transaction(message=message) as txn:
            txn._tag(name, earlier, replace)

    def untag(self, name: str) -> None:
        """Remove a tag.

        What only its generation needed is deleted once no store and no snapshot, in any process, sees that generation.

        >>> store.tag("v1")
        >>> store.untag("v1")
        >>> store.tags()
        []
        """
        with self.transaction() as txn:
            txn.untag(name)

    def tags(self) -> list[TagInfo]:
        """Return the tags, by generation and then by name, whatever generation this handle shows.

        >>> store.tag("v1", "the first")
        >>> [(tag.name, tag.message) for tag in store.tags()]
        [('v1', 'the first')]
        """
        return _history.tags(self._handle.tags())

    def log(self) -> list[LogEntry]:
        """Return the generations that are kept, the newest first: those with tags, and the newest.

        >>> import tempfile
        >>> with open(tempfile.mkdtemp() + "/x.smap", "x") as store:
        ...     store["x"] = [0] * 1000
        ...     store.tag("v1")
        ...     store["x"] = [1] * 2000
        ...     print([(entry.generation, entry.tags, entry.own_bytes) for entry in store.log()])
        [(4, (), 16000), (2, ('v1',), 8000)]
        """
        return _history.log(self._handle)

    def restore(self, at: At | SnapshotView, prefix: str = "") -> None:
        """Give the names that begin with `prefix` the tensors and attributes of an earlier generation, in one commit.

        `at` is a tag, a number or a snapshot of this store. Other names with this prefix are removed. The attributes of
        the store itself are restored only without a prefix. No element is copied, and tags stay as they are. If the file of
        a tensor that was imported in place is missing or was changed, a `StateError` is raised.

        >>> import tempfile
        >>> with open(tempfile.mkdtemp() + "/x.smap", "x") as store:
        ...     store["x"] = 1
        ...     store.tag("v1")
        ...     store.clear()
        ...     store.restore("v1")
        ...     print(store["x"].item())
        1
        """
        snapshot = self._snapshot_of(at)
        with self.transaction() as txn:
            txn.restore(snapshot, prefix)

    def prune(
        self,
        keep_last: int | None = None,
        keep_within: timedelta | float | None = None,
        keep_every: int | None = None,
        names: str | Iterable[str] = "*",
    ) -> list[TagInfo]:
        """Remove the tags that no rule keeps, in one commit. Return them.

        `keep_last` keeps that many tags, the last ones by generation. `keep_within` keeps the tags whose time is within a
        duration, a `timedelta` or seconds, before that of the last tag; a tag whose time is out of order stays, too.
        `keep_every=100` keeps the last tag of every 100 generations; every commit is a generation, also that of a tag.
        The rules are about the tags that `names` matches, a pattern as in `fnmatch`, or several. Other tags stay. If
        `names` matches no tag, the list is empty.

        >>> import tempfile
        >>> with open(tempfile.mkdtemp() + "/x.smap", "x") as store:
        ...     for step in range(4):
        ...         store["x"] = step
        ...         store.tag(f"step{step}")
        ...     print([tag.name for tag in store.prune(keep_last=2, names="step*")])
        ['step0', 'step1']
        """
        self._check_writable()
        return _history.prune(self._handle, keep_last, keep_within, keep_every, names)

    def push(
        self,
        url: str,
        *,
        jobs: int = 8,
        timeout: float = 60.0,
        progress: _progress.Progress | bool | None = None,
        dry_run: bool = False,
    ) -> _remotes.Pushed:
        """Make the newest generation of this store, with its tags and what they keep, the newest at a URL.

        The URL is that of a place in object storage, such as "s3://bucket/x.smap", or "file:///directory". Only what
        the remote lacks is sent. It appears there at once, or not at all. `open` reads it in place, and `pull` makes a
        local store of it, which is the same as this one.

        Only one store at a time may push to a URL: if the remote has a generation that this store neither pushed nor
        pulled, a `ConflictError` is raised, and nothing is changed. If the answer to the last request is lost, the error
        says that the generation may have been published; push again to find out. The arguments are those of `pull`.

        >>> import tempfile
        >>> with open(tempfile.mkdtemp() + "/x.smap", "x") as store:
        ...     store["x"] = [1, 2]
        ...     pushed = store.push("memory://push/x.smap")
        ...     print(pushed.generation == store.generation, open("memory://push/x.smap")["x"].numpy())
        True [1 2]
        """
        if self._open_mode["remote"]:
            raise _errors.make("ReadOnly", f"push {self.path} to {url}: the store is open at a URL; pull it first, and push the local store")
        return _remotes.push(self._handle, url, jobs, timeout, progress, dry_run)

    def transaction(
        self, *, exclusive: bool = False, expect: int | None = None, message: str | None = None
    ) -> Transaction:
        """Begin a transaction, for a `with` block. The end of the block commits, unless an exception leaves it.

        `message` is what `log`, and a tag of the new generation, say about the commit.

        If another writer has changed by then what was read through the transaction, the commit raises a `ConflictError`
        and changes nothing. With `exclusive`, other writers wait until the block ends, so that nothing changes: this
        call waits for them first, for up to the timeout of the store. Do not wait for other processes in such a block.

        `expect` is for what was read outside of the block: the number of the generation that it was read from. If that is
        no longer the newest, this call raises a `ConflictError`. Otherwise, the transaction is exclusive.

        >>> import tempfile
        >>> with open(tempfile.mkdtemp() + "/x.smap", "x") as store:
        ...     store["n"] = 1
        ...     n = store["n"].item()
        ...     with store.transaction(expect=store.generation) as txn:
        ...         txn["n"] = n + 1
        ...     print(store["n"].item())
        2
        """
        self._check_writable()
        handle = self._handle.begin(exclusive or expect is not None)
        if expect is not None:
            try:
                handle.expect(expect)
            except BaseException:
                handle.abort()
                raise
        if message is not None:
            handle.message(message)
        return Transaction(handle, self)

    def append(self, name: str, rows: Any) -> range:
        """Append rows to a tensor. Return their positions.

        >>> store.create_growable("log", (), "int64")
        >>> store.append("log", [7, 8])
        range(0, 2)
        """
        self._check_writable()
        start, end = self._handle.append(checked_name(name), _rows(self, name, rows))
        return range(start, end)

    def prefetch(self, names: Iterable[str] | None = None, *, progress: _progress.Progress | bool | None = None) -> None:
        """Read tensors, or all, from the disk into memory that the system can reclaim: see `SnapshotView.prefetch`.

        >>> store.prefetch()
        """
        self.snapshot().prefetch(names, progress=progress)

    def verify(self, *, progress: _progress.Progress | bool | None = None) -> list[str]:
        """Check the metadata and all sealed bytes. Return a line for each finding: an empty list if all is whole.

        `progress` is called with the bytes that are done and those of all. With `True`, `tqdm` shows a bar if it is
        installed.

        >>> import tempfile
        >>> with open(tempfile.mkdtemp() + "/x.smap", "x") as store:
        ...     store["x"] = [1, 2]
        ...     store.verify()
        []
        """
        with _progress.reporter("verify", progress) as report:
            return self._handle.verify(report)

    def compact(self) -> None:
        """Free disk space: rewrite sealed storages without the bytes that no tensor reaches.

        >>> store.save_view("x", store["x"][:1])
        >>> store.compact()
        >>> store["x"].tolist()
        [[0, 1, 2]]
        """
        self._check_writable()
        self._handle.compact()

    def _check_writable(self) -> None:
        if self._open_mode["remote"]:
            raise _errors.make("ReadOnly", f"{self.path}: a URL can only be read; change a store on this machine, and push it")
        if not self._writable:
            raise _errors.make("ReadOnly", f"{self.path}: the store was opened with mode 'r'; use 'r+'")

    def _change(self) -> AbstractContextManager[Transaction]:
        return self.transaction()

    def _alone(self) -> AbstractContextManager[Transaction]:
        return self.transaction(exclusive=True)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._writable:
            raise TypeError("only a store opened with mode 'r' can be sent to another process; open it there")
        from . import _handles

        if self._open_mode["remote"]:
            return _handles.remote_store, (self.path, self.uuid, self._open_mode, self.generation, self._is_fixed)
        return _handles.store, (self.path, self.uuid, self._open_mode, self.generation if self._is_fixed else None)

    def _repr_html_(self) -> str:
        return _html.of_store(self)

    def _ipython_key_completions_(self) -> list[str]:
        return [] if self.closed else list(self)

    def __repr__(self) -> str:
        if self.closed:
            return "<stridemap.Store, closed>"
        return f"<stridemap.Store {self.path!r}, generation {self.generation}>"


class Transaction(Changes):
    """Changes that become visible together. See `Store.transaction`.

    >>> with store.transaction() as txn:
    ...     txn["y"] = txn["x"].sum()
    ...     del txn["x"]
    >>> list(store)
    ['y']
    """

    _handle: _stridemap.TransactionHandle

    def __init__(self, handle: _stridemap.TransactionHandle, store: Store) -> None:
        self._handle, self._store = handle, store
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
        if isinstance(error, _errors.NameNotFoundError):
            str(error)  # while similar names can be looked up
        if kind is None:
            self.commit()
        else:
            self.abort()

    def commit(self) -> int:
        """Commit the changes made so far, without waiting for the end of the block. Return the new generation.

        >>> with store.transaction() as txn:
        ...     txn["y"] = 1
        ...     txn.commit() == store.generation
        True
        """
        self._has_ended = True
        return self._handle.commit()

    def abort(self) -> None:
        """Discard the changes made so far, without waiting for the end of the block.

        >>> with store.transaction() as txn:
        ...     txn["y"] = 1
        ...     txn.abort()
        >>> list(store)
        ['x']
        """
        self._has_ended = True
        self._handle.abort()

    def tag(self, name: str, *, replace: bool = False) -> None:
        """Give the generation that this transaction publishes a name, which keeps it: both or neither. See `Store.tag`.

        >>> import tempfile
        >>> with open(tempfile.mkdtemp() + "/x.smap", "x") as store:
        ...     with store.transaction(message="the first value") as txn:
        ...         txn["x"] = 1
        ...         txn.tag("v1")
        ...     print(store.at("v1").message)
        the first value
        """
        self._tag(name, None, replace)

    def _tag(self, name: str, earlier: Snapshot | None, replace: bool) -> None:
        with self._change() as txn:
            txn._handle.on_existing(replace)
            txn._handle.tag(checked_name(name, "tag"), earlier)

    def tag_previous(self, name: str, *, replace: bool = False) -> None:
        """Give the generation before the one that this transaction publishes a name, which keeps what is changed here.

        If other writers commit first, this is the last of their generations. The tag and the changes are one commit.

        >>> import tempfile
        >>> with open(tempfile.mkdtemp() + "/x.smap", "x") as store:
        ...     store["x"] = 1
        ...     with store.transaction() as txn:
        ...         txn["x"] = 2
        ...         txn.tag_previous("before")
        ...     print(store.at("before")["x"].item(), store["x"].item())
        1 2
        """
        with self._change() as txn:
            txn._handle.on_existing(replace)
            txn._handle.tag_previous(checked_name(name, "tag"))

    def untag(self, name: str) -> None:
        """Remove a tag. See `Store.untag`.

        >>> store.tag("v1")
        >>> with store.transaction() as txn:
        ...     txn.untag("v1")
        >>> store.tags()
        []
        """
        with self._change() as txn:
            txn._handle.untag(checked_name(name, "tag"))

    def restore(self, at: At | SnapshotView, prefix: str = "") -> None:
        """Give the names that begin with `prefix` the state of an earlier generation. See `Store.restore`.

        >>> store.tag("v1")
        >>> with store.transaction() as txn:
        ...     txn.clear()
        ...     txn.restore("v1")
        >>> list(store)
        ['x']
        """
        snapshot = self._store._snapshot_of(at)
        with self._change() as txn:
            txn._handle.restore(snapshot._handle, prefix)

    def ignore_reads(self) -> None:
        """Let the commit succeed even if another writer changes what this transaction has read, or will read.

        >>> with store.transaction() as txn:
        ...     txn.ignore_reads()
        ...     txn["y"] = txn["x"][0]
        ...     store["x"] = 7
        >>> store["y"].tolist()
        [0, 1, 2]
        """
        self._handle.ignore_reads()

    def _change(self) -> AbstractContextManager[Transaction]:
        if not self._has_begun:
            raise RuntimeError("use a transaction in a with block")
        return nullcontext(self)

    def _alone(self) -> AbstractContextManager[Transaction]:
        return self._change()

    def __len__(self) -> int:
        return len(self._handle.names())


def _sizes(shape: Any) -> list[int]:
    sizes = [shape] if isinstance(shape, int) else list(shape)
    if any(size < 0 for size in sizes):
        raise _errors.make("InvalidArgument", f"a size is negative: {sizes}")
    return sizes
