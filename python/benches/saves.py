"""Save a model durably, with stridemap and with safetensors and fsync, in one run. Print seconds, and the ratios.

Usage: python saves.py [MIB [ROUNDS]]: 512 MiB in 64 tensors, and 3 rounds, unless given. The programs take turns. Each saves to
a new path, and to the disk of TMPDIR. Build with `maturin develop --release`.
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
from typing import Any

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch

import stridemap.numpy
import stridemap.torch

TENSORS = 64


def synced(save: Callable[[Any, str], None]) -> Callable[[Any, str], None]:
    """Return a function that saves a file, and returns when it would survive a power cut."""

    def act(tensors: Any, path: str) -> None:
        save(tensors, path)
        for name in (path, os.path.dirname(path)):
            opened = os.open(name, os.O_RDONLY)
            os.fsync(opened)
            os.close(opened)

    return act


def main(mib: int = 512, rounds: int = 3) -> None:
    arrays = {f"layers.{n}.weight": np.random.default_rng(n).random((mib * 4096 // TENSORS, 64), np.float32) for n in range(TENSORS)}
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    cases: dict[str, tuple[Callable[[Any, str], None], Any]] = {
        "numpy, stridemap": (stridemap.numpy.save_file, arrays),
        "numpy, safetensors": (synced(safetensors.numpy.save_file), arrays),
        "torch, stridemap": (stridemap.torch.save_file, tensors),
        "torch, safetensors": (synced(safetensors.torch.save_file), tensors),
    }
    times: dict[str, list[float]] = {what: [] for what in cases}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for what, (save, saved) in cases.items():
                path = Path(folder) / f"{number} {what}"
                os.sync()
                start = time.perf_counter()
                save(saved, str(path))
                times[what].append(time.perf_counter() - start)
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    for kind in ("numpy", "torch"):
        own, other = times[f"{kind}, stridemap"], times[f"{kind}, safetensors"]
        ratios = [a / b for a, b in zip(own, other, strict=True)]
        print(f"{kind}: stridemap {[round(t, 2) for t in own]} s, safetensors {[round(t, 2) for t in other]} s")
        print(f"{kind}: ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
