"""The history of a store: tags, and the generations that they keep."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from . import _errors

if TYPE_CHECKING:
    from ._stridemap import StoreHandle

#: A generation: the name of a tag, or a number.
At = str | int


@dataclass(frozen=True)
class TagInfo:
    """A tag: a name for a generation, which keeps the generation.

    `time` is when the generation was published, in UTC, by the clock of the machine that did it.
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


def prune(
    handle: StoreHandle,
    keep_last: int | None,
    keep_within: timedelta | float | None,
    keep_every: int | None,
    names: str,
) -> list[TagInfo]:
    """Remove tags: see `Store.prune`."""
    seconds = keep_within.total_seconds() if isinstance(keep_within, timedelta) else keep_within
    for rule, value, least in (("keep_last", keep_last, 1), ("keep_within", seconds, 0), ("keep_every", keep_every, 1)):
        if value is not None and not least <= value < 1 << 63:
            raise _errors.make("InvalidArgument", f"prune: {rule} is {value}; give a number from {least}")
    # A tag that another process makes meanwhile stays.
    candidates = {name for name, *_ in handle.tags() if fnmatchcase(name, names)}
    return tags(handle.prune(candidates, keep_last, seconds, keep_every))
