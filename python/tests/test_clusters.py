"""Tensors travel as headers, to processes, to Dask and to Ray, on engines that are started for real."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import psutil
import pytest
import ray
from dask.distributed import Client, LocalCluster

import stridemap
import stridemap.ray
from stridemap.dask import from_store, to_store

MIB = int(os.environ.get("STRIDEMAP_TEST_LARGE_MIB", "64"))
EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with LocalCluster(n_workers=4, threads_per_worker=1, memory_limit=None, dashboard_address=None) as cluster:
        with Client(cluster) as client:
            yield client


@pytest.fixture(scope="module")
def rays() -> Iterator[None]:
    # The functions of this file are tasks.
    environment = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False, runtime_env=environment)
    yield
    ray.shutdown()


@pytest.fixture
def large(path: Path) -> tuple[Path, np.ndarray]:
    array = np.random.default_rng(1).random((MIB, 1 << 18), np.float32)
    with stridemap.open(path, "x", durable=False) as store:
        store["x"] = array
    return path, array


def private_bytes() -> int:
    """Return the memory that is not of a file, in bytes."""
    info = psutil.Process().memory_info()
    return info.rss - info.shared


def unfinished(store: str | Path) -> list[Path]:
    """Return the unfinished files of a store."""
    return list(Path(store).glob("storages/.stage-*"))


def test_file_is_not_an_array_of_dask(path: Path) -> None:
    np.save(path.with_name("x.npy"), np.ones(3))
    with pytest.raises(ValueError, match="from_store: .*x.npy is a npy file, not a store; import_file makes a store of it"):
        from_store(path.with_name("x.npy"), "x")


def test_mean_by_dask_takes_no_memory_for_the_blocks(client: Client, large: tuple[Path, np.ndarray]) -> None:
    path, array = large
    x = from_store(path, "x", chunks=(max(MIB // 16, 1), -1))
    assert len(pickle.dumps(x)) < 100_000
    before = client.run(private_bytes)
    mean = x.mean(dtype=np.float64).compute()
    after = client.run(private_bytes)
    assert mean == pytest.approx(array.mean(dtype=np.float64), rel=1e-12)
    chunk = array.nbytes // 16
    grown = {worker: after[worker] - before[worker] for worker in after}
    # Sums in float64 take a buffer of NumPy; Python itself grows too.
    assert max(grown.values()) < 2 * chunk + (64 << 20), grown


def test_array_of_dask_becomes_one_tensor_in_one_commit(client: Client, path: Path) -> None:
    array = np.arange(100 * 37, dtype=np.float64).reshape(100, 37)
    with stridemap.open(path, "x", durable=False) as store:
        before = store.generation
        to_store(da.from_array(array, chunks=(7, 11)), store, "x")
        assert store.generation == before + 1
        assert np.array_equal(store["x"].numpy(), array) and store.verify() == []
        to_store(da.from_array(array, chunks=40).T[::2], path, "t", compute=False).compute()
        store.refresh()
        assert np.array_equal(store["t"].numpy(), array.T[::2])
        to_store(da.zeros((0, 3)), store, "empty")
        assert store["empty"].shape == (0, 3)
        assert np.array_equal(from_store(store, "t", chunks=5)[3:, ::-1].compute(), array.T[::2][3:, ::-1])
    assert unfinished(path) == []


@pytest.mark.parametrize("compute", [True, False])
def test_blocks_are_written_to_the_file_that_becomes_the_storage(compute: bool, store: stridemap.Store) -> None:
    written: set[int] = set()

    def note(block: np.ndarray) -> np.ndarray:
        written.update(file.stat().st_ino for file in unfinished(store.path))
        return block

    array = da.ones((40, 6), chunks=(10, 3)).map_blocks(note, dtype=float, meta=np.empty((0, 0)))
    with dask.config.set(scheduler="threads"):
        saved = to_store(array, store, "x", compute=compute)
        if not compute:
            saved.compute()
    assert store["x"].numpy().tolist() == np.ones((40, 6)).tolist()
    assert {file.stat().st_ino for file in Path(store.path).glob("storages/*.bin")} == written and len(written) == 1
    assert unfinished(store.path) == [] and store.verify() == []


def test_delayed_array_that_is_not_computed_leaves_nothing(store: stridemap.Store) -> None:
    saved = to_store(da.ones(5), store, "x", compute=False)
    assert len(unfinished(store.path)) == 1
    del saved
    gc.collect()
    assert unfinished(store.path) == [] and list(store) == []


def fail_late(block: np.ndarray, block_info: Any = None) -> np.ndarray:
    if block_info[0]["chunk-location"] == (3,):
        raise ValueError("a block of no use")
    return block


def test_failed_block_leaves_the_store_as_it_was(client: Client, store: stridemap.Store) -> None:
    store["x"] = 1
    broken = da.zeros(40, chunks=10).map_blocks(fail_late, dtype=float, meta=np.empty(0))
    with pytest.raises(ValueError, match="no use"):
        to_store(broken, store, "x")
    assert store["x"].item() == 1 and list(store) == ["x"]
    assert unfinished(store.path) == []


KILLED = {
    "dask": """
