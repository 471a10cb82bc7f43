"""Snapshots and tensors are sent to other processes, which see the same generation as long as a reader keeps it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stridemap
from stridemap import _handles

CHILD = """
import pickle, sys
value = pickle.loads(bytes.fromhex(sys.argv[1]))
print([(name, value[name].numpy().tolist()) for name in value] if hasattr(value, "keys") else value.numpy().tolist())
"""


def disk_usage(store: stridemap.Store) -> int:
    return sum(file.stat().st_size for file in Path(store.path).rglob("*") if file.is_file())


def in_child(value: Any) -> str:
    """Return what another process reads from a handle, or how its error ends."""
    run = subprocess.run([sys.executable, "-c", CHILD, pickle.dumps(value).hex()], capture_output=True, text=True)
    return run.stdout.strip() if run.returncode == 0 else run.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("mapped", [True, False])
def test_snapshot_opens_while_a_reader_keeps_its_generation(path: Path, mapped: bool) -> None:
    with stridemap.open(path, "x", durable=False) as writer:
        writer["a"], writer["b"] = [1, 2], [3]
    reader = stridemap.open(path, mapped=mapped)
    sent = pickle.dumps(snapshot := reader.snapshot())
    with stridemap.open(path, "r+", durable=False) as writer:
        writer["a"] = [5, 6]
        del writer["b"]
        writer.compact()
        assert in_child(writer.snapshot()) == "[('a', [5, 6])]"
    seen = "[('a', [1, 2]), ('b', [3])]"
    assert in_child(snapshot) == seen
    reader.close()
    assert in_child(snapshot) == seen
    again = pickle.loads(sent)
    assert again.generation == snapshot.generation and again["a"].numpy().tolist() == [1, 2]
    del snapshot, reader
    assert in_child(again) == seen
    del again
    _handles._stores.clear()
    with stridemap.open(path, "r+", durable=False) as writer:
        writer["c"] = 1
    with pytest.raises(RuntimeError, match="not on disk, because no tag, store or snapshot keeps it"):
        pickle.loads(sent)


@pytest.mark.parametrize("change", ["replaced", "removed", "renamed", "compacted"])
def test_tensor_opens_while_a_reader_keeps_its_generation(path: Path, change: str) -> None:
    with stridemap.open(path, "x", durable=False) as writer:
        writer["a"] = np.arange(1_000_000)
        writer.save_view("part", writer["a"][100:700])
        del writer["a"]
    reader = stridemap.open(path)
    tensor, view = reader["part"], reader["part"][::-200]
    expected = view.numpy().tolist()
    with stridemap.open(path, "r+", durable=False) as writer:
        match change:
            case "replaced":
                writer["part"] = 5
            case "removed":
                del writer["part"]
            case "renamed":
                writer.rename("part", "other")
            case "compacted":
                writer.compact()
        assert in_child(view) == str(expected)
        assert in_child(tensor[:2]) == "[100, 101]"
        reader.refresh()
        writer["c"] = 1
        assert "Error: 'part' of generation" in in_child(tensor)


def test_handle_of_a_store_that_was_replaced_is_refused(path: Path) -> None:
    with stridemap.open(path, "x", durable=False) as store:
        store["a"] = [1]
        snapshot = store.snapshot()
        sent = pickle.dumps(snapshot)
        os.rename(path, path.with_suffix(".old"))
        stridemap.open(path, "x", durable=False)["a"] = [2]
        _handles._stores.clear()
        with pytest.raises(RuntimeError, match="different store has taken its place"):
            pickle.loads(sent)
