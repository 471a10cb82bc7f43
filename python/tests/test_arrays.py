"""Arrays share the memory of the file, for every dtype and stride, and outlive stores and locks."""

from __future__ import annotations

import copy
import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import psutil
import pytest
import torch

import stridemap

NUMPY = ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
         "float16", "float32", "float64", "complex64", "complex128"]  # fmt: skip
ML = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]


def numbers(name: str) -> np.ndarray:
    dtype = np.dtype(name) if name in NUMPY else np.dtype(getattr(ml_dtypes, name))
    return (np.arange(24) % 5).astype(np.float32).astype(dtype).reshape(2, 3, 4)


@pytest.mark.parametrize("name", NUMPY + ML)
def test_every_dtype_comes_back_from_numpy_and_pytorch(name: str, store: stridemap.Store) -> None:
    array = numbers(name)
    store["x"] = array
    x = store["x"]
    assert (x.dtype, x.shape, x.itemsize, x.nbytes) == (name, (2, 3, 4), array.itemsize, array.nbytes)
    assert x.numpy().dtype == array.dtype and x.numpy().tobytes() == array.tobytes()
    tensor = x.torch()
    assert str(tensor.dtype) == f"torch.{name}"
    assert tensor.view(torch.uint8).numpy().tobytes() == array.tobytes()
    store["y"] = tensor.transpose(0, 2)
    assert store["y"].numpy().tobytes() == array.transpose(2, 1, 0).tobytes()


@pytest.mark.parametrize("name", NUMPY + ML)
def test_arrays_share_the_memory_of_the_storage(name: str, store: stridemap.Store) -> None:
    store["x"] = numbers(name)
    x = store["x"]
    start = x.numpy().__array_interface__["data"][0]
    torch_start = x.torch().data_ptr()
    views = [x, x[1], x[:, ::2], x.T, x[0, 0, 0].expand(7), x[:, 1:, 1:3]]
    for view in [*views, x[::-1], x[..., ::-3]]:
        array = view.numpy()
        assert array.__array_interface__["data"] == (start + view.storage_offset * view.itemsize, True)
        assert array.shape == view.shape and not array.flags.writeable
        assert np.asarray(view).tobytes() == array.tobytes()
        copy = view.torch()
        assert copy.contiguous().view(torch.uint8).numpy().tobytes() == array.tobytes()
    for view in views:
        assert view.torch().data_ptr() == torch_start + view.storage_offset * view.itemsize
        assert view.torch().stride() == view.stride()


def test_float4_has_no_array_but_its_bytes_have(store: stridemap.Store) -> None:
    packed = np.arange(8, dtype=np.uint8)
    store["x"] = stridemap.Tensor._of_elements(("float4_e2m1fn_x2", [8], packed))
    with pytest.raises(TypeError, match="view_dtype"):
        store["x"].numpy()
    assert store["x"].view_dtype("uint8").numpy().tolist() == packed.tolist()


def test_dlpack_lends_to_pytorch_and_numpy(store: stridemap.Store) -> None:
    store["x"] = np.arange(6.0).reshape(2, 3)
    lent = torch.from_dlpack(store["x"].T)
    assert lent.stride() == (1, 3) and lent.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert np.from_dlpack(store["x"]).tolist() == [[0, 1, 2], [3, 4, 5]]
    store["y"] = lent
    assert store["y"].numpy().tolist() == lent.tolist()


def test_what_pytorch_writes_is_never_saved(path: Path) -> None:
    with stridemap.open(path, "x", durable=False) as store:
        store["x"] = np.zeros(5000)
    with stridemap.open(path) as store:
        store["x"].torch().fill_(7)
        torch.from_dlpack(store["x"]).add_(1)
        assert not store["x"].numpy().any()
        assert store.verify() == []


def test_arrays_outlive_the_store_its_names_and_its_folder(path: Path) -> None:
    with stridemap.open(path, "x", durable=False) as store:
        store["x"] = np.arange(100_000)
        array, tensor = store["x"].numpy()[::7], store["x"].torch()
        del store["x"]
        store.compact()
    subprocess.run(["rm", "-r", path], check=True)
    gc.collect()
    assert array.sum() == np.arange(0, 100_000, 7).sum()
    assert tensor.sum() == np.arange(100_000).sum()


