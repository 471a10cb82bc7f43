"""Transactions that read, and methods that read and then write: no update of another writer is lost."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stridemap

THREADS, INCREMENTS = 4, 50


def increment(store: stridemap.Store, *, exclusive: bool = False) -> None:
    with store.transaction(exclusive=exclusive) as txn:
        txn["n"] = txn["n"].numpy() + 1


def in_threads(act: Callable[[int], Any]) -> list[Any]:
    """Act in several threads at once. Return the results."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(act, range(THREADS)))


def test_increments_are_counted_or_raise(store: stridemap.Store) -> None:
    store["n"] = 0

    def work(_: int) -> int:
        conflicts = 0
        for _ in range(INCREMENTS):
            try:
                increment(store)
            except stridemap.ConflictError as error:
                assert error.kind == "Conflict" and 'changed "n", which this transaction has read' in str(error)
                conflicts += 1
        return conflicts

    conflicts = sum(in_threads(work))
    assert store["n"].item() + conflicts == THREADS * INCREMENTS
    assert store.generation == 2 + store["n"].item()


def test_increments_that_are_retried_are_all_counted(store: stridemap.Store) -> None:
    store["n"] = 0

    def work(_: int) -> None:
        for _ in range(INCREMENTS):
            while True:
                try:
                    increment(store)
                    break
                except stridemap.ConflictError:
                    continue

    in_threads(work)
    assert store["n"].item() == THREADS * INCREMENTS


def test_increments_of_exclusive_transactions_never_conflict(store: stridemap.Store) -> None:
    store["n"] = 0
    in_threads(lambda _: [increment(store, exclusive=True) for _ in range(INCREMENTS)])
    assert store["n"].item() == THREADS * INCREMENTS


def test_second_of_two_handles_conflicts(store: stridemap.Store) -> None:
    store["n"] = 0
    with stridemap.open(store.path, "r+", durable=False) as other:
        with pytest.raises(stridemap.ConflictError), store.transaction() as txn:
            txn["n"] = txn["n"].numpy() + 1
            increment(other)
        # A transaction begins on the newest generation, even if its handle shows an older one.
        store["unrelated"] = 1
        other["n"] = 10
        assert store["n"].item() == 1
        increment(store)
        assert store["n"].item() == 11
        with store.transaction() as txn:
            txn.ignore_reads()
            txn["n"] = txn["n"].numpy() + 1
            other["n"] = 100
        assert store["n"].item() == 12


def test_exclusive_transaction_refuses_other_changes_of_its_thread(store: stridemap.Store) -> None:
    store["n"] = 0
    with store.transaction(exclusive=True) as txn:
        for change in (lambda: store.save("x", 1), store.clear, lambda: store.transaction(exclusive=True)):
            with pytest.raises(stridemap.BusyError, match="this thread has begun an exclusive transaction"):
                change()
        txn["n"] = 1
    with pytest.raises(ZeroDivisionError), store.transaction(exclusive=True) as txn:
        1 / 0
    store["n"] = 2
    with store.transaction(exclusive=True) as txn:
        txn["n"] = 3
        txn.commit()
        store["n"] = 4  # the lock is released with the commit
    assert store["n"].item() == 4


def hold(path: str, ready: Any, done: Any) -> None:
    with stridemap.open(path, "r+", durable=False) as store, store.transaction(exclusive=True) as txn:
        txn["n"] = txn["n"].numpy() + 1
        ready.set()
        done.wait(60)


