"""Progress of long work: a function of the caller, or a bar of `tqdm`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

#: Called with the bytes that are done and those of the whole operation, as it advances.
Progress = Callable[[int, int], object]


@contextmanager
def reporter(action: str, progress: Progress | bool | None) -> Iterator[Progress | None]:
    """Yield the function that is called as work advances. With `True`, it shows a bar, if `tqdm` is installed."""
    if not isinstance(progress, bool):
        yield progress
        return
    if not progress or find_spec("tqdm") is None:
        yield None
        return
    # Without work, there is nothing to show.
    bar: Any = None

    def advance(done: int, total: int) -> None:
        nonlocal bar
        if bar is None:
            bar = import_module("tqdm.auto").tqdm(desc=action, unit="B", unit_scale=True, unit_divisor=1024)
        bar.total = total
        bar.update(done - bar.n)

    try:
        yield advance
    finally:
        if bar is not None:
            bar.close()


@contextmanager
def counter(action: str, progress: Progress | bool | None, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that is called with the bytes of each part that is done, of a known total."""
    done = 0

    with reporter(action, progress) as report:

        def count(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            if report is not None:
                report(done, total)

        yield count
