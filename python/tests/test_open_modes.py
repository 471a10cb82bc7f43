"""Several processes and threads create, open and empty one store at once."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import stridemap

EMPTYING = """
import sys, stridemap
path, number, count, how = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
kept = stridemap.open(path, "a", durable=False)
for step in range(count):
    if how == "w":
        with stridemap.open(path, "w", durable=False) as store:
            store.save(f"t{number}", [step])
            store.attrs[f"a{number}"] = "x"
    else:
        kept.clear()
        kept.save(f"t{number}", [step])
        kept.attrs[f"a{number}"] = "x"
"""


@pytest.mark.parametrize("how", ["w", "clear"])
def test_processes_can_empty_a_store_at_once(path: Path, how: str) -> None:
    run = [sys.executable, "-c", EMPTYING, path]
    others = [subprocess.Popen([*run, str(number), "40", how], stderr=-1, text=True) for number in range(3)]
    for other in others:
        assert other.communicate()[1] == "" and other.returncode == 0
    with stridemap.open(path) as store:
        assert set(store) <= {"t0", "t1", "t2"} and set(store.attrs) <= {"a0", "a1", "a2"}
        assert any(store[name].numpy().tolist() == [39] for name in store)
        assert store.verify() == []
    with stridemap.open(path, "w", durable=False) as store:
        assert list(store) == [] and not store.attrs


@pytest.mark.parametrize("mode", ["a", "w"])
def test_threads_can_open_a_store_at_once(path: Path, mode: str) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(10):
                with stridemap.open(path, mode, durable=False) as store:  # type: ignore[arg-type]
                    store[f"{number}.{step}"] = step
                    if mode == "a" and step % 3 == 0:
                        store.clear()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
