"""Ranks of PyTorch with gloo, in processes that are forked, so that they need not import PyTorch again."""

from __future__ import annotations

import multiprocessing
import os
import traceback
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # FSDP imports it late, and so would each rank
import torch.distributed as dist

FORK = multiprocessing.get_context("fork")


class Ranks:
    """Processes that run `function(*arguments)`, each in one process group with the others."""

    def __init__(self, folder: Path, count: int, function: Callable[..., Any], *arguments: Any) -> None:
        rendezvous = f"file://{folder}/{uuid.uuid4()}"
        self.processes, self._receivers = [], []
        for rank in range(count):
            receiver, sender = FORK.Pipe(duplex=False)
            process = FORK.Process(target=_run, args=(sender, rendezvous, rank, count, function, arguments), daemon=True)
            process.start()
            sender.close()
            self.processes.append(process)
            self._receivers.append(receiver)

    def results(self) -> list[Any]:
        """Wait until all have ended. Return what the function returned at each rank."""
        results = []
        for rank, receiver in enumerate(self._receivers):
            assert receiver.poll(120), f"rank {rank} has not ended"
            error, result = receiver.recv()
            assert error is None, f"rank {rank}: {error}"
            results.append(result)
        for process in self.processes:
            process.join()
        return results

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def run(folder: Path, count: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run a function at some ranks. Return its results."""
    return Ranks(folder, count, function, *arguments).results()


def _run(sender: Any, rendezvous: str, rank: int, count: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    # Threads of the parent are not there.
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=count)
    try:
        sender.send((None, function(*arguments)))
    except BaseException:
        sender.send((traceback.format_exc(), None))
    os._exit(0)
