"""Training with FSDP on 4 ranks, which is killed and goes on with 2.

Usage: python fsdp.py [WIDTH [STEPS]], 256 and 20 unless given. The ranks are processes of this machine, with gloo. Every 5 steps, they save a checkpoint together: each writes its shards
into the whole tensors of one store. So the 2 ranks load what 4 have saved, and so could a program without PyTorch.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import stridemap
from stridemap.torch.distributed import StoreReader, StoreWriter

#: How many steps there are between two checkpoints.
EVERY = 5


def train(path: str, width: int, steps: int, killed_at: int | None) -> None:
    """Train up to a number of steps, from the newest checkpoint if there is one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    step = 0
    if os.path.exists(path):
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state: dict[str, Any] = {"model": model_state, "optimizer": optimizer_state, "step": 0}
        dcp.load(state, storage_reader=StoreReader(path))
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        step = state["step"]
        if dist.get_rank() == 0:
            print(f"{dist.get_world_size()} ranks go on after step {step}", flush=True)
    loss = torch.tensor(torch.nan)
    for step in range(step + 1, steps + 1):
        inputs = torch.randn(64, width, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        if step == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if step % EVERY == 0:
            model_state, optimizer_state = get_state_dict(model, optimizer)
            state = {"model": model_state, "optimizer": optimizer_state, "step": step}
            dcp.save(state, storage_writer=StoreWriter(path), checkpoint_id=f"step{step}")
    if dist.get_rank() == 0:
        print(f"step {step}, {dist.get_world_size()} ranks: loss {loss.item():.3f}", flush=True)


def run(rank: int, count: int, folder: str, *arguments: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous{count}", rank=rank, world_size=count)
    train(*arguments)
    dist.destroy_process_group()


def main(width: int = 256, steps: int = 20) -> None:
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/run.smap"
        for count, killed_at in ((4, steps - 2), (2, None)):
            arguments = (count, folder, path, width, steps, killed_at)
            ranks = [fork.Process(target=run, args=(rank, *arguments)) for rank in range(count)]
            for process in ranks:
                process.start()
            for process in ranks:
                process.join()
            with stridemap.open(path) as store:
                print(f"checkpoints: {', '.join(tag.name for tag in store.tags())}", flush=True)
        with stridemap.open(path) as store:
            print(f"a layer: {list(store['model.0.weight'].shape)}, largest weight {store['model.0.weight'].max():.3f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
