"""Save an array of Dask, with stridemap and with zarr without compression, in one run.

Usage: python dask_store.py [MIB [ROUNDS]]: 2,048 MiB and three rounds unless given. The array is of float32, in blocks of 16 MiB
along the first dimension, and in square blocks; threads of one process compute the blocks. Both sync what they write. The bytes
are those that this process caused to be written, as Linux counts them.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import dask
import dask.array as da
import numpy as np

import stridemap
from stridemap.dask import to_store


def written_bytes() -> int:
    """Return how many bytes this process caused to be written to disks."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["write_bytes"])


def by_stridemap(array: da.Array, directory: str) -> None:
    with stridemap.open(f"{directory}/x.smap", "x") as store:
        to_store(array, store, "x")


def by_zarr(array: da.Array, directory: str) -> None:
    da.to_zarr(array, f"{directory}/x.zarr", compressors=None)
    for folder, _, files in os.walk(f"{directory}/x.zarr"):
        for name in files:
            with open(f"{folder}/{name}", "rb") as file:
                os.fsync(file.fileno())


def measure(save: Callable[[da.Array, str], None], array: da.Array) -> tuple[float, int]:
    """Return the seconds and the bytes that a save takes."""
    with tempfile.TemporaryDirectory(dir=".") as directory:
        before, began = written_bytes(), time.perf_counter()
        save(array, directory)
        return time.perf_counter() - began, written_bytes() - before


def main(mib: int, rounds: int) -> None:
    side = 1 << 14
    rows = mib * (1 << 20) // 4 // side
    for shape in [((16 << 20) // 4 // side, side), (2048, 2048)]:
        array = da.from_array(np.arange(rows * side, dtype=np.float32).reshape(rows, side), chunks=shape)
        array = array.map_blocks(np.add, np.float32(1), dtype=np.float32)
        found: dict[str, list[tuple[float, int]]] = {"stridemap": [], "zarr": []}
        for round_ in range(rounds):
            savers = [("stridemap", by_stridemap), ("zarr", by_zarr)]
            for name, save in savers if round_ % 2 == 0 else reversed(savers):
                found[name].append(measure(save, array))
        medians = {name: [statistics.median(values) for values in zip(*all_, strict=True)] for name, all_ in found.items()}
        for name, (seconds, bytes_) in medians.items():
            times, ratio = seconds / medians["zarr"][0], bytes_ / array.nbytes
            print(f"blocks of {shape}  {name:9}  {seconds:6.2f} s  {times:.2f}x of zarr  {ratio:.3f}x of the bytes written")


if __name__ == "__main__":
    with dask.config.set(scheduler="threads"):
        main(*(int(argument) for argument in [*sys.argv[1:], *["2048", "3"][len(sys.argv) - 1 :]]))