import sys, time, dask, dask.array as da, numpy as np
from stridemap.dask import to_store
def slow(block):
    print("begun", flush=True)
    time.sleep(60)
    return block
with dask.config.set(scheduler="threads"):
    to_store(da.ones(10, chunks=5).map_blocks(slow, dtype=float, meta=np.empty(0)), sys.argv[1], "x")
""",
    "ray": """
import sys, time, ray, numpy as np
from stridemap.ray import to_store
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
@ray.remote
def slow():
    time.sleep(60)
def blocks():
    yield np.s_[:5], slow.remote()
    yield np.s_[5:], slow.remote()
    print("begun", flush=True)
to_store(blocks(), sys.argv[1], "x", (10,), "float64")
""",
}


@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_killed_writer_leaves_the_store_as_it_was(engine: str, path: Path) -> None:
    with stridemap.open(path, "x", durable=False) as store:
        store["x"] = 1
        with subprocess.Popen([sys.executable, "-c", KILLED[engine], path], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None and writer.stdout.readline().startswith(b"begun")
            writer.send_signal(signal.SIGKILL)
        assert len(unfinished(path)) == 1
        store.refresh()
        assert store["x"].item() == 1 and store.verify() == []
        to_store(da.ones(4), store, "x")
        assert store["x"].shape == (4,) and unfinished(path) == []


@ray.remote
def total(tensor: stridemap.Tensor) -> tuple[float, int]:
    """Return the sum, and by how much the memory of the process grew that is not of a file."""
    before = private_bytes()
    return float(tensor.numpy().sum(dtype=np.float64)), private_bytes() - before


@ray.remote
class Reader:
    def __init__(self, snapshot: stridemap.SnapshotView) -> None:
        self.snapshot = snapshot

    def names(self) -> list[str]:
        return list(self.snapshot)


@ray.remote
def squares(start: int) -> np.ndarray:
    if start < 0:
        raise ValueError("negative")
    return np.arange(start, start + 10) ** 2


def test_ray_gets_headers_and_writes_blocks(rays: None, large: tuple[Path, np.ndarray]) -> None:
    path, array = large
    with stridemap.open(path) as store:
        rows = max(MIB // 8, 1)
        parts = ray.get([total.remote(store["x"][start : start + rows]) for start in range(0, MIB, rows)])
        assert sum(part for part, _ in parts) == pytest.approx(array.sum(dtype=np.float64))
        assert max(grown for _, grown in parts) < 2 * array.nbytes // 8 + (64 << 20)
        assert ray.get(Reader.remote(store.snapshot()).names.remote()) == ["x"]
    blocks = [(np.s_[start : start + 10], squares.remote(start)) for start in range(0, 100, 10)]
    stridemap.ray.to_store(blocks, path, "squares", (100,), "int64")
    with stridemap.open(path) as store:
        assert np.array_equal(store["squares"].numpy(), np.arange(100) ** 2)
        with pytest.raises(ValueError, match="negative"):
            stridemap.ray.to_store([(np.s_[:10], squares.remote(-1))], path, "x", (10,), "int64")
        store.refresh()
        assert store["x"].shape == array.shape and unfinished(path) == []


#: Blocks of 10 elements, and what is wrong with them as one tensor of this dtype.
WRONG_BLOCKS = [
    ("int64", np.ones(10) / 2, "float64 cannot be converted to int64"),
    ("float64", np.ones(10, complex), "complex128 cannot be converted to float64"),
    ("float32", np.full(10, 0.1), "float64 cannot be converted to float32"),
    ("int32", np.full(10, 1 << 40), "int64 cannot be converted to int32"),
    ("uint8", np.full(10, -1, np.int8), "int8 cannot be converted to uint8"),
    ("bool", np.full(10, np.nan), "float64 cannot be converted to bool"),
    ("bfloat16", np.ones(10, np.float32), "float32 cannot be converted to bfloat16"),
    ("float64", np.ma.masked_array(np.ones(10), True), "the mask of a masked array"),
    ("float64", np.array([None] * 10), "dtype object cannot be saved"),
    ("float64", np.zeros(10, [("a", "f8")]), "save each field"),
    ("float64", np.ones(1), r"the block has the shape \(1,\), and its position \(10,\)"),
    ("float64", np.ones((10, 1)), r"the block has the shape \(10, 1\), and its position \(10,\)"),
]


@pytest.mark.parametrize(("dtype", "block", "said"), WRONG_BLOCKS)
def test_block_of_ray_that_does_not_fit_is_an_error(
    rays: None, dtype: str, block: np.ndarray, said: str, store: stridemap.Store
) -> None:
    right = np.zeros(10, stridemap._arrays.numpy_dtype(dtype))
    with pytest.raises((TypeError, ValueError), match=said):
        stridemap.ray.to_store([(np.s_[:10], right), (np.s_[10:], block)], store, "x", (20,), dtype)
    assert list(store) == [] and unfinished(store.path) == []


@pytest.mark.parametrize(("dtype", "block", "said"), WRONG_BLOCKS)
def test_block_of_dask_that_does_not_fit_is_an_error(
    dtype: str, block: np.ndarray, said: str, store: stridemap.Store
) -> None:
    # What a block is declared to be, and what it is, can differ.
    right = stridemap._arrays.numpy_dtype(dtype)
    array = da.zeros(20, chunks=10, dtype=right).map_blocks(lambda _: block, dtype=right, meta=np.empty(0, right))
    with dask.config.set(scheduler="threads"), pytest.raises((TypeError, ValueError), match=said):
        to_store(array, store, "x")
    assert list(store) == [] and unfinished(store.path) == []


def test_masked_array_of_dask_is_an_error(store: stridemap.Store) -> None:
    array = da.from_array(np.ma.masked_array(np.arange(20.0), np.arange(20) == 15), chunks=10)
    with dask.config.set(scheduler="threads"):
        with pytest.raises(ValueError, match="mask"):
            to_store(array, store, "x")
        to_store(da.ma.filled(array, -1), store, "x")
    assert store["x"].numpy()[[0, 15, 19]].tolist() == [0, -1, 19]


@pytest.mark.parametrize(
    ("positions", "shape", "said"),
    [
        ([np.s_[:10], np.s_[20:]], (30,), r"no blocks have the element \(10,\)"),
        ([np.s_[:20]], (30,), r"no blocks have the element \(20,\)"),
        ([], (30,), r"no blocks have the element \(0,\)"),
        ([np.s_[::2]], (30,), r"no blocks have the element \(1,\)"),
        ([np.s_[:2, :], np.s_[2:, :4]], (5, 6), r"no blocks have the element \(2, 4\)"),
        ([np.s_[0], np.s_[2:]], (5, 6), r"no blocks have the element \(1, 0\)"),
        ([np.s_[:20], np.s_[10:]], (30,), r"2 blocks have the element \(10,\)"),
        ([np.s_[:10], np.s_[:10], np.s_[20:]], (30,), r"2 blocks have the element \(0,\)"),
        ([np.s_[...]] * 3, (30,), "blocks overlap"),
        ([np.s_[:10], np.s_[30:40]], (30,), r"no blocks have the element \(10,\)"),
        ([np.s_[:, None]], (30,), "at slices and integers"),
        ([np.arange(30)], (30,), "at slices and integers"),
        ([30], (30,), "out of the bounds"),
    ],
)
def test_missing_and_overlapping_blocks_of_ray_are_an_error(
    rays: None, positions: list[Any], shape: tuple[int, ...], said: str, store: stridemap.Store
) -> None:
    def blocks() -> Iterator[tuple[Any, np.ndarray]]:
        whole = np.ones(shape)
        for position in positions:
            yield position, whole[position] if not isinstance(position, int) else np.ones(shape[1:])

    with pytest.raises((ValueError, IndexError), match=said):
        stridemap.ray.to_store(blocks(), store, "x", shape, "float64")
    assert list(store) == [] and unfinished(store.path) == []


def test_blocks_of_ray_that_fit_are_converted(rays: None, store: stridemap.Store) -> None:
    whole = np.arange(35).reshape(5, 7)
    positions: list[tuple[Any, Any]] = [(np.s_[::2, :3], np.int8), (np.s_[1::2, 2::-1], ">i2"), (np.s_[..., 3:], np.int64)]
    blocks = [(position, whole[position].astype(dtype)) for position, dtype in positions]
    stridemap.ray.to_store(blocks, store, "x", (5, 7), "int64")
    assert store["x"].dtype == "int64" and np.array_equal(store["x"].numpy(), whole)
    stridemap.ray.to_store([(np.s_[:0], np.ones((0, 3)))], store, "empty", (0, 3), "float64")
    assert store["empty"].shape == (0, 3)


def share(pickled: bytes, results: Any, end: Any) -> None:
    tensor = pickle.loads(pickled)
    found = int(tensor.numpy().view(np.uint8).max())
    results.put(found)
    end.wait(120)


def proportional_bytes(process: int) -> int:
    """Return a process's share of the mapped storages: pages that four processes map count a quarter for each."""
    maps = Path(f"/proc/{process}/smaps").read_text()
    return sum(int(kib) << 10 for kib in re.findall(r"\.bin\n(?:.*\n)*?Pss: +(\d+) kB", maps))


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_processes_share_one_copy_of_the_memory(method: Any, large: tuple[Path, np.ndarray]) -> None:
    path, array = large
    context = multiprocessing.get_context(method)
    with stridemap.open(path) as store:
        pickled = pickle.dumps(store["x"])
    assert len(pickled) < 500
    results, end = context.Queue(), context.Event()
    processes = [context.Process(target=share, args=(pickled, results, end)) for _ in range(4)]
    for process in processes:
        process.start()
    assert {results.get(timeout=120) for _ in processes} == {int(array.view(np.uint8).max())}
    together = sum(proportional_bytes(process.pid or 0) for process in processes)
    end.set()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert 0.5 * array.nbytes < together < 1.1 * array.nbytes, f"{together >> 20} MiB for {MIB} MiB"