def test_arrays_of_no_dtype_and_stride_take_memory_of_their_own(path: Path) -> None:
    program = """
import sys, numpy, psutil, stridemap, torch
def private():
    info = psutil.Process().memory_info()
    return info.rss - info.shared
whole = stridemap.open(sys.argv[1])["x"]
before = private()
for name in sys.argv[2:]:
    x = whole.view_dtype(name).view(256, -1)
    for view in (x, x[::-1], x.T, x[:, ::-2], x[0].expand(256, x.shape[1])):
        array = view.numpy()
        # The bits of zero are the smallest number of this dtype, which has no zero.
        assert array.shape == view.shape and array.any() == (name == "float8_e8m0fnu"), name
    for view in (x, x.T, x[::2], x[0].expand(256, x.shape[1])):
        assert view.torch().stride() == view.stride()
        assert not view.torch().view(torch.uint8).any() if view.is_contiguous() else True
print(private() - before)
"""
    with stridemap.open(path, "x", durable=False) as store:
        store["x"] = np.zeros(32 << 20, np.uint8)
    names = [*NUMPY, *ML]
    run = subprocess.run([sys.executable, "-c", program, path, *names], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 24 << 20, f"{int(run.stdout) >> 20} MiB for views of 32 MiB of {len(names)} dtypes"


def test_without_a_mapping_elements_are_copied(path: Path) -> None:
    with stridemap.open(path, "x", durable=False) as store:
        store["x"] = np.arange(6)
    with stridemap.open(path, mapped=False) as store:
        assert store["x"].numpy().tolist() == list(range(6))
        assert store["x"][::-1].torch().tolist() == list(range(5, -1, -1))
        with pytest.raises(ValueError, match="copy"):
            np.array(store["x"], copy=False)


def test_numpy_decides_about_copies(store: stridemap.Store) -> None:
    store["x"] = np.arange(6)
    x = store["x"]
    assert np.array(x, copy=True).flags.writeable
    assert np.asarray(x, dtype=np.float32).dtype == np.float32
    assert np.array(x, copy=False).tolist() == x.numpy().tolist()
    with pytest.raises(ValueError):
        np.array(x, dtype=np.float32, copy=False)
    assert np.sum(x) == 15 and (np.asarray(x) + 1).tolist() == [1, 2, 3, 4, 5, 6]


def test_saved_arrays_of_any_order_byte_order_and_kind(store: stridemap.Store) -> None:
    for array in (
        np.asfortranarray(np.arange(6).reshape(2, 3)), np.arange(6, dtype=">i4"), np.arange(12)[::-2],
        np.float32(3), 5, [1.5, 2], True, 1j, np.zeros((0, 3)), np.broadcast_to(np.int16(2), (3, 4)),
    ):  # fmt: skip
        store["x"] = array
        assert np.array_equal(store["x"].numpy(), array), array
        assert store["x"].shape == np.shape(array)
    for wrong in ("text", ["a"], object(), None, np.array(["2020-01-01"], dtype="M8[D]"), [[1], [2, 3]], b"x"):
        with pytest.raises((TypeError, ValueError)):
            store["y"] = wrong
    assert "y" not in store


def test_lock_gives_an_array_that_can_be_written_until_it_is_released(store: stridemap.Store) -> None:
    store.save("counts", np.zeros((3, 4), np.int64), kind="mutable")
    counts = store["counts"]
    with counts.lock() as whole:
        whole += 1
        part = whole[:, 1:]
        column = part[:, 0]
        column[:] = 9
        total = whole + 0
    for array in (whole, part, column):
        with pytest.raises(ValueError, match="read-only"):
            array += 1
    total += 1
    assert counts.numpy().tolist() == [[1, 9, 1, 1]] * 3
    with counts[::2].lock() as rows:
        rows[...] = 0
    assert counts.numpy().sum() == 12
    with counts.lock(exclusive=False) as shared, pytest.raises((ValueError, TypeError)):
        shared += 1
    lock = counts.lock()
    with lock as array:
        array[0] = 5
        lock.flush()
        with pytest.raises(RuntimeError), lock:
            pass
    assert counts.numpy()[0].tolist() == [5] * 4


def test_lock_is_refused_for_sealed_tensors_and_while_this_thread_holds_it(path: Path) -> None:
    with stridemap.open(path, "x", durable=False, timeout=0.2) as store:
        store["sealed"] = np.zeros(3)
        with pytest.raises(stridemap.ArgumentError), store["sealed"].lock():
            pass
        store.save("x", np.zeros(3), kind="mutable")
        with store["x"].lock() as array:
            with pytest.raises(TimeoutError), store["x"].lock():
                pass
            array[0] = 1
        assert store["x"].numpy().tolist() == [1, 0, 0]


READS = {
    "numpy": lambda x: x.numpy(),
    "torch": lambda x: x.torch().numpy(),
    "asarray": np.asarray,
    "from_dlpack": np.from_dlpack,
    "copy": lambda x: x.copy().numpy(),
    "deepcopy": lambda x: copy.deepcopy(x).numpy(),
    "astype": lambda x: x.astype("float64").numpy(),
    "reshape": lambda x: x.T.reshape(-1).numpy(),
    "flatten": lambda x: x.T.flatten().numpy(),
    "contiguous": lambda x: x.T.contiguous().numpy(),
    "statistics": lambda x: np.array([x.statistics()["min"], x.statistics()["max"]])[:1],
    "item": lambda x: np.array([x[0, 0].item()]),
}


def test_reads_of_a_mutable_tensor_are_refused_under_its_exclusive_lock(store: stridemap.Store, path: Path) -> None:
    store.save("x", np.zeros((3, 4)), kind="mutable")
    for mapped in (True, False):
        x = stridemap.open(path, mapped=mapped)["x"]
        with store["x"].lock():
            for name, read in READS.items():
                with pytest.raises(TimeoutError, match="this thread holds an exclusive lock"):
                    raise AssertionError(f"{name} of a locked tensor: {read(x)}")
            with pytest.raises(TimeoutError, match="this thread"):
                store["copy"] = x
            with pytest.raises(TimeoutError, match="this thread"), store.transaction() as txn:
                txn.save("copy", x)
            assert "(3, 4) float64" in repr(x) and "this thread" in x._repr_html_() and "copy" not in store
        with x.lock(exclusive=False):
            for read in READS.values():
                assert not read(x).any()
        assert "this thread" not in x._repr_html_()


def test_copies_of_a_tensor_that_another_process_changes_are_whole(store: stridemap.Store, path: Path) -> None:
    store.save("x", np.zeros((700, 700)), kind="mutable")
    code = """if True:
    import sys, threading, stridemap
    x, ended = stridemap.open(sys.argv[1], "r+")["x"], threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    print("ready", flush=True)
    while not ended.is_set():
        with x.lock() as array:
            array += 1
    """
    writer = subprocess.Popen([sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert writer.stdin is not None and writer.stdout is not None and writer.stdout.readline() == b"ready\n"
    try:
        for round in range(10):
            x = stridemap.open(path, mapped=round % 2 == 0)["x"]
            for name, read in READS.items():
                elements = read(x)
                assert (elements == elements.flat[0]).all(), name
            store["copy"] = x
            saved = store["copy"].numpy()
            assert (saved == saved[0, 0]).all()
    finally:
        writer.communicate()
    assert writer.returncode == 0 and store["x"].numpy()[0, 0] > 0


ANSWERING = """
import sys, stridemap
steps = stridemap.open(sys.argv[1], "r+")["steps"].live()
for step in range(300):
    assert steps.wait(0, step, timeout=60)
    steps.set(1, steps.get(0))
    steps.wake(1)
"""


def test_processes_wait_for_each_other(store: stridemap.Store) -> None:
    store.save("steps", np.zeros(2, np.int64), kind="live")
    steps = store["steps"].live()
    other = subprocess.Popen([sys.executable, "-c", ANSWERING, store.path])
    for step in range(300):
        steps.set(0, step + 1)
        steps.wake(0)
        assert steps.wait(1, step, timeout=60)
    assert other.wait(60) == 0
    assert not steps.wait(1, 300, timeout=0.01) and steps.wait(1, 299)
    with pytest.raises(TypeError):
        steps.wait()
    with pytest.raises(IndexError):
        steps.wake(2)
    store.save("small", np.zeros(2, np.int8), kind="live")
    with pytest.raises(ValueError, match="at least 4"):
        store["small"].live().wait(0, 0, timeout=1)
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError()))
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    with pytest.raises(TimeoutError):
        steps.wait(1, 300)


def test_live_elements_are_atomic(store: stridemap.Store) -> None:
    store.save("steps", np.zeros((2, 2), np.int64), kind="live")
    steps = store["steps"].live()
    assert steps.fetch_add(0, 1, 5) == 0 and steps.get(0, 1) == 5
    steps.set(1, 1, -3)
    assert steps.compare_exchange(1, 1, -3, 4) == (True, -3)
    assert steps.compare_exchange(1, 1, -3, 4) == (False, 4)
    steps.flush()
    assert store["steps"].numpy().tolist() == [[0, 5], [0, 4]]
    with pytest.raises(IndexError):
        steps.get(2, 0)
    with pytest.raises(OverflowError):
        steps.set(0, 0, 1 << 63)
    with pytest.raises(TypeError):
        steps.set(0, 0, "1")
    for few in (steps.set, steps.fetch_add, steps.compare_exchange):
        with pytest.raises(TypeError):
            few()
    with pytest.raises((IndexError, ValueError)):
        steps.fetch_add(1, 5)


def test_statistics_are_those_of_numpy(store: stridemap.Store) -> None:
    array = np.array([1, 2, np.nan, 4, np.inf], np.float32)
    store["x"] = array
    found = store["x"].statistics()
    assert (found["count"], found["nan_count"], found["positive_infinity_count"]) == (5, 1, 1)
    assert (found["min"], found["max"]) == (1, 4)
    assert found["mean"] == pytest.approx(7 / 3) and found["std"] == pytest.approx(np.std([1, 2, 4], ddof=1))
    assert found["sample_count"] == 3


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "uint8"])
def test_quantiles_are_those_of_numpy(store: stridemap.Store, dtype: str) -> None:
    random = np.random.default_rng(3)
    for count in (1, 2, 999, 1 << 20):
        array = (random.normal(40, 9, count) * (random.random(count) < 0.2)).astype(dtype)
        store["x"] = array
        found = store["x"].statistics()
        assert found["sample_count"] == count
        assert found["quantiles"] == {q: np.quantile(array.astype(np.float64), q) for q in (0.001, 0.5, 0.999)}


