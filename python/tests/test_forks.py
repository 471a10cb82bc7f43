"""A forked child opens the stores and snapshots again that its parent opened for reading."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stridemap

TIMEOUT = 60


def in_child(act: Callable[[], Any], method: str = "fork", arguments: tuple[Any, ...] = ()) -> Any:
    """Return what a call returns in a child, or raise its exception here."""
    context = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(duplex=False)

    process = context.Process(target=_send, args=(sender, act, *arguments))
    process.start()
    assert receiver.poll(TIMEOUT), "the child does not answer"
    found = receiver.recv()
    process.join(TIMEOUT)
    assert process.exitcode == 0
    if isinstance(found, BaseException):
        raise found
    return found


def _send(sender: Any, act: Callable[..., Any], *arguments: Any) -> None:
    try:
        sender.send(act(*arguments))
    except BaseException as error:
        sender.send(error)


def saved(path: Path) -> stridemap.Store:
    with stridemap.open(path, "x", durable=False) as store:
        store.update(x=np.arange(5), y=2)
        store.tag("v1")
        store["y"] = 3
    return stridemap.open(path)


def test_store_for_reading_works_in_a_child(path: Path) -> None:
    store = saved(path)
    group, snapshot, at = store.group(""), store.snapshot(), stridemap.open(path, at="v1")

    def read() -> Any:
        numbers = [names["y"].item() for names in (store, group, snapshot, at)]
        return numbers, store["x"].numpy().sum(), list(store), store.generation, at.generation, at.refresh(), len(group)

    expected = read()
    assert expected[0] == [3, 3, 3, 2]
    assert in_child(read) == expected and in_child(lambda: in_child(read)) == expected
    assert read() == expected and not hasattr(store._handle, "_names")


def test_child_sees_newer_generations_as_a_pickled_handle_does(path: Path) -> None:
    store = saved(path)
    with stridemap.open(path, "r+", durable=False) as writing:
        writing["y"] = 4
    assert store["y"].item() == 3 and in_child(lambda: store["y"].item()) == 4
    snapshot = store.snapshot()
    assert in_child(lambda: snapshot["y"].item()) == 3


def test_child_does_not_open_another_store_that_took_the_path(path: Path) -> None:
    store = saved(path)
    path.rename(path.with_suffix(".old"))
    stridemap.open(path, "x", durable=False).close()
    with pytest.raises(stridemap.StateError, match="a different store"):
        in_child(lambda: store["y"].item())


def test_stores_that_are_closed_or_written_are_refused_in_a_child(path: Path) -> None:
    store = saved(path)
    store.close()
    with pytest.raises(ValueError, match="closed"):
        in_child(lambda: store["y"])
    with stridemap.open(path, "r+", durable=False) as writing:
        with pytest.raises(stridemap.StateError):
            in_child(lambda: writing["y"])
        assert writing["y"].item() == 3


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    """A data set that keeps its store open."""

    def __init__(self, store: stridemap.Store) -> None:
        self.store = store

    def __len__(self) -> int:
        return len(self.store["x"])

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.store["x"][index].torch()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_loader_read_an_open_store(method: str, path: Path) -> None:
    rows = Rows(saved(path))
    assert rows[3] == 3
    loader = torch.utils.data.DataLoader(rows, 2, num_workers=2, multiprocessing_context=method)
    for _ in range(2):
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4]]


def _names(pickled: bytes) -> list[str]:
    return list(pickle.loads(pickled))


def test_pickled_snapshot_opens_while_its_generation_exists(path: Path) -> None:
    with stridemap.open(path, "x", durable=False) as store:
        store["a"] = 1
        snapshot = store.snapshot()
        pickled = pickle.dumps(snapshot)
        store["b"] = 2
        assert in_child(_names, "spawn", (pickled,)) == ["a"] == _names(pickled)
        del snapshot
        store["c"] = 3
        store.compact()
        with pytest.raises(stridemap.ConflictError):
            _names(pickled)
