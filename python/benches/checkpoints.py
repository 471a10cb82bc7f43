"""Save a checkpoint at each step of a fine-tuning, with stridemap and others, in one run.

Usage: python checkpoints.py [STEPS [WIDTH]]: 200 steps and a model of 50 MB (layers of 1,120 x 1,120) unless given. The
model is loaded by `load_model`; a tenth of it is trained, with Adam. Every checkpoint is loaded again and compared bit for
bit. The times are medians. Stridemap syncs what it writes, except where it says otherwise, and so does DCP; the others do
not. All but stridemap write the same files at each step.
"""

from __future__ import annotations

import hashlib
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import stridemap
from stridemap.torch import load_checkpoint, load_model, save_checkpoint, save_model

#: The number of layers of the model, of which the last is trained.
LAYERS = 10

#: The number of steps at which the others save, too.
OTHERS_STEPS = 20


def flat(value: Any, key_path: str = "") -> dict[str, torch.Tensor]:
    """Return the tensors of a state by their key paths."""
    if isinstance(value, torch.Tensor):
        return {key_path: value.contiguous()}
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {name: tensor for key, part in parts for name, tensor in flat(part, f"{key_path}.{key}").items()}


def digest(state: Any) -> str:
    """Return a digest of the names and the bytes of all tensors of a state."""
    found = hashlib.sha256()
    for name, tensor in flat(state).items():
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def disk_usage(path: Path) -> int:
    return int(subprocess.check_output(["du", "-sb", path], text=True).split()[0])


def main(steps: int = 200, width: int = 1120) -> None:
    torch.manual_seed(0)
    times: dict[str, list[float]] = {}

    def timed(program: str, act: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = act()
        times.setdefault(program, []).append(time.perf_counter() - began)
        return result

    def net() -> nn.Sequential:
        return nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS)))

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(net(), folder / "base.smap")
        model = net()
        load_model(model, folder / "base.smap", assign=True)
        model[:-1].requires_grad_(False)
        optimizer = torch.optim.Adam(model[-1].parameters(), 1e-3)
        digests, sizes = [], []
        with stridemap.open(folder / "run.smap", "x") as store, stridemap.open(
            folder / "unsynced.smap", "x", durable=False
        ) as unsynced:
            for step in range(steps):
                optimizer.zero_grad()
                model(torch.randn(4, width)).square().mean().backward()
                optimizer.step()
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                timed("stridemap", lambda: save_checkpoint(store, f"step{step}", state))
                sizes.append(disk_usage(folder / "run.smap"))
                digests.append(digest(state))
                if step < OTHERS_STEPS:
                    tensors = flat(state)
                    timed("stridemap, durable=False", lambda: save_checkpoint(unsynced, f"step{step}", state))
                    timed("DCP", lambda: dcp.save({"state": tensors}, checkpoint_id=folder / "dcp", no_dist=True))
                    timed("torch.save", lambda: torch.save(state, folder / "x.pt"))
                    timed("safetensors", lambda: safetensors.torch.save_file(tensors, folder / "x.safetensors"))
        with stridemap.open(folder / "run.smap") as store:
            for step, expected in enumerate(digests):
                loaded = timed("stridemap, load", lambda: load_checkpoint(store, f"step{step}"))
                assert loaded["step"] == step and digest(loaded) == expected, f"step {step}"
            others = {
                "torch.load(mmap=True)": lambda: torch.load(folder / "x.pt", mmap=True),
                "safetensors, load": lambda: safetensors.torch.load_file(folder / "x.safetensors"),
            }
            for program, load in others.items():
                for _ in range(min(steps, OTHERS_STEPS)):
                    timed(program, load)
        whole = sum(tensor.nbytes for tensor in model.state_dict().values())
        changed = sum(parameter.nbytes for parameter in model[-1].parameters())
        changed += sum(tensor.nbytes for tensor in flat(optimizer.state_dict()).values())
        growths = [after - before for before, after in zip(sizes, sizes[1:], strict=False)]
        print(f"{steps} checkpoints of a model of {whole / 1e6:.1f} MB, loaded again and equal")
        print(f"changed tensors and their optimizer state: {changed / 1e6:.3f} MB a step")
        print(f"bytes a step: median {statistics.median(growths) / 1e6:.3f} MB, most {max(growths) / 1e6:.3f} MB")
        print(f"ratio: mean {statistics.mean(growths) / changed:.4f}, most {max(growths) / changed:.4f}")
        for program, durations in times.items():
            print(f"{program:<26}{statistics.median(durations) * 1e3:>8.1f} ms")
        for program, name in ("torch.save", "x.pt"), ("safetensors", "x.safetensors"), ("DCP", "dcp"):
            print(f"{program:<26}{disk_usage(folder / name) / 1e6:>8.1f} MB a step")
        assert max(growths) <= 1.1 * changed


if __name__ == "__main__":
    # DCP warns that it saves without other ranks.
    warnings.simplefilter("ignore")
    main(*map(int, sys.argv[1:]))
