"""Save many small tensors with stridemap, and beside it with torch.save and safetensors, in one run. Print seconds and ratios.

Usage: python small_tensors.py [COUNT [ROUNDS]]: 10,000 tensors of 64 elements, and 10 rounds, unless given. The programs take
turns, and another begins each round. Each saves to a new path, on the disk of TMPDIR. torch.save and safetensors do not wait
for the disk, so neither does stridemap; beside them is a save with stridemap that does. Build with `maturin develop --release`.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch

import stridemap
import stridemap.torch

Tensors = dict[str, torch.Tensor]


def unsynced(tensors: Tensors, path: str) -> None:
    with stridemap.open(path, "a", durable=False) as store:
        stridemap.torch.save_file(tensors, store)


def main(count: int = 10_000, rounds: int = 10) -> None:
    tensors = {f"layers.{n}.weight": torch.full((64,), float(n)) for n in range(count)}
    programs: dict[str, Callable[[Tensors, str], object]] = {
        "stridemap": unsynced,
        "torch.save": torch.save,
        "safetensors": safetensors.torch.save_file,
        "stridemap, synced": stridemap.torch.save_file,
    }
    times: dict[str, list[float]] = {what: [] for what in programs}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            order = list(programs)
            first = number % len(order)
            for what in order[first:] + order[:first]:
                path = Path(folder) / f"{number} {what}"
                os.sync()
                start = time.perf_counter()
                programs[what](tensors, str(path))
                times[what].append(time.perf_counter() - start)
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    for what, seconds in times.items():
        ratios = [own / other for own, other in zip(seconds, times["torch.save"], strict=True)]
        print(f"{what}: {statistics.median(seconds):.3f} s, {statistics.median(ratios):.2f} x torch.save", end="")
        print(f" ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
