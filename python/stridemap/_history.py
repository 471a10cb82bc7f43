"""The history of a store: tags, and the generations that they keep."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from fnmatch import fnmatchcase
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from . import _errors, _stridemap

if TYPE_CHECKING:
    from ._stridemap import StoreHandle

#: A generation: the name of a tag, or a number.
At = str | int


@dataclass(frozen=True)
class TagInfo:
    """A tag: a name for a generation, which keeps the generation.

    `time` is when the generation was published, in UTC, by the clock of the machine that did it.

    >>> store.tag("v1")
    >>> [tag.name for tag in store.tags()]
    ['v1']
    """

    name: str
    generation: int
    time: datetime
    message: str | None


@dataclass(frozen=True)
class LogEntry:
    """A generation that is kept: one with tags, or the newest.

    `time` is as in `TagInfo`. `message` is that of the commit, or of one of the tags. `own_bytes` are the bytes of
    storages that no other generation in the log has.

    >>> [entry.own_bytes for entry in store.log()]
    [48]
    """

    generation: int
    time: datetime
    message: str | None
    tags: tuple[str, ...]
    own_bytes: int


def checked(at: Any) -> At:
    """Return what names a generation, if it is a name or a number."""
    if isinstance(at, bool) or not isinstance(at, str | int):
        raise TypeError(f"a generation is the name of a tag or a number, not {type(at).__name__}")
    if isinstance(at, int) and not 0 < at < 1 << 64:
        raise _errors.make("InvalidArgument", f"generation {at}: generations have numbers from 1")
    return at


def meant(path: str) -> str | None:
    """Return how to open what a command would take `path` for: `STORE@TAG`. Without such a store, return `None`."""
    for end in range(len(path) - 1, 0, -1):
        if path[end] != "@":
            continue
        place, at = path[:end], path[end + 1 :]
        try:
            found = _stridemap.open(place, None, False, False, False, 0.0, "refuse", False).tags()
        except _errors.Error:
            continue
        is_number = at.isdecimal() and all(name != at for name, *_ in found)
        return f"to open {place} at a tag, give at={int(at) if is_number else at!r}"
    return None


def time(microseconds: int) -> datetime:
    """Return the time that is so many microseconds after 1970.

    >>> time(1_500_000).isoformat()
    '1970-01-01T00:00:01.500000+00:00'
    """
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=microseconds)


def tags(found: list[tuple[str, int, int, str | None]]) -> list[TagInfo]:
    """Return tags as the package shows them."""
    return [TagInfo(name, generation, time(since), message) for name, generation, since, message in found]


def log(handle: StoreHandle) -> list[LogEntry]:
    """Return the generations that are kept, the newest first."""
    return [
        LogEntry(generation, time(since), message, tuple(names), own_bytes)
        for generation, since, message, names, own_bytes in handle.log()
    ]


def check_counts(action: str, keep_last: int | None, keep_every: int | None) -> None:
    """Check the rules that are numbers of tags or generations."""
    for rule, count in ("keep_last", keep_last), ("keep_every", keep_every):
        if count is not None and not isinstance(count, Integral):
            raise TypeError(f"{action}: {rule} is an integer, not {type(count).__name__}")
        _check_range(action, rule, count, 1)


def _check_range(action: str, rule: str, value: float | None, least: int) -> None:
    if value is not None and not least <= value < 1 << 63:
        raise _errors.make("InvalidArgument", f"{action}: {rule} is {value}; give a number from {least}")


def prune(
    handle: StoreHandle,
    keep_last: int | None,
    keep_within: timedelta | float | None,
    keep_every: int | None,
    names: str | Iterable[str],
) -> list[TagInfo]:
    """Remove tags: see `Store.prune`."""
    check_counts("prune", keep_last, keep_every)
    if keep_within is not None and not isinstance(keep_within, timedelta | Real):
        message = f"prune: keep_within is a timedelta or a number of seconds, not {type(keep_within).__name__}"
        raise TypeError(f"{message}; for a week, give timedelta(days=7)")
    patterns = [names] if isinstance(names, str) else list(names)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError(f"prune: names is a pattern or several, such as 'step*', and is {names!r}")
    seconds = keep_within.total_seconds() if isinstance(keep_within, timedelta) else keep_within
    _check_range("prune", "keep_within", seconds, 0)
    # A tag that another process makes meanwhile stays.
    candidates = {name for name, *_ in handle.tags() if any(fnmatchcase(name, pattern) for pattern in patterns)}
    return tags(handle.prune(candidates, keep_last, seconds, keep_every))