def test_quantiles_of_a_sample_are_near_those_of_numpy(store: stridemap.Store) -> None:
    random = np.random.default_rng(4)
    array = np.concatenate([random.normal(size=3_000_000), np.arange(2_000_000) % 7]).astype(np.float32)
    store["x"] = array
    found = store["x"].statistics()
    assert (found["count"], found["sample_count"]) == (5_000_000, 1 << 20)
    for q, quantile in found["quantiles"].items():
        assert np.mean(array < quantile) - 0.002 <= q <= np.mean(array <= quantile) + 0.002


def test_this_process_is_not_leaking_mappings(store: stridemap.Store) -> None:
    store["x"] = np.zeros(1000)
    maps = lambda: Path("/proc/self/maps").read_text().count("x.smap")  # noqa: E731
    for _ in range(50):
        store["x"].torch()
        store.save("m", np.zeros(1000), kind="mutable")
        with store["m"].lock() as array:
            array += 1
        del array
    gc.collect()
    assert maps() < 10
    assert psutil.Process(os.getpid()).num_fds() < 200


def test_array_of_a_lock_is_the_file_of_its_tensor(tmp_path: Path) -> None:
    path, moved = tmp_path / "x.smap", tmp_path / "moved.smap"
    with stridemap.open(path, "x", durable=False) as store:
        store.save("m", np.full(1000, 3.25), kind="mutable")
        with store.transaction() as txn, txn["m"].lock() as array:
            assert (array == 3.25).all()
            array[:] = 7
        sealed = store["s"] = np.ones(4)
        tensor = store["m"]
        assert tensor.numpy()[0] == 7
        path.rename(moved)
        with stridemap.open(path, "x", durable=False) as other:
            other.save("m", np.full(1000, 2.0), kind="mutable")
            other["s"] = np.full(4, 2.0)
            with pytest.raises(stridemap.StateError, match="not the file of this tensor"), tensor.lock():
                pass
            assert store["s"].torch().tolist() == sealed.tolist()
            with pytest.raises(BufferError, match="PyTorch cannot map"):
                store["s"].__dlpack__(copy=False)
            assert other["m"].numpy()[0] == 2


