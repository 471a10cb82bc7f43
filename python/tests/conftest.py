from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import stridemap


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.smap"


@pytest.fixture
def store(path: Path) -> Iterator[stridemap.Store]:
    with stridemap.open(path, "x", durable=False) as store:
        yield store