@pytest.mark.parametrize(
    ("example", "size", "said"),
    [
        ("dataloader.py", ["500"], "500 rows in 2 batches, 0 wrong"),
        ("dask_mean.py", ["32"], "32 MiB, mean 0.50"),
        ("finetune.py", ["64", "5"], "5 checkpoints of "),
        ("serving.py", ["64", "5"], "3 servers took step 4; 3 checkpoints of 162 KiB take "),
    ],
)
def test_examples_run(example: str, size: list[str], said: str) -> None:
    began = time.monotonic()
    run = subprocess.run([sys.executable, EXAMPLES / example, *size], capture_output=True, text=True)
    assert run.returncode == 0 and said in run.stdout, f"{time.monotonic() - began}: {run.stdout}{run.stderr[-3000:]}"


def test_block_without_its_file_says_why(store: stridemap.Store) -> None:
    file = stridemap._blocks.BlockFile(store, (4,), "float64")
    sent = pickle.loads(pickle.dumps(file))
    del file
    gc.collect()
    with pytest.raises(OSError, match=r"write the block at \(0,\).*does not exist.*keep the result of to_store"):
        sent[:2] = np.ones(2)
    with pytest.raises(OSError, match="save 'x'.*compute it once"), store.transaction() as txn:
        sent.save(txn, "x")