def test_writers_wait_for_an_exclusive_transaction_of_another_process(path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    ready, done = spawn.Event(), spawn.Event()
    with stridemap.open(path, "x", durable=False, timeout=0.05) as store:
        store["n"] = 0
        holder = spawn.Process(target=hold, args=(str(path), ready, done))
        holder.start()
        assert ready.wait(60)
        with pytest.raises(stridemap.BusyError):
            store["n"] = 5
        with pytest.raises(stridemap.BusyError):
            store.transaction(exclusive=True)
        assert store["n"].item() == 0
        done.set()
        holder.join()
        increment(store)
        assert store["n"].item() == 2


def test_names_that_were_listed_or_looked_up_are_reads(store: stridemap.Store) -> None:
    reads: list[Callable[[stridemap.Transaction], object]] = [list, len, lambda txn: "x" in txn, lambda txn: txn.get("x")]
    for index, read in enumerate(reads):
        with pytest.raises(stridemap.ConflictError, match='added "x"'), store.transaction() as txn:
            read(txn)
            txn[f"result{index}"] = 1
            store["x"] = 1
        del store["x"]
    assert list(store) == []


def test_attributes_are_read_and_changed_in_a_transaction(store: stridemap.Store) -> None:
    store.attrs["count"] = "0"
    with store.transaction() as txn:
        txn.attrs["count"] = str(int(txn.attrs["count"]) + 1)
        txn.attrs_of("enc.").update(license="MIT", author="me")
        assert txn.attrs_of("enc.") == {"license": "MIT", "author": "me"} and store.attrs["count"] == "0"
    assert store.attrs == {"count": "1"} and store.attrs_of("enc.")["author"] == "me"
    with pytest.raises(stridemap.ConflictError, match="attributes of the store"), store.transaction() as txn:
        txn.attrs["count"] = str(int(txn.attrs["count"]) + 1)
        store.attrs["count"] = "7"
    assert store.attrs["count"] == "7"

    def work(_: int) -> None:
        for _ in range(10):
            with store.transaction(exclusive=True) as txn:
                txn.attrs["count"] = str(int(txn.attrs["count"]) + 1)

    in_threads(work)
    assert store.attrs["count"] == str(7 + 10 * THREADS)


def test_changes_of_attributes_are_one_commit_each(store: stridemap.Store) -> None:
    def commits(act: Callable[[], object]) -> int:
        before = store.generation
        act()
        return store.generation - before

    attrs = store.attrs
    assert commits(lambda: attrs.update({"a": "1", "b": "2"}, c="3")) == 1
    assert commits(lambda: attrs.setdefault("a", "9")) == 0 and attrs["a"] == "1"
    assert commits(lambda: attrs.setdefault("d", "4")) == 1 and attrs["d"] == "4"
    assert commits(lambda: attrs.pop("d")) == 1 and commits(lambda: attrs.pop("d", None)) == 0
    assert commits(attrs.clear) == 1 and attrs == {}
    for wrong in (lambda: attrs.pop("a"), attrs.popitem, lambda: attrs.__delitem__("a")):
        with pytest.raises(KeyError):
            wrong()
    attrs["a"] = "1"
    with pytest.raises(TypeError, match="not bytes"):
        attrs.update(b="2", a=b"x")
    assert attrs == {"a": "1"}


def test_methods_that_read_and_write_use_the_newest_generation(store: stridemap.Store) -> None:
    store["x"] = 1
    store.attrs["k"] = "1"
    with stridemap.open(store.path, "r+", durable=False) as stale:
        store["x"], store["y"] = 2, 3
        store.attrs["new"] = "2"
        assert "y" not in stale
        assert stale.setdefault("y", 9).item() == 3
        assert stale.pop("x").item() == 2
        assert stale.pop("x", None) is None
        store["z"] = 4
        stale.clear()
        store.refresh()
        assert list(store) == []
        store.attrs["newest"] = "3"
        assert stale.attrs.pop("newest") == "3"
        with pytest.raises(KeyError):
            stale.pop("x")
        assert stale.setdefault("fresh", [1, 2]).numpy().tolist() == [1, 2]
        assert stale.popitem()[0] == "fresh" and len(stale) == 0


@pytest.mark.parametrize("kind", ["names", "attributes"])
def test_each_value_is_popped_once(kind: str, store: stridemap.Store) -> None:
    mapping: Any = store if kind == "names" else store.attrs
    mapping.update({f"{index}": "1" if kind == "attributes" else index for index in range(40)})

    def work(_: int) -> list[str]:
        own = []
        while True:
            try:
                own.append(mapping.popitem()[0])
            except KeyError:
                return own

    popped = [key for own in in_threads(work) for key in own]
    assert sorted(popped) == sorted(f"{index}" for index in range(40))
    values = in_threads(lambda own: mapping.setdefault("only", f"{own}" if kind == "attributes" else own))
    assert len({value if kind == "attributes" else value.item() for value in values}) == 1


def open_and_save(path: str, number: int, count: int, errors: Any) -> None:
    for value in range(count):
        try:
            with stridemap.open(path, "w", durable=False) as store:
                store[f"t{number}"] = np.full(3, value)
        except Exception as error:  # noqa: BLE001
            errors.put(repr(error))
    errors.put(None)


def test_processes_that_open_a_store_for_writing_do_not_fail_each_other(path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    errors = spawn.Queue()
    processes = [spawn.Process(target=open_and_save, args=(str(path), number, 50, errors)) for number in range(2)]
    for process in processes:
        process.start()
    found = []
    for _ in processes:
        while (error := errors.get(timeout=60)) is not None:
            found.append(error)
    for process in processes:
        process.join()
    assert found == []


def in_another_thread(act: Callable[[], object]) -> None:
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


def test_lock_can_be_released_by_another_thread(store: stridemap.Store) -> None:
    store.save("m", [1, 2], kind="mutable")
    lock = store["m"].lock()
    array = lock.__enter__()
    array[0] = 5
    in_another_thread(lock.flush)
    in_another_thread(lambda: lock.__exit__(None, None, None))
    assert not array.flags.writeable
    with store["m"].lock() as again:
        assert again.tolist() == [5, 2]


@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize("on_own_thread", [True, False])
def test_lock_that_is_dropped_warns_and_is_released(exclusive: bool, on_own_thread: bool, path: Path) -> None:
    with stridemap.open(path, "x", durable=False, timeout=0.05) as store:
        store.save("m", [1, 2], kind="mutable")
        held = [store["m"].lock(exclusive)]
        held.append(held[0].__enter__())  # type: ignore[arg-type]

        def drop() -> None:
            held.clear()
            gc.collect()

        with pytest.warns(ResourceWarning, match="dropped before it was released"):
            drop() if on_own_thread else in_another_thread(drop)
        with store["m"].lock() as array:
            array[0] = 3
        in_another_thread(lambda: store["m"].lock(False).__enter__().flags)


def test_file_that_is_replaced_while_it_is_staged_is_not_read(path: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "blocks", tmp_path / "others"
    first.write_bytes(b"a" * 1000)
    second.write_bytes(b"b" * 1000)

    has_ended = threading.Event()

    def replace() -> None:
        while not has_ended.is_set():
            for file in os.listdir("/proc/self/fd"):
                with suppress(OSError):
                    if os.readlink(f"/proc/self/fd/{file}") == os.path.realpath(first):
                        os.replace(second, first)
                        return

    with stridemap.open(path, "x", durable=False) as store, store.transaction() as txn:
        replacer = threading.Thread(target=replace)
        replacer.start()
        # The library opens the file, and then waits until a change would give it a different mtime.
        os.utime(first, ns=(soon := time.time_ns() + 10_000_000, soon))
        number = txn._handle.copy_file(first)
        has_ended.set()
        replacer.join()
        txn._handle.save_header("x", ("uint8", [1000], [1], 0), number)
    assert first.read_bytes() == b"b" * 1000
    with stridemap.open(path) as store:
        assert store["x"].numpy().tobytes() == b"a" * 1000


def test_append_that_waits_for_an_exclusive_transaction_does_not_hold_the_tensor(path: Path) -> None:
    with stridemap.open(path, "x", durable=False) as store, stridemap.open(path, "r+", durable=False) as other:
        store.create_growable("log", (), "int64")
        other.refresh()
        with store.transaction(exclusive=True) as txn:
            waiting = threading.Thread(target=lambda: other.append("log", np.array([2])))
            waiting.start()
            time.sleep(0.3)
            assert txn.append("log", np.array([1])) == range(1)
        waiting.join()
        store.refresh()
        assert store["log"].numpy().tolist() == [1, 2]
