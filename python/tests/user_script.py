"""What users of safetensors and PyTorch do, with one of two libraries. Usage: python user_script.py LIBRARY FOLDER.

Prints what came out, as JSON. `test_user_script.py` compares the libraries.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing
from torch import nn
from torch.utils.data import DataLoader, Dataset

LIBRARIES = {"safetensors": ("safetensors.torch", "safetensors"), "stridemap": ("stridemap.torch", "smap")}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.linear, self.head = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 20, bias=False)
        self.norm = nn.BatchNorm1d(8)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.linear(self.embedding(tokens)).mean(1)))


class Files:
    """The functions of a library, on files in a folder."""

    def __init__(self, library: str, folder: str) -> None:
        module, self.suffix = LIBRARIES[library]
        self.functions, self.folder = importlib.import_module(module), folder

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}.{self.suffix}"

    def save_file(self, tensors: dict[str, torch.Tensor], name: str) -> None:
        self.functions.save_file(tensors, self.path(name))

    def load_file(self, name: str) -> dict[str, torch.Tensor]:
        return self.functions.load_file(self.path(name))

    def save_model(self, model: nn.Module, name: str) -> None:
        self.functions.save_model(model, self.path(name))

    def load_model(self, model: nn.Module, name: str, **options: Any) -> tuple[list[str], list[str]]:
        missing, unexpected = self.functions.load_model(model, self.path(name), **options)
        return sorted(missing), sorted(unexpected)


class Rows(Dataset[torch.Tensor]):
    def __init__(self, library: str, folder: str) -> None:
        self.arguments = library, folder

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return Files(*self.arguments).load_file("many")[f"p{index}"]


def sums(tensors: dict[str, torch.Tensor]) -> dict[str, float]:
    return {name: float(tensor.detach().double().sum()) for name, tensor in sorted(tensors.items())}


def of_queue(queue: Any, results: Any) -> None:
    torch.set_num_threads(1)
    results.put(sums(queue.get()))


def of_arguments(tensors: dict[str, torch.Tensor], results: Any) -> None:
    torch.set_num_threads(1)
    tensors["p5"].fill_(8)
    results.put(sums(tensors))


def gradients(rank: int, library: str, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    parallel = nn.parallel.DistributedDataParallel(nn.Linear(2, 2, bias=False))
    Files(library, folder).load_model(parallel.module, "small")
    parallel(torch.full((1, 2), float(rank + 1))).sum().backward()
    Path(f"{folder}/gradient{rank}").write_text(json.dumps(parallel.module.weight.grad.tolist()))
    torch.distributed.barrier()
    # Threads of gloo sometimes abort a process that ends in the usual way.
    os._exit(0)


def run(library: str, folder: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.manual_seed(5)
    files, out = Files(library, folder), {}
    fork, spawn = (torch.multiprocessing.get_context(method) for method in ("fork", "spawn"))

    many = {f"p{index}": torch.full((100,), float(index)) for index in range(200)}
    files.save_file({**many, "half": torch.ones(5).bfloat16(), "rng": torch.get_rng_state()}, "many")
    random = torch.rand(4).tolist()
    loaded = files.load_file("many")
    out["loaded"] = sums(loaded)
    out["storages"] = [(x.storage_offset(), x.untyped_storage().nbytes(), x.is_shared()) for _, x in sorted(loaded.items())]

    torch.set_rng_state(loaded["rng"])
    out["same random numbers"] = torch.rand(4).tolist() == random

    loaded["p1"].share_memory_()
    if (child := os.fork()) == 0:
        loaded["p1"].numpy().fill(7)
        os._exit(0)
    os.waitpid(child, 0)
    out["written by a child"] = loaded["p1"].tolist()

    for strategy in ("file_descriptor", "file_system"):
        torch.multiprocessing.set_sharing_strategy(strategy)
        queue, results = fork.Queue(), fork.Queue()
        process = fork.Process(target=of_queue, args=(queue, results))
        process.start()
        queue.put({name: files.load_file("many")[name] for name in ("p2", "half", "rng")})
        out[f"queue, {strategy}"] = results.get(timeout=60)
        process.join()
    torch.multiprocessing.set_sharing_strategy("file_descriptor")

    results, sent = spawn.Queue(), {name: loaded[name] for name in ("p3", "p4", "p5")}
    process = spawn.Process(target=of_arguments, args=(sent, results))
    process.start()
    out["arguments"] = results.get(timeout=120)
    process.join()
    out["written by another process"] = sums(sent)

    for batch_size in (None, 2):
        loader = DataLoader(Rows(library, folder), batch_size, num_workers=1, multiprocessing_context="fork", timeout=60)
        out[f"batches of {batch_size}"] = [batch.tolist() for batch in loader]

    one = files.load_file("many")["p9"]
    torch.save(one, f"{folder}/one.pt")
    out["sizes"] = [
        os.path.getsize(f"{folder}/one.pt"), len(pickle.dumps(one)), copy.deepcopy(one).untyped_storage().nbytes()
    ]  # fmt: skip
    one.zero_()
    out["written to one load"] = sums(files.load_file("many"))["p9"]
    files.save_file({name: loaded[name] for name in ("p10", "p190")}, "two")
    out["two of many"] = sums(files.load_file("two"))

    original = Model()
    files.save_model(original, "model")
    model = Model().half()
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    out["names"] = files.load_model(model, "model")
    out["dtypes"] = [str(x.dtype) for x in model.state_dict().values()]
    out["tied"] = model.head.weight is model.embedding.weight
    out["optimizer has the parameters"] = optimizer.param_groups[0]["params"][0] is model.embedding.weight
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    files.load_model(model, "model")
    for step in range(3):
        optimizer.zero_grad()
        model(torch.arange(12).view(4, 3) + step).square().sum().backward()
        optimizer.step()
    out["trained"] = sums(model.state_dict())
    files.save_model(model, "model")
    again = Model()
    files.load_model(again, "model")
    out["saved again"] = sums(again.state_dict()) == out["trained"]
    again.share_memory()
    if (child := os.fork()) == 0:
        again.embedding.weight.detach().numpy().fill(7)
        os._exit(0)
    os.waitpid(child, 0)
    out["model written by a child"] = again.head.weight[0].tolist()
    out["copy"] = sums(copy.deepcopy(again).state_dict())

    other = nn.ModuleDict({"linear": nn.Linear(8, 8), "more": nn.Linear(2, 2)})
    files.save_model(nn.ModuleDict({"linear": again.linear, "norm": again.norm}), "parts")
    out["not strict"] = files.load_model(other, "parts", strict=False)
    out["copied from the parts"] = bool((other["linear"].weight == again.linear.weight).all())
    for name, wrong in (("strict", other), ("sizes", nn.ModuleDict({"linear": nn.Linear(8, 9)}))):
        try:
            files.load_model(wrong, "parts")
        except RuntimeError:
            out[f"refused: {name}"] = True

    files.save_model(nn.Linear(2, 2, bias=False), "small")
    torch.multiprocessing.spawn(gradients, (library, folder), nprocs=2)
    out["gradients"] = [json.loads(Path(f"{folder}/gradient{rank}").read_text()) for rank in range(2)]
    return out


if __name__ == "__main__":
    print(json.dumps(run(*sys.argv[1:])))
