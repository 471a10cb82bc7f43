from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import stridemap

# A parent can start this process with signals ignored (`nohup pytest &`). Processes that the tests start would inherit
# that, but not a handler.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.smap"


@pytest.fixture
def store(path: Path) -> Iterator[stridemap.Store]:
    with stridemap.open(path, "x", durable=False) as store:
        yield store
