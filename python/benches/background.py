"""How long a save in the background blocks a training, beside a plain copy of the model in memory, in one run.

Usage: python background.py [MB [SAVES]]: a model of 500 MB and 10 saves unless given. A tenth of the model changes between
two saves. The copy is `{name: tensor.clone()}`. The two are measured in turn, and the next save begins when the last has
ended. The times are medians; the first of each is left out.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time

import torch

import stridemap
from stridemap.torch import load_checkpoint, save_checkpoint

LAYERS = 10


def main(mb: int = 500, saves: int = 10) -> None:
    state = {f"{layer}.weight": torch.randn(mb * 1_000_000 // 4 // LAYERS // 1000, 1000) for layer in range(LAYERS)}
    times: dict[str, list[float]] = {"clone": [], "blocked": [], "saved": []}
    with tempfile.TemporaryDirectory() as folder, stridemap.open(f"{folder}/run.smap", "x") as store:
        for save in range(saves + 1):
            state[f"{save % LAYERS}.weight"] += 1
            began = time.perf_counter()
            copies = {name: tensor.clone() for name, tensor in state.items()}
            times["clone"].append(time.perf_counter() - began)
            del copies
            began = time.perf_counter()
            saving = save_checkpoint(store, f"step{save}", state, wait=False, keep_last=2)
            times["blocked"].append(time.perf_counter() - began)
            saving.wait()
            times["saved"].append(time.perf_counter() - began)
        loaded = load_checkpoint(store)
        assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())
    medians = {name: statistics.median(found[1:]) for name, found in times.items()}
    print(f"a model of {sum(tensor.nbytes for tensor in state.values()) / 1e6:.0f} MB, {saves} saves")
    for name, seconds in medians.items():
        print(f"{name:<10}{seconds * 1e3:>9.1f} ms{seconds / medians['clone']:>8.2f} of a clone")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
