"""Fine-tuning with a checkpoint at each step. Usage: python finetune.py [WIDTH [STEPS]], 2048 and 20 unless given.

The body of the model is frozen, so a checkpoint writes the head and its optimizer, and headers for the rest.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import stridemap
from stridemap.torch import load_checkpoint, save_checkpoint


def main(width: int = 2048, steps: int = 20) -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()).requires_grad_(False)
    model = nn.Sequential(body, nn.Linear(width, 10))
    optimizer = torch.optim.Adam(model[1].parameters(), 1e-3)
    with tempfile.TemporaryDirectory() as folder, stridemap.open(f"{folder}/run.smap", "x") as store:
        for step in range(steps):
            inputs, targets = torch.randn(32, width), torch.randint(0, 10, (32,))
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            save_checkpoint(store, f"step{step}", state)
        size = sum(file.stat().st_size for file in Path(folder).rglob("*.bin"))
        whole = sum(tensor.nbytes for tensor in model.state_dict().values())
        assert (load_checkpoint(store)["step"], load_checkpoint(store, "step0")["step"]) == (steps - 1, 0)
        print(f"{steps} checkpoints of {whole >> 10} KiB take {size >> 10} KiB")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