def test_store_at_a_path_that_is_not_utf8_can_be_locked(tmp_path: Path) -> None:
    with stridemap.open(os.fsencode(tmp_path) + b"/\xff.smap", "x", durable=False) as store:
        store.save("m", [1, 2, 3], kind="mutable")
        with store["m"].lock() as array:
            array[0] = 5
        assert store["m"].numpy().tolist() == [5, 2, 3] and store["m"].torch().tolist() == [5, 2, 3]


def test_mapping_of_a_lock_cannot_be_closed_under_its_array(store: stridemap.Store) -> None:
    store.save("m", np.zeros(5000), kind="mutable")
    with store["m"].lock() as array:
        memory = array
        while isinstance(memory, np.ndarray):
            memory = memory.base
        for end in (memory.obj.close, lambda: memory.obj.resize(4096)):
            with pytest.raises(BufferError):
                end()
        array[-1] = 1
        assert type(array.sum()) is np.float64 and type(array + 1) is np.ndarray
        views = [array[index % 100] for index in range(1000)]
        del views
        assert len(array._lock._views) < 10


def test_array_keeps_its_lock(store: stridemap.Store) -> None:
    store.save("m", [1, 2], kind="mutable")
    array = store["m"].lock().__enter__()
    gc.collect()
    with pytest.raises(stridemap.BusyError), store["m"].lock():
        pass
    del array
    gc.collect()
    with store["m"].lock() as array:
        array[0] = 3


