"""Stores are mappings of names to tensors, changed by transactions."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import damage
import numpy as np
import pytest

import stridemap
from stridemap import _handles


def test_store_is_a_mapping(store: stridemap.Store) -> None:
    store["b"], store["a"] = [1, 2], 3.0
    assert list(store) == ["a", "b"] and len(store) == 2 and "a" in store and "c" not in store and 5 not in store
    assert store.get("c") is None and [x.shape for x in store.values()] == [(), (2,)]
    assert dict(store.items()).keys() == {"a", "b"}
    store.update({"c": np.eye(2)})
    assert store.pop("c").numpy().trace() == 2 and "c" not in store
    del store["b"]
    with pytest.raises(KeyError) as caught:
        store["b"]
    assert str(caught.value) == 'load "b": no tensor with this name' and caught.value.kind == "NameNotFound"
    with pytest.raises(KeyError):
        del store["b"]
    store.rename("a", "z")
    assert list(store) == ["z"]


def test_views_are_headers_on_the_same_storage(store: stridemap.Store) -> None:
    store["weight"] = np.arange(6.0).reshape(2, 3)
    store.save_view("weight_t", store["weight"].T)
    assert store["weight_t"].shares_storage(store["weight"])
    assert store["weight_t"].storage_id == store["weight"].storage_id
    store["copy"] = store["weight"].T
    assert not store["copy"].shares_storage(store["weight"]) and store["copy"].is_contiguous()


def test_modes_are_those_of_h5py(path: Path) -> None:
    for mode in ("r", "r+"):
        with pytest.raises(FileNotFoundError):
            stridemap.open(path, mode)
    stridemap.open(path, "a", durable=False)["x"] = 1
    with stridemap.open(path, "a", durable=False) as store:
        store["y"] = 2
    with pytest.raises(FileExistsError):
        stridemap.open(path, "x")
    with stridemap.open(path) as store, pytest.raises(PermissionError, match=r"r\+"):
        store["z"] = 1
    with stridemap.open(path, "r+") as store:
        assert sorted(store) == ["x", "y"]
    with stridemap.open(path, "w", durable=False) as store:
        assert list(store) == []
    with pytest.raises(ValueError):
        stridemap.open(path, "rw")  # type: ignore[arg-type]
    (path.parent / "text").write_text("x")
    for wrong in (path.parent / "text", path.parent):
        with pytest.raises((ValueError, OSError)):
            stridemap.open(wrong)


def test_transaction_is_one_commit_or_none(store: stridemap.Store) -> None:
    before = store.generation
    with store.transaction() as txn:
        txn["a"] = [1, 2]
        txn.save_view("first", txn["a"][:1])
        txn.attrs_of("a")["unit"] = "m"
        assert "a" in txn and "a" not in store
    assert store.generation == before + 1 and sorted(store) == ["a", "first"]
    assert store.attrs_of("a") == {"unit": "m"}
    with pytest.raises(ZeroDivisionError), store.transaction() as txn:
        txn["b"] = 1
        1 / 0
    assert "b" not in store and store.generation == before + 1
    with pytest.raises(ValueError, match="ended"):
        txn.commit()
    with pytest.raises(ValueError, match="ended"):
        txn["c"] = 1
    with pytest.raises(stridemap.NameExistsError):
        store.save("a", 5, replace=False)


def test_rows_are_appended(store: stridemap.Store) -> None:
    store.create_growable("log", (2,), "float32")
    assert store.append("log", np.ones((3, 2), np.float32)) == range(3)
    early = store["log"].numpy()
    assert store.append("log", np.zeros((1, 2), np.float32)) == range(3, 4)
    assert early.shape == (3, 2) and store["log"].shape == (4, 2)
    with pytest.raises((ValueError, TypeError)):
        store.append("log", np.zeros((1, 3), np.float32))
    with pytest.raises(TypeError):
        store.append("log", np.zeros((1, 2)))


def test_attributes_are_a_mapping(store: stridemap.Store) -> None:
    store.attrs["author"] = "me"
    assert dict(store.attrs) == {"author": "me"} and repr(store.attrs) == "{'author': 'me'}"
    del store.attrs["author"]
    assert not store.attrs
    with pytest.raises(KeyError):
        del store.attrs["author"]


def test_other_processes_are_watched(path: Path) -> None:
    program = "import sys, stridemap; s = stridemap.open(sys.argv[1], 'r+'); s['new'] = [1]; del s['old']"
    with stridemap.open(path, "x", durable=False) as store:
        store["old"] = 1
        snapshot = store.snapshot()
        assert not any(store.wait_for_change(timeout) for timeout in (0.01, 0, -1, float("nan")))
        subprocess.run([sys.executable, "-c", program, path], check=True)
        changes = list(store.watch(0.5))
        assert [name for change in changes for name in change.added] == ["new"]
        assert [name for change in changes for name in change.removed] == ["old"]
        assert list(snapshot) == ["old"] and snapshot["old"].item() == 1 and list(store) == ["new"]


def test_closed_store_is_refused_but_not_its_tensors(path: Path) -> None:
    store = stridemap.open(path, "x", durable=False)
    store["x"] = [1, 2]
    tensor, snapshot = store["x"], store.snapshot()
    store.close()
    store.close()
    assert store.closed and "closed" in repr(store)
    for use in (lambda: store["x"], lambda: list(store), lambda: store.transaction(), lambda: store.generation):
        with pytest.raises(ValueError, match="closed"):
            use()
    assert tensor.numpy().tolist() == [1, 2] and snapshot["x"].numpy().tolist() == [1, 2]


def test_handles_are_small_and_open_the_same_tensor(path: Path) -> None:
    with stridemap.open(path, "x", durable=False) as writer:
        writer["some.layer.weight"] = np.arange(1000.0).reshape(10, 100)
        writer["bits"] = np.arange(8, dtype=np.uint8)
        with pytest.raises(TypeError):
            pickle.dumps(writer)
    with stridemap.open(path) as store:
        for value in (store, store.snapshot(), store["some.layer.weight"], store["some.layer.weight"][::-2, 3:].T):
            assert len(pickle.dumps(value)) < 500
        view = pickle.loads(pickle.dumps(store["some.layer.weight"][::-2, 3:].T))
        assert np.array_equal(view.numpy(), store["some.layer.weight"].numpy()[::-2, 3:].T)
        words = pickle.loads(pickle.dumps(store["bits"].view_dtype("uint32")))
        assert words.numpy().tolist() == store["bits"].view_dtype("uint32").numpy().tolist()
        with pickle.loads(pickle.dumps(store)) as again:
            assert list(again) == list(store)
        assert list(pickle.loads(pickle.dumps(store))) == list(store)
        assert list(pickle.loads(pickle.dumps(store.snapshot()))) == list(store)
        with pytest.raises(TypeError, match="memory"):
            pickle.dumps(store["bits"].copy())
        with stridemap.open(path, mapped=False) as unmapped:
            again = pickle.loads(pickle.dumps(unmapped["bits"]))
            assert again._origin[2]["mapped"] is False and again.numpy().tolist() == list(range(8))
        kept, snapshot = pickle.dumps(store["bits"]), pickle.dumps(store.snapshot())
    with stridemap.open(path, "r+", durable=False) as writer:
        writer["other"] = 1
        assert pickle.loads(kept).numpy().tolist() == list(range(8))
        writer["bits"] = 5
    # This process still has the old generation.
    assert pickle.loads(kept).numpy().tolist() == list(range(8))
    _handles._stores.clear()
    with stridemap.open(path, "r+", durable=False) as writer:
        writer["other"] = 2
    for gone, said in ((kept, "no longer exists"), (snapshot, "not on disk")):
        with pytest.raises(RuntimeError, match=said):
            pickle.loads(gone)


def test_damage_is_an_exception_and_verify_names_it(path: Path) -> None:
    with stridemap.open(path, "x", durable=False) as store:
        store["x"] = np.zeros(10_000)
        assert store.verify() == []
        file = next((path / "storages").glob("*.bin"))
        damaged = bytearray(file.read_bytes())
        damaged[100] ^= 1
        file.write_bytes(damaged)
        assert len(store.verify()) == 1
    for file in (path / "meta").iterdir():
        file.write_bytes(b"\0" * file.stat().st_size)
    with pytest.raises(ValueError):
        stridemap.open(path)


def test_inherited_handle_is_refused_in_a_forked_child(store: stridemap.Store) -> None:
    store["x"] = np.arange(3)
    if (child := os.fork()) == 0:
        try:
            list(store)
            store["y"] = 1
        except RuntimeError as error:
            os._exit(7 if error.kind == "Stale" else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_threads_share_a_store(store: stridemap.Store) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(20):
                store[f"{number}"] = np.full(100, step)
                assert store[f"{number}"].numpy()[0] == step
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and len(store) == 4


def test_waiting_can_be_interrupted(path: Path) -> None:
    program = "import sys, stridemap; print('ready', flush=True); stridemap.open(sys.argv[1]).wait_for_change()"
    stridemap.open(path, "x", durable=False).close()
    with subprocess.Popen([sys.executable, "-c", program, path], stdout=-1, stderr=-1, text=True) as waiting:
        assert waiting.stdout.readline() == "ready\n"
        time.sleep(0.5)
        waiting.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in waiting.communicate(timeout=30)[1]


@pytest.mark.parametrize("held", ["lock", "append"])
def test_wait_for_a_lock_can_be_interrupted(store: stridemap.Store, held: str) -> None:
    store.save("m", [1, 2], kind="mutable")
    store.create_growable("log", (), "uint8")
    program = """
