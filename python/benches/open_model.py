"""Open a model of many tensors and touch every page of it, with stridemap and others, in one run.

Usage: python open_model.py [COUNT [KIB]]: 1,000 tensors of 100 KiB unless given. The files are in the page cache. Each
program opens its file, makes an array of each tensor, and adds one element of each page. The times are medians of the
rounds.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import safetensors
import torch
import zarr
from safetensors.numpy import save_file

import stridemap
from stridemap.torch import load_file

ROUNDS = 11


def touched(array: np.ndarray | torch.Tensor) -> float:
    """Return the sum of one element of each page."""
    return float(array[::1024].sum())



def write(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    with stridemap.open(folder / "x.smap", "x") as store, store.transaction() as txn:
        txn.update(tensors)
    save_file(tensors, folder / "x.safetensors")
    torch.save({name: torch.from_numpy(array) for name, array in tensors.items()}, folder / "x.pt")
    with h5py.File(folder / "x.h5", "w") as file:
        for name, array in tensors.items():
            file[name] = array
    group = zarr.open_group(folder / "x.zarr", mode="w")
    for name, array in tensors.items():
        group.create_array(name, data=array, chunks=array.shape, compressors=None)


def programs(folder: Path) -> dict[str, Callable[[], float]]:
    def with_safetensors(framework: str) -> float:
        with safetensors.safe_open(folder / "x.safetensors", framework) as file:
            return sum(touched(file.get_tensor(name)) for name in file.keys())

    def with_torch() -> float:
        return sum(touched(x) for x in torch.load(folder / "x.pt", mmap=True, weights_only=True).values())

    def with_h5py() -> float:
        with h5py.File(folder / "x.h5") as file:
            return sum(touched(file[name][()]) for name in file)

    def with_zarr() -> float:
        group = zarr.open_group(folder / "x.zarr", mode="r")
        return sum(touched(array[...]) for _, array in group.arrays())

    return {
        "stridemap, NumPy": lambda: sum(touched(x.numpy()) for x in stridemap.open(folder / "x.smap").values()),
        "stridemap, PyTorch": lambda: sum(touched(x) for x in load_file(folder / "x.smap").values()),
        "safetensors, NumPy": lambda: with_safetensors("np"),
        "safetensors, PyTorch": lambda: with_safetensors("pt"),
        "torch.load(mmap=True)": with_torch,
        "h5py": with_h5py,
        "zarr": with_zarr,
    }


def main(count: int = 1000, kib: int = 100) -> None:
    rows = np.random.default_rng(0).random((count, kib * 256), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), {f"layers.{index}.weight": row for index, row in enumerate(rows)})
        times: dict[str, list[float]] = {}
        for round_ in range(ROUNDS + 1):
            for name, program in programs(Path(folder)).items():
                began = time.perf_counter()
                total = program()
                if round_:
                    times.setdefault(name, []).append(time.perf_counter() - began)
                assert abs(total / rows[:, ::1024].sum(dtype=np.float64) - 1) < 1e-3, name
    first = statistics.median(times["stridemap, NumPy"])
    print(f"{count} tensors of {kib} KiB      median   ratio")
    for name, durations in times.items():
        print(f"{name:<24}{statistics.median(durations) * 1e3:>8.1f} ms {statistics.median(durations) / first:>6.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
