"""Stores in object storage: push, pull, follow, and collecting objects that are not needed."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from . import _errors, _stridemap
from ._progress import Progress, reporter

if TYPE_CHECKING:
    from ._stridemap import StoreHandle

_log = logging.getLogger("stridemap")


@dataclass(frozen=True)
class Pushed:
    """What a push did: see `Store.push`.

    The remote has `generation` now, and had `previous` before, or `None`. It lacked `changed_bytes` of tensors and
    tables. `sent_bytes` are those of the `object_count` objects that were sent.

    >>> store.push("memory://pushed/x.smap").generation == store.generation
    True
    """

    generation: int
    previous: int | None
    changed_bytes: int
    sent_bytes: int
    object_count: int


@dataclass(frozen=True)
class Pulled:
    """What a pull did: see `pull`.

    The local store has `generation` now, and had `previous` before, or `None` if it is new. `storage_count` storages
    were new or had grown, and `received_bytes` of elements and tables were received.

    >>> _ = store.push("memory://pulled/x.smap")
    >>> stridemap.pull("memory://pulled/x.smap", "replica.smap").storage_count
    1
    """

    generation: int
    previous: int | None
    received_bytes: int
    storage_count: int


@dataclass(frozen=True)
class Pruned:
    """What a prune of a remote did: see `prune`.

    `object_count` objects of `freed_bytes` were deleted. `waiting_count` objects of `waiting_bytes` are not needed, and
    stay until the grace period is over. The last `generation_count` generations can be read.

    >>> _ = store.push("memory://pruned/x.smap")
    >>> stridemap.prune("memory://pruned/x.smap").object_count
    0
    """

    object_count: int
    freed_bytes: int
    waiting_count: int
    waiting_bytes: int
    generation_count: int


def is_url(path: object) -> bool:
    """Return whether a path is the URL of a remote.

    >>> is_url("s3://bucket/x.smap"), is_url("x.smap")
    (True, False)
    """
    return isinstance(path, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", path) is not None


def tag_in(url: str) -> tuple[str, str | int] | None:
    """Return the URL and the tag or number of `URL@TAG`, which a command would take. Without a tag, return `None`.

    >>> tag_in("s3://bucket/x.smap@v1"), tag_in("s3://bucket/x.smap@3"), tag_in("s3://me@host/x.smap")
    (('s3://bucket/x.smap', 'v1'), ('s3://bucket/x.smap', 3), None)
    """
    place, _, tag = url.rpartition("@")
    if not place or not tag or "/" in tag:
        return None
    return place, int(tag) if tag.isdecimal() else tag


@contextmanager
def _of_newest(url: str) -> Iterator[None]:
    """Say of `URL@TAG`, where no store is, that only the newest generation can be pulled."""
    try:
        yield
    except _errors.StoreNotFoundError as error:
        found = tag_in(url)
        if found is None:
            raise
        place, tag = found
        hint = f"a pull is of the newest generation, so pull {place}, or open that with at={tag!r}"
        raise _errors.make(error.kind, f"{error}; {hint}") from None


def push(
    handle: StoreHandle, url: str, jobs: int, timeout: float, progress: Progress | bool | None, dry_run: bool
) -> Pushed:
    """Push a store: see `Store.push`."""
    with reporter("push", progress) as report:
        return Pushed(*handle.push(_url(url), (jobs, timeout), report, dry_run))


def pull(
    url: str,
    path: str | os.PathLike[str],
    names: Iterable[str] | None = None,
    *,
    jobs: int = 8,
    timeout: float = 60.0,
    progress: Progress | bool | None = None,
    durable: bool = True,
    dry_run: bool = False,
) -> Pulled:
    """Make the store at `path` the same as a remote: one that `Store.push` made at `url`.

    If nothing is at the path, this makes a new store there. Otherwise it must be a store that was pulled from this URL
    or pushed to it, without commits of its own since; if it has some, a `ConflictError` is raised. Only what it lacks
    is received, and compared with its digests. One commit publishes it. If a pull fails, or is killed, the store at the
    path is as it was, or has the whole new generation if that happened after the commit.

    With `names`, a new store at `path` gets these tensors and nothing else. It is a store of its own: with a different
    uuid, no tags, and no relation to the URL, so that it cannot be pulled again.

    `jobs` is how many requests are sent at a time, and `timeout` how long, in seconds, a request that fails is repeated.
    `progress` is called with the bytes that are done and the bytes of all, and ends the pull if it raises an exception;
    so does Ctrl-C. With `progress=True`, `tqdm` shows a bar if it is installed. With `dry_run`, nothing is changed: the result says what would be received. `durable` is as in `open`.

    >>> import stridemap, tempfile
    >>> dir = tempfile.mkdtemp()
    >>> with stridemap.open(dir + "/x.smap", "x") as store:
    ...     store.update(weight=[[1.0, 2.0]], bias=[3.0])
    ...     pushed = store.push("memory://pull/x.smap")
    >>> pulled = pull("memory://pull/x.smap", dir + "/replica.smap")
    >>> pulled.generation == pushed.generation, list(stridemap.open(dir + "/replica.smap"))
    (True, ['bias', 'weight'])
    >>> _ = pull("memory://pull/x.smap", dir + "/part.smap", ["bias"])
    >>> list(stridemap.open(dir + "/part.smap"))
    ['bias']
    """
    url, path = _url(url), _local(path)
    if names is None:
        with _of_newest(url), reporter("pull", progress) as report:
            return Pulled(*_stridemap.pull(url, path, (jobs, timeout), report, durable, dry_run))
    if dry_run:
        raise _errors.make("InvalidArgument", "pull: dry_run is not possible with names; open the URL to see sizes")
    wanted = [names] if isinstance(names, str) else list(names)
    if not all(isinstance(name, str) for name in wanted):
        raise TypeError(f"pull: names are texts, not {names!r}")
    with _of_newest(url), reporter("pull", progress) as report:
        return Pulled(*_stridemap.pull_names(url, path, wanted, (jobs, timeout), report))


def follow(
    url: str,
    path: str | os.PathLike[str],
    *,
    interval: float = 1.0,
    jobs: int = 8,
    timeout: float = 60.0,
    progress: Progress | bool | None = None,
    on_error: Callable[[_errors.Error, float], object] | None = None,
    durable: bool = True,
) -> Generator[Pulled, None, None]:
    """Pull whenever the remote has a new generation, and yield each `Pulled`: the local store at `path` has it then.

    The remote is asked every `interval` seconds while the caller waits for the next value. If the local store has the
    newest generation already, nothing is yielded until there is another. Several pushes between two values become one.

    An error that may pass, such as that of a network, or that there is no store at the URL yet, is tried again, after
    pauses of up to 30 seconds. It is given to `on_error`, with the seconds until the next try; without this function, it
    is logged as a warning of the logger "stridemap". Other errors, such as `ConflictError`, are raised. Ctrl-C ends the
    loop. While the caller works on a value, nothing runs: there is nothing to close. Other arguments are those of `pull`.

    >>> import stridemap, tempfile
    >>> dir = tempfile.mkdtemp()
    >>> with stridemap.open(dir + "/x.smap", "x") as store:
    ...     store["x"] = 1
    ...     _ = store.push("memory://follow/x.smap")
    ...     for pulled in follow("memory://follow/x.smap", dir + "/replica.smap", interval=0.01):
    ...         print(pulled.generation, stridemap.open(dir + "/replica.smap")["x"].item())
    ...         if pulled.generation > 2:
    ...             break
    ...         store["x"] = 2
    ...         _ = store.push("memory://follow/x.smap")
    2 1
    3 2
    """
    url, path = _url(url), _local(path)

    def log(error: _errors.Error, pause: float) -> None:
        _log.warning("follow %s: %s; next try in %.1f s", path, error, pause)

    report = log if on_error is None else on_error

    def values() -> Generator[Pulled, None, None]:
        while True:
            with reporter("follow", progress) as advance:
                pulled = Pulled(*_stridemap.follow(url, path, interval, (jobs, timeout), advance, report, durable))
            yield pulled

    return values()


def prune(
    url: str,
    *,
    keep_last: int = 10,
    grace: timedelta | float = timedelta(days=1),
    orphans: bool = False,
    dry_run: bool = False,
    jobs: int = 8,
    timeout: float = 60.0,
) -> Pruned:
    """Delete objects of a remote that neither its last generations nor tags need.

    `keep_last` is how many generations can be read afterwards, besides those with tags. Readers may still use what is
    not needed any more, so it is deleted only `grace` after the push that replaced it: a `timedelta`, or seconds, by
    the clock of the server. `orphans` also deletes what killed pushes left, for which all objects are listed; the grace
    must then be longer than any push takes. With `dry_run`, nothing is deleted.

    >>> import stridemap, tempfile
    >>> with stridemap.open(tempfile.mkdtemp() + "/x.smap", "x") as store:
    ...     for step in range(3):
    ...         store["x"] = [step] * 100
    ...         _ = store.push("memory://prune/x.smap")
    >>> prune("memory://prune/x.smap", keep_last=1, grace=0).generation_count
    1
    """
    seconds = grace.total_seconds() if isinstance(grace, timedelta) else grace
    if keep_last < 1:
        raise _errors.make("InvalidArgument", f"prune: keep_last is {keep_last}; give a number from 1")
    return Pruned(*_stridemap.prune(_url(url), keep_last, seconds, orphans, dry_run, (jobs, timeout)))


def _url(url: object) -> str:
    if not isinstance(url, str):
        raise TypeError(f"a URL is a str, such as 's3://bucket/model.smap', not {type(url).__name__}")
    return url


def _local(path: str | os.PathLike[str]) -> str:
    # The library refuses a URL in this place.
    return path if isinstance(path, str) and is_url(path) else os.path.abspath(os.fsdecode(path))
