"""Time what a program does with each tensor: look it up, and make an array of it. Print microseconds, and h5py's beside.

Usage: python lookups.py [COUNT]: 50,000 names unless given. The times are the lowest of several rounds, each of many calls.
Build with `maturin develop --release`.
"""

from __future__ import annotations

import sys
import tempfile
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

import stridemap

ROUNDS = 7


def missing(names: Any) -> None:
    try:
        names["layers.wieght"]
    except KeyError:
        return
    raise AssertionError("the name is missing")


def microseconds(act: Callable[[], Any]) -> float:
    timer = timeit.Timer(act)
    count, _ = timer.autorange(lambda *_: None)
    count = max(1, count // 10)
    return min(timer.repeat(ROUNDS, count)) / count * 1e6


def main(count: int = 50_000) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = {f"layers.{index}.weight": np.full(16, index, np.float32) for index in range(count)}
        with stridemap.open(folder / "x.smap", "x") as store:
            store.update(rows)
        with h5py.File(folder / "x.h5", "w") as file:
            for key, array in rows.items():
                file[key] = array
        store, file = stridemap.open(folder / "x.smap"), h5py.File(folder / "x.h5")
        wanted = f"layers.{count // 2}.weight"
        ours, theirs = store[wanted], file[wanted]
        first = ours.torch()
        assert torch.equal(first, torch.from_numpy(theirs[()]))
        cases: dict[str, tuple[Callable[[], Any], Callable[[], Any] | None]] = {
            "store[name]": (lambda: store[wanted], lambda: file[wanted]),
            "a missing name": (lambda: missing(store), lambda: missing(file)),
            "len(store)": (lambda: len(store), lambda: len(file)),
            "x.numpy()": (ours.numpy, lambda: theirs[()]),
            "x.torch(), kept": (ours.torch, lambda: torch.from_numpy(theirs[()])),
            "x.dtype": (lambda: ours.dtype, lambda: theirs.dtype),
            "x + 1": (lambda: ours + 1, lambda: theirs[()] + 1),
        }
        print(f"{count} names, us         stridemap      h5py")
        for what, (own, other) in cases.items():
            assert other is not None
            print(f"{what:<22}{microseconds(own):>12.2f}{microseconds(other):>10.2f}")
        del first  # The mapping ends with the last tensor of PyTorch.
        print(f"{'x.torch(), not kept':<22}{microseconds(ours.torch):>12.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