def test_shared_lock_of_an_unmapped_store_maps_nothing(store: stridemap.Store) -> None:
    store.save("m", [1, 2], kind="mutable")
    with stridemap.open(store.path, "r", mapped=False) as other, other["m"].lock(exclusive=False) as array:
        assert array.tolist() == [1, 2] and not array.flags.writeable and type(array) is np.ndarray


def test_read_only_store_changes_nothing(store: stridemap.Store) -> None:
    store.save("m", [1, 2], kind="mutable")
    store.save("l", [1, 2], kind="live")
    with stridemap.open(store.path) as other:
        with pytest.raises(stridemap.ReadOnlyError, match="'r'"), other["m"].lock():
            pass
        live = other["l"].live()
        for change in (lambda: live.set(0, 5), lambda: live.fetch_add(0, 5), other.compact):
            with pytest.raises(stridemap.ReadOnlyError, match="'r'"):
                change()
        assert live.get(1) == 2


@pytest.mark.parametrize("kind", ["sealed", "mutable", "live"])
@pytest.mark.parametrize("mapped", [True, False])
def test_tensor_without_dimensions_comes_to_pytorch(kind: str, mapped: bool, store: stridemap.Store) -> None:
    store.save("z", 5.0, kind=kind)
    with stridemap.open(store.path, mapped=mapped) as other:
        assert other["z"].torch() == torch.tensor(5.0, dtype=torch.float64)
        assert torch.from_dlpack(other["z"]).shape == ()
        assert other["z"] and [len(row) for row in store.snapshot()["z"][None, None]] == [1]
        for wrong in (lambda: list(other["z"]), lambda: 5.0 in other["z"]):
            with pytest.raises(TypeError):
                wrong()


def test_array_that_another_thread_writes_is_saved_without_damage(store: stridemap.Store) -> None:
    array, ended = np.zeros(5_000_000, np.int32), threading.Event()

    def write() -> None:
        for value in range(1_000_000):
            array.fill(value)
            if ended.is_set():
                break

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for index in range(5):
            store[str(index)] = array
    finally:
        ended.set()
        writer.join()
    assert store.verify() == []


def test_dtypes_are_named_as_numpy_and_pytorch_name_them(store: stridemap.Store) -> None:
    for index, dtype in enumerate((np.float32, "f4", torch.float32, np.dtype("float32"), "float32")):
        store.create(str(index), (2,), dtype)
        assert store[str(index)].dtype == "float32" and store[str(index)].astype(dtype).dtype == "float32"
    with pytest.raises(TypeError, match="no dtype is named"):
        store.create("x", (2,), object)


