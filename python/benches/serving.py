"""A training and three servers of its model on one machine: the pauses of the servers, and their memory, in one run.

Usage: python serving.py [GENERATIONS [WIDTH]]: 100 generations and a model of 50 MB (10 layers of 1,120 x 1,120) unless given.
A tenth of the model changes in each generation. A server takes it by `update`, copies what changed as one that does not
map would have to, and runs a batch. The batch after `update` reads the new pages. The memory is proportional (PSS): a page
that three processes map counts a third for each, and the training maps some of them, too.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import stridemap
from stridemap.torch import follow, save_checkpoint

LAYERS, SERVERS = 10, 3


def net(width: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS)))


def serve(path: str, width: int, pipe: Any) -> None:
    torch.set_num_threads(1)
    with torch.device("meta"):
        model = net(width)
    follower, batch = follow(path, model, prefix="checkpoint/model"), torch.ones(1, width)
    copies = {name: torch.empty_like(tensor) for name, tensor in model[0].state_dict().items()}
    with torch.inference_mode():
        model(batch)
        pipe.send(None)
        while (generation := pipe.recv()) is not None:
            began = time.perf_counter()
            names = follower.update()
            paused = time.perf_counter()
            assert follower.generation == generation and len(names) == 2
            model(batch)
            answered = time.perf_counter()
            for name in names:
                copies[name.partition(".")[2]].copy_(model.get_parameter(name))
            copied = time.perf_counter()
            assert follower.update() == []
            ended = time.perf_counter()
            pipe.send((paused - began, answered - paused, copied - answered, ended - copied))


def proportional_bytes(pids: list[int], path: str) -> tuple[int, int]:
    """Return the proportional memory of processes: that of the files of a store, and all of it."""
    of_store, whole, is_store = 0, 0, False
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            if line.startswith("Pss:"):
                size = int(line.split()[1]) << 10
                whole, of_store = whole + size, of_store + size * is_store
            elif "-" in line.split()[0]:
                is_store = path in line
    return of_store, whole


def main(generations: int = 100, width: int = 1120) -> None:
    context = multiprocessing.get_context("spawn")
    torch.manual_seed(0)
    model = net(width)
    servers: list[Any] = []
    with tempfile.TemporaryDirectory() as folder, stridemap.open(f"{folder}/run.smap", "x") as store:
        save_checkpoint(store, "step0", {"model": model.state_dict()})

        def start() -> Any:
            own, other = context.Pipe()
            process = context.Process(target=serve, args=(store.path, width, other), daemon=True)
            process.start()
            own.recv()
            return process, own

        servers.append(start())
        alone = proportional_bytes([servers[0][0].pid], store.path)
        servers += [start() for _ in range(SERVERS - 1)]
        times = []
        for step in range(1, generations + 1):
            with torch.no_grad():
                for parameter in model[step % LAYERS].parameters():
                    parameter += 1
            save_checkpoint(store, f"step{step}", {"model": model.state_dict()})
            for _, pipe in servers:
                pipe.send(store.generation)
            times += [pipe.recv() for _, pipe in servers]
        together = proportional_bytes([process.pid for process, _ in servers], store.path)
        for process, pipe in servers:
            pipe.send(None)
            process.join()
    whole = sum(tensor.nbytes for tensor in model.state_dict().values())
    print(f"{SERVERS} servers of a model of {whole / 1e6:.1f} MB, {generations} generations of {whole / LAYERS / 1e6:.1f} MB")
    named = ("update", "the batch after it", "copy of what changed", "update without news")
    for name, found in zip(named, zip(*times, strict=True), strict=True):
        p99 = statistics.quantiles(found, n=100, method="inclusive")[98]
        print(f"{name:<22}p50 {statistics.median(found) * 1e3:>8.3f} ms   p99 {p99 * 1e3:>8.3f} ms")
    for name, one, all_of_them in zip(("files of the store", "all memory"), alone, together, strict=True):
        print(f"{name:<22}one {one / 1e6:>8.1f} MB   {SERVERS} together {all_of_them / 1e6:>8.1f} MB")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
