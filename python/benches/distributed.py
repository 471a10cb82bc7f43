"""Save and load a sharded model with 4 ranks of gloo: in a store, and in the files of PyTorch, in one run.

Usage: python distributed.py [MIB [ROUNDS]]: a model of 256 MiB (layers of 16 MiB, sharded along their rows) and 3 rounds,
unless given. The two take turns. A load is into the same sharding, and of files that are not in memory. Each load is
compared. The times are medians, of the slowest rank. Bytes are those of the disk, from `/proc/self/io`. Both sync what
they write.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from stridemap.torch.distributed import StoreReader, StoreWriter

RANKS = 4

#: The rows and columns of a layer, of float32.
SIZE = 2048

#: Seconds, bytes read and bytes written, by program and by action, in each round.
Measured = dict[tuple[str, str], list[tuple[float, int, int]]]


def io() -> dict[str, int]:
    return {key: int(value) for key, value in (line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())}


def evict(folder: Path) -> None:
    """Drop the files of a folder from memory."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def model(mesh: DeviceMesh, mib: int, seed: int | None) -> dict[str, Any]:
    """Return a state dict of random layers, or of zeros."""
    generator = torch.Generator().manual_seed(1000 * (seed or 0) + dist.get_rank())
    shape = (SIZE // RANKS, SIZE)
    layers = [torch.zeros(shape) if seed is None else torch.rand(shape, generator=generator) for _ in range(mib // 16)]
    return {f"layers.{index}.weight": DTensor.from_local(layer, mesh, [Shard(0)]) for index, layer in enumerate(layers)}


def measured(act: Callable[[], Any]) -> tuple[float, int, int]:
    dist.barrier()
    before, began = io(), time.perf_counter()
    act()
    seconds = time.perf_counter() - began
    after = io()
    return seconds, *(after[key] - before[key] for key in ("read_bytes", "write_bytes"))


def run(rank: int, folder: Path, mib: int, rounds: int, results: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    found: Measured = {}
    for number in range(rounds):
        state = model(mesh, mib, number)
        programs: dict[str, tuple[Any, Any]] = {
            "stridemap": (StoreWriter(folder / "x.smap"), lambda: StoreReader(folder / "x.smap")),
            "PyTorch": (dcp.FileSystemWriter(folder / "files"), lambda: dcp.FileSystemReader(folder / "files")),
        }
        turns = list(programs.items())[:: -1 if number % 2 else 1]
        for name, (writer, _) in turns:
            result = measured(lambda: dcp.save(state, storage_writer=writer))
            found.setdefault((name, "save"), []).append(result)
        for name, (_, reader) in turns:
            loaded = model(mesh, mib, None)
            if rank == 0:
                evict(folder)
            result = measured(lambda: dcp.load(loaded, storage_reader=reader()))
            found.setdefault((name, "load"), []).append(result)
            for key, tensor in state.items():
                assert torch.equal(tensor.to_local(), loaded[key].to_local()), key
    results.put(found)
    dist.barrier()
    dist.destroy_process_group()


def disk_usage(path: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*"))


def main(mib: int = 256, rounds: int = 3) -> None:
    processes = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as name:
        folder, results = Path(name), processes.Queue()
        arguments = (folder, mib, rounds, results)
        ranks = [processes.Process(target=run, args=(rank, *arguments)) for rank in range(RANKS)]
        for process in ranks:
            process.start()
        found: list[Measured] = [results.get() for _ in ranks]
        for process in ranks:
            process.join()
            assert process.exitcode == 0
        print(f"{mib} MiB, {RANKS} ranks, {rounds} rounds; bytes are per byte of the model")
        for action in ("save", "load"):
            for program in ("stridemap", "PyTorch"):
                of_ranks = [rank[program, action] for rank in found]
                seconds = statistics.median(max(turn[0] for turn in turns) for turns in zip(*of_ranks, strict=True))
                at, size = 2 if action == "save" else 1, mib << 20
                count = statistics.median(sum(turn[at] for turn in turns) for turns in zip(*of_ranks, strict=True)) / size
                most = max(turn[at] for turns in of_ranks for turn in turns) * RANKS / size
                text = f"{'written' if action == 'save' else 'read'} {count:.3f}; at most {most:.3f} of its shards by a rank"
                print(f"{action} {program:<10}{seconds:>7.2f} s   {text}")
        for program, path in (("stridemap", "x.smap"), ("PyTorch", "files")):
            print(f"on disk {program:<10}{disk_usage(folder / path) / (mib << 20):.3f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