def end_in_a_block(path: os.PathLike[str], exclusive: bool) -> None:
    """Run a process that is killed in a block with a lock."""
    code = f"""
import os, signal, stridemap
with stridemap.open({os.fspath(path)!r}, "r+") as store, store["m"].lock({exclusive}) as array:
    if {exclusive}:
        array[0] = 7
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9


def test_process_that_is_killed_in_a_block_leaves_a_mark(store: stridemap.Store) -> None:
    store.save("m", [1, 2], kind="mutable")
    m = store["m"]
    end_in_a_block(store.path, exclusive=False)
    assert m.numpy().tolist() == [1, 2]
    end_in_a_block(store.path, exclusive=True)
    for use in (m.numpy, m.torch, lambda: m[0].item(), m.lock().__enter__, m.lock(False).__enter__, lambda: store.save("y", m)):
        with pytest.raises(stridemap.StateError, match="allow_interrupted") as raised:
            use()
        assert raised.value.kind == "Interrupted"
    assert ["m" in line and "allow_interrupted()" in line for line in store.verify()] == [True]

    assert m.allow_interrupted().numpy().tolist() == [7, 2]
    lock = m.allow_interrupted().lock(exclusive=False)
    with pytest.raises(RuntimeError, match="not held"):
        lock.was_interrupted  # noqa: B018
    with lock:
        assert lock.was_interrupted
    lock = m.allow_interrupted().lock()
    with lock as array:
        assert lock.was_interrupted
        array[0] = 1
    with m.lock(exclusive=False) as array:
        assert array.tolist() == [1, 2]
    assert store.verify() == []


def test_exception_in_a_block_leaves_no_mark(store: stridemap.Store) -> None:
    store.save("m", [1, 2], kind="mutable")
    with pytest.raises(ZeroDivisionError), store["m"].lock() as array:
        array[0] = 7
        raise ZeroDivisionError
    lock = store["m"].allow_interrupted().lock()
    with lock:
        assert not lock.was_interrupted


def test_repair_that_fails_leaves_the_mark(store: stridemap.Store) -> None:
    store.save("m", [1, 2], kind="mutable")
    m = store["m"]
    end_in_a_block(store.path, exclusive=True)
    with pytest.raises(ZeroDivisionError), m.allow_interrupted().lock() as array:
        array[:] = 3
        raise ZeroDivisionError
    with pytest.raises(stridemap.StateError, match="allow_interrupted"):
        m.numpy()
    # The array cannot be made, because the store is not at its path.
    moved = Path(store.path).with_name("moved.smap")
    Path(store.path).rename(moved)
    with pytest.raises(stridemap.StateError, match="not the file of this tensor"), m.allow_interrupted().lock():
        pass
    moved.rename(store.path)
    with pytest.raises(stridemap.StateError, match="allow_interrupted"):
        m.numpy()
    with m.allow_interrupted().lock() as array:
        array[:] = 4
    assert m.numpy().tolist() == [4, 4]


def test_arrays_of_a_lock_become_read_only_before_it_is_released(store: stridemap.Store) -> None:
    store.save("m", [1, 2], kind="mutable")
    freed = []

    class Probe(stridemap._arrays.LockedArray):
        @property
        def flags(self) -> object:
            try:
                with store["m"].lock(exclusive=False):
                    freed.append(True)
            except stridemap.BusyError:
                freed.append(False)
            return super().flags

    with store["m"].lock() as array:
        probe = array.view(Probe)
    assert freed == [False] and not array.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        probe[0] = 7


def test_advice_is_that_of_the_mapping(path: Path) -> None:
    with stridemap.open(path, "x", durable=False) as store:
        store["x"] = np.zeros((1024, 1024), np.float32)
    x = stridemap.open(path)["x"]
    assert not x.numpy().any()
    flags = {"normal": "", "random": "rr", "sequential": "sr"}
    for access in ("random", "normal", "sequential", "normal"):
        x.advise(access)
        entry = Path("/proc/self/smaps").read_text().partition(".smap/storages/")[2]
        found = entry.partition("VmFlags: ")[2].partition("\n")[0].split()
        assert {"rr", "sr"} & set(found) == {flags[access]} - {""}, (access, found)
    with pytest.raises(ValueError, match="access is 'normal', 'random' or 'sequential', not .often."):
        x.advise("often")
