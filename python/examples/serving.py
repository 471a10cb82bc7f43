"""A training and three servers of its model, each in a process. Usage: python serving.py [WIDTH [STEPS]], 64 and 5 unless given.

Nine tenths of the model are frozen, so a checkpoint writes one tenth, and shares the rest with the last one. A server maps
the model, and takes what has changed between two batches. The servers share the memory of the files.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

import stridemap
from stridemap.torch import follow, save_checkpoint

LAYERS, SERVERS = 10, 3


def net(width: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS)))


def train(path: str, width: int, steps: int) -> None:
    """Fine-tune the last layer. Save in the background, and keep the last three checkpoints."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = net(width)
    model[:-1].requires_grad_(False)
    optimizer = torch.optim.AdamW(model[-1].parameters(), 1e-2)
    for step in range(steps):
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
        save_checkpoint(path, f"step{step}", state, wait=False, keep_last=3)
        optimizer.zero_grad()
        (model(torch.randn(16, width)) - 1).square().mean().backward()
        optimizer.step()
    # The interpreter waits for the last save.


def serve(path: str, width: int, last: str, results: Any) -> None:
    """Answer batches until the model of the last checkpoint is served."""
    torch.set_num_threads(1)
    with torch.device("meta"):
        model = net(width)
    batch, taken = torch.ones(8, width), set()
    with stridemap.open(path) as store, torch.inference_mode():
        while not store.tags():
            store.wait_for_change(1)
        follower = follow(path, model, prefix="checkpoint/model")
        while True:
            taken.update(follower.update())
            answers = model(batch)
            saved = {tag.name: tag.generation for tag in store.tags()}
            if last in saved and saved[last] <= follower.generation:
                break
            store.wait_for_change(0.1)
    results.put((answers.sum().item(), sorted(taken)))


def main(width: int = 64, steps: int = 5) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        path, last = f"{folder}/run.smap", f"step{steps - 1}"
        stridemap.open(path, "x").close()
        servers = [context.Process(target=serve, args=(path, width, last, results)) for _ in range(SERVERS)]
        trainer = context.Process(target=train, args=(path, width, steps))
        for process in (*servers, trainer):
            process.start()
        found = [results.get(timeout=120) for _ in servers]
        for process in (*servers, trainer):
            process.join()
        assert len({answer for answer, _ in found}) == 1, "the servers have different models"
        assert all(set(taken) <= {"9.bias", "9.weight"} for _, taken in found), "a frozen tensor was replaced"
        with stridemap.open(path) as store:
            tags = [tag.name for tag in store.tags()]
            assert tags == [f"step{step}" for step in range(steps)][-3:]
            frozen = {store.at(tag)["checkpoint/model.0.weight"].storage_id for tag in tags}
            assert len(frozen) == 1, "the frozen layers were written again"
        size = sum(file.stat().st_size for file in Path(path).rglob("*.bin"))
        whole = sum(tensor.nbytes for tensor in net(width).state_dict().values())
        print(f"{SERVERS} servers took step {steps - 1}; {len(tags)} checkpoints of {whole >> 10} KiB take {size >> 10} KiB")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