import sys, numpy, stridemap
with stridemap.open(sys.argv[1], "r+") as store:
    if sys.argv[2] == "lock":
        with store["m"].lock():
            print("held", flush=True)
            sys.stdin.read()
    else:
        with store.transaction() as txn:
            txn.append("log", numpy.array([1], numpy.uint8))
            print("held", flush=True)
            sys.stdin.read()
"""
    arguments = [sys.executable, "-c", program, store.path, held]
    with subprocess.Popen(arguments, stdin=-1, stdout=-1, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        interrupt = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            interrupt.start()
            if held == "lock":
                with store["m"].lock():
                    pass
            else:
                store.append("log", np.array([2], np.uint8))
        interrupt.join()
        other.communicate("", timeout=30)
    # Nothing of the interrupted wait is left.
    with store["m"].lock() as array:
        array[0] = 5
    store.append("log", np.array([3], np.uint8))
    assert store["log"].numpy().tolist() == ([3] if held == "lock" else [1, 3])


def test_compaction_can_be_interrupted(store: stridemap.Store) -> None:
    store["x"] = np.ones(256 << 20, np.uint8)
    store.save_view("part", store["x"][: 160 << 20])
    del store["x"]
    generation, has_ended = store.generation, threading.Event()

    def unfinished() -> list[str]:
        return [name for _, _, names in os.walk(store.path) for name in names if name.startswith(".stage-")]

    def interrupt() -> None:
        while not has_ended.is_set():
            if unfinished():
                os.kill(os.getpid(), signal.SIGINT)
                return

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            store.compact()
    finally:
        has_ended.set()
        interrupter.join()
    assert store.generation == generation and unfinished() == []
    store.compact()
    assert store.generation == generation + 1 and store["part"].numpy().all()


def test_other_threads_run_while_one_waits(store: stridemap.Store) -> None:
    waiting = threading.Thread(target=store.wait_for_change, args=(60.0,))
    waiting.start()
    time.sleep(0.2)
    # If the wait held the interpreter's lock, this thread would run again only after it.
    assert waiting.is_alive()
    with stridemap.open(store.path, "r+", durable=False) as other:
        other["x"] = 1
    waiting.join(30)
    assert not waiting.is_alive()


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 5000, 5, None, b"x", "\ud800"])
def test_names_that_no_tensor_can_have_are_refused(store: stridemap.Store, name: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        store[name] = 1  # type: ignore[index]
    with pytest.raises((KeyError, ValueError, TypeError)):
        store[name]  # type: ignore[index]
    assert list(store) == []


def test_transaction_can_end_before_its_block(store: stridemap.Store) -> None:
    with store.transaction() as txn:
        txn["a"] = 1
        txn.commit()
    with store.transaction() as txn:
        txn["b"] = 1
        txn.abort()
    assert list(store) == ["a"]
    with store.transaction() as txn, pytest.raises(RuntimeError, match="one with block"), txn:
        pass
    with pytest.raises(RuntimeError, match="with block"):
        store.transaction().attrs["key"] = "value"


def test_each_change_of_a_transaction_says_whether_it_replaces(store: stridemap.Store) -> None:
    with store.transaction() as txn:
        txn["a"], txn["b"] = 1, 2
        with pytest.raises(stridemap.NameExistsError):
            txn.rename("a", "b")
        with pytest.raises(stridemap.NameExistsError):
            txn.create("a", (2,), "uint8")
        with pytest.raises(stridemap.NameExistsError):
            txn.create_growable("a", (2,), "uint8")
        txn.create("b", (3,), "uint8", replace=True)
    assert store["b"].shape == (3,)


def test_stores_are_equal_to_themselves_and_updated_in_one_commit(store: stridemap.Store) -> None:
    generation = store.generation
    store.update({"a": 1}, b=2)
    assert store == store and store in {store} and store.generation == generation + 1
    store.clear()
    assert list(store) == [] and store.generation == generation + 2
    store.attrs["key"] = "value"
    store.attrs_of("prefix.")["key"] = "value"
    with stridemap.open(store.path, "w", durable=False) as again:
        assert dict(again.attrs) == dict(again.attrs_of("prefix.")) == {}


def test_handles_need_no_working_directory_and_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stridemap import _handles

    monkeypatch.chdir(tmp_path)
    handles = []
    for index in range(20):
        with stridemap.open(f"{index}.smap", "x", durable=False) as store:
            with store.transaction() as txn:
                txn["a"], txn["b"] = np.arange(8, dtype=np.uint8), np.arange(3, dtype=np.uint8)
            handles.append(pickle.dumps(store["a"].view_dtype("uint32")))
    monkeypatch.chdir("/")
    assert [pickle.loads(handle).numpy()[1] for handle in handles] == [0x07060504] * 20
    assert len(_handles._stores) <= _handles._MAX_STORES


def test_copies_of_tensors(store: stridemap.Store) -> None:
    store.save("m", [1, 2], kind="mutable")
    tensor = store["m"]
    deep = copy.deepcopy(tensor)
    with tensor.lock() as array:
        array[0] = 5
    assert copy.copy(tensor) is tensor and deep.numpy().tolist() == [1, 2]


def test_changes_are_watched_from_the_call_on(store: stridemap.Store) -> None:
    changes = store.watch(5)
    with stridemap.open(store.path, "r+", durable=False) as other:
        other["x"] = 1
        other["y"] = 2
    assert next(changes).added == ["x", "y"]


def test_errors_have_the_numbers_of_the_operating_system(store: stridemap.Store, path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        stridemap.open(path / "no such store")
    assert missing.value.errno == errno.ENOENT
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(OSError, match="storage") as too_large:
            store["x"] = np.ones(1 << 21, np.uint8)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert too_large.value.errno == errno.EFBIG and "x" not in store


def test_messages_name_no_function_of_rust(store: stridemap.Store) -> None:
    store["a"], store["b"] = 1, 2
    with pytest.raises(stridemap.NameExistsError, match="remove that tensor first, or give replace=True$"):
        store.rename("a", "b")
    store.rename("a", "b", replace=True)
    assert list(store) == ["b"] and store["b"].item() == 1


def test_timeout_is_a_number(path: Path) -> None:
    with pytest.raises(ValueError, match="timeout"):
        stridemap.open(path, "x", timeout=float("nan"))


def test_prefetch_reads_tensors_and_reports_their_bytes(store: stridemap.Store) -> None:
    store.update({"a": np.arange(1_000_000), "b": np.ones(3)})
    store.save_view("a_t", store["a"].view((1000, 1000)).T)
    seen: list[tuple[int, int]] = []
    assert store.prefetch(progress=lambda *state: seen.append(state)) is None
    assert seen[-1][0] == 8_000_024 and seen[-1][1] == 16_000_024
    store.snapshot().prefetch(["b"], progress=lambda *state: seen.append(state))
    assert seen[-1] == (24, 24)
    store.prefetch(name for name in ["a", "b"])
    with pytest.raises(KeyError, match="c"):
        store.prefetch(["c"])
    with pytest.raises(TypeError, match="int"):
        store.prefetch([1])  # type: ignore[list-item]


@pytest.mark.parametrize("mapped", [True, False])
def test_store_that_verifies_raises_an_error_instead_of_a_wrong_element(tmp_path: Path, mapped: bool) -> None:
    path = tmp_path / "x.smap"
    with stridemap.open(path, "x") as store:
        store.update(good=[1, 2], bad=np.zeros(2_000_000))
    damage.flip_bit(path, "bad", 3_000_000)
    with stridemap.open(path, mapped=mapped) as store:
        assert store["bad"].numpy().sum() != 0
    with stridemap.open(path, mapped=mapped, verify=True) as store:
        assert store["good"].tolist() == [1, 2] and store["bad"][:10].numpy().sum() == 0
        sent = pickle.loads(pickle.dumps(store))
        for bad in (store["bad"], sent["bad"], pickle.loads(pickle.dumps(store["bad"]))):
            for read in (bad.numpy, bad.torch, bad.tolist, lambda bad=bad: bad[370_000:380_000].numpy()):
                with pytest.raises(stridemap.DamagedError, match='read "bad": .*at byte 2097152'):
                    read()
        with pytest.raises(stridemap.DamagedError, match="bad"):
            store.prefetch()
        assert store["bad"][:10].numpy().sum() == 0


@pytest.mark.parametrize("mapped", [True, False])
def test_only_the_rows_that_a_list_or_a_mask_selects_are_verified(tmp_path: Path, mapped: bool) -> None:
    path = tmp_path / "x.smap"
    with stridemap.open(path, "x") as store:
        store["x"] = np.arange(2_000_000).reshape(200_000, 10)
    damage.flip_bit(path, "x", 3_000_000)  # in row 37,500; the chunk has the rows 26,214 to 39,321
    mask = np.zeros(200_000, bool)
    mask[[5, 150_000]] = True
    with stridemap.open(path, mapped=mapped, verify=True) as store:
        x = store["x"]
        assert x[[5, 150_000, -1]][:, 9].tolist() == [59, 1_500_009, 1_999_999]
        assert x[mask][:, 0].tolist() == [50, 1_500_000]
        for rows in ([5, 30_000], mask | (np.arange(200_000) == 30_000)):
            with pytest.raises(stridemap.DamagedError, match="at byte 2097152"):
                x[rows]


def test_prefetch_of_more_storages_than_files_that_may_be_open(path: Path) -> None:
    count = 400
    with stridemap.open(path, "x", durable=False) as store:
        for at in range(count):
            store[f"x{at}"] = [at]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(os.listdir("/proc/self/fd"))
    with stridemap.open(path, mapped=False) as store:
        resource.setrlimit(resource.RLIMIT_NOFILE, (opened + count - 100, limits[1]))
        try:
            seen: list[tuple[int, int]] = []
            store.prefetch(progress=lambda *state: seen.append(state))
            assert seen[-1] == (8 * count, 8 * count)
            store.prefetch(list(store), progress=lambda *state: seen.append(state))
            assert seen[-1] == (8 * count, 8 * count)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_file_cannot_be_verified_while_it_is_read(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones(2))
    with pytest.raises(stridemap.ArgumentError, match="import_file"):
        stridemap.open(tmp_path / "x.npy", verify=True)
