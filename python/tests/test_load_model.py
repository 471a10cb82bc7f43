"""`load_model` copies into a model as the function of safetensors does, and with `assign` it maps."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed
import torch.multiprocessing
from mappings import is_mapped
from torch import nn

import stridemap
from stridemap.torch import load_file, load_model, save_checkpoint, save_file, save_model


def net() -> nn.Linear:
    return nn.Linear(2, 2, bias=False)


def saved(folder: Path, model: nn.Module) -> dict[str, Callable[[nn.Module], Any]]:
    """Save a model with two libraries. Return functions that load it."""
    save_model(model, folder / "x.smap")
    safetensors.torch.save_model(model, str(folder / "x.safetensors"))
    return {
        "stridemap": lambda other: load_model(other, folder / "x.smap"),
        "safetensors": lambda other: safetensors.torch.load_model(other, folder / "x.safetensors"),
    }


def gradients(rank: int, folder: Path, results: Any) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    found = []
    for load in (
        lambda model: load_model(model, folder / "x.smap"),
        lambda model: safetensors.torch.load_model(model, folder / "x.safetensors"),
    ):
        model = nn.parallel.DistributedDataParallel(net())
        load(model.module)
        model(torch.full((1, 2), float(rank + 1))).sum().backward()
        found.append(model.module.weight.grad.tolist())
    results.put(found)
    results.close()
    results.join_thread()
    torch.distributed.barrier()
    # Threads of gloo sometimes abort a process that ends in the usual way.
    os._exit(0)


def test_gradients_are_averaged_after_loading(tmp_path: Path) -> None:
    saved(tmp_path, net())
    context = torch.multiprocessing.get_context("spawn")
    results = context.Queue()
    children = [context.Process(target=gradients, args=(rank, tmp_path, results)) for rank in range(2)]
    for child in children:
        child.start()
    # The mean of the gradients of the two processes, which are 1 and 2.
    assert [results.get(timeout=120) for _ in children] == [[[[1.5, 1.5]] * 2] * 2] * 2
    for child in children:
        child.join()
        assert child.exitcode == 0


@pytest.mark.parametrize("library", ["stridemap", "safetensors"])
def test_optimizer_that_was_made_before_trains(library: str, tmp_path: Path) -> None:
    load, model = saved(tmp_path, net())[library], net()
    optimizer, parameter = torch.optim.SGD(model.parameters(), 1.0), model.weight
    load(model)
    assert model.weight is parameter
    before = parameter.detach().clone()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert torch.equal(model.weight, before - 1)


@pytest.mark.parametrize("library", ["stridemap", "safetensors"])
def test_parameters_keep_their_dtype_and_flags(library: str, tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)

    original = Model()
    original.norm.running_mean.fill_(5)
    load, model = saved(tmp_path, original)[library], Model().half()
    model.linear.requires_grad_(False)
    addresses = [tensor.data_ptr() for tensor in model.state_dict().values()]
    load(model)
    assert [tensor.data_ptr() for tensor in model.state_dict().values()] == addresses
    assert model.linear.weight.dtype == model.norm.running_mean.dtype == torch.float16
    assert model.norm.num_batches_tracked.dtype == torch.int64 and model.norm.running_mean.tolist() == [5] * 3
    assert not model.linear.weight.requires_grad and model.norm.weight.requires_grad
    assert torch.equal(model.linear.weight, original.linear.weight.half())


def test_assigned_parameters_have_the_dtype_and_the_memory_of_the_store(tmp_path: Path) -> None:
    original, model = net(), net().half().requires_grad_(False)
    save_model(original, tmp_path / "x.smap")
    parameter = model.weight
    load_model(model, tmp_path / "x.smap", assign=True)
    assert model.weight is not parameter and model.weight.dtype == torch.float32 and not model.weight.requires_grad
    assert torch.equal(model.weight, original.weight)
    with torch.device("meta"):
        model = net()
    load_model(model, tmp_path / "x.smap", assign=True)
    assert torch.equal(model.weight, original.weight)


def test_loaded_model_is_not_changed_with_the_store(tmp_path: Path) -> None:
    path, model = tmp_path / "x.smap", net()
    save_model(net(), path)
    load_model(model, path)
    with torch.no_grad():
        model.weight.fill_(3)
    save_model(model, path)
    with torch.no_grad():
        model.weight.fill_(4)
    assert load_file(path)["weight"].tolist() == [[3, 3], [3, 3]]


def tied(value: float) -> nn.ModuleDict:
    model = nn.ModuleDict({"a": net(), "b": net()})
    model["b"].weight = model["a"].weight
    nn.init.constant_(model["a"].weight, value)
    return model


@pytest.mark.parametrize("assign", [False, True])
def test_one_name_of_a_tied_parameter_is_enough(path: Path, assign: bool) -> None:
    save_file({"b.weight": torch.ones(2, 2)}, path)
    model = tied(0)
    assert load_model(model, path, assign=assign) == ([], [])
    assert model["a"].weight is model["b"].weight and model["a"].weight.tolist() == [[1, 1], [1, 1]]
    # The memory is shared, but not the object.
    model["b"].weight = nn.Parameter(model["a"].weight.detach())
    model["a"].weight.data.zero_()
    assert load_model(model, path, assign=assign) == ([], [])
    assert model["a"].weight.tolist() == model["b"].weight.tolist() == [[1, 1], [1, 1]]
    save_file({"a.weight": torch.zeros(2, 2), "b.weight": torch.ones(2, 2)}, path)
    model = tied(5)
    with pytest.raises(ValueError, match="tied"):
        load_model(model, path, assign=assign)
    assert model["a"].weight.tolist() == [[5, 5], [5, 5]]
    nan = torch.full((2, 2), float("nan"))
    save_file({"a.weight": nan, "b.weight": nan.clone()}, path)
    load_model(tied(5), path, assign=assign)
    save_file({"c": torch.ones(1)}, path, replace=True)
    with pytest.raises(RuntimeError, match="missing in the store"):
        load_model(tied(5), path, assign=assign)


@pytest.mark.parametrize("assign", [False, True])
def test_tied_buffers_stay_tied(path: Path, assign: bool) -> None:
    model = nn.Module()
    model.register_buffer("x", torch.zeros(3))
    model.register_buffer("y", model.x)
    save_file({"y": torch.ones(3)}, path)
    assert load_model(model, path, assign=assign) == ([], [])
    model.x.add_(1)
    assert model.y.tolist() == [2, 2, 2]


@pytest.mark.parametrize("assign", [False, True])
def test_layers_without_sizes_get_those_of_the_store(path: Path, assign: bool) -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyLinear(3))
    save_model(nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 3)), path)
    load_model(model, path, assign=assign)
    assert model[0].weight.shape == (3, 5) and torch.equal(model[1].weight, load_file(path)["1.weight"])


def test_sizes_that_differ_are_an_error(path: Path) -> None:
    save_model(nn.Linear(3, 2), path)
    for assign in (False, True):
        with pytest.raises(RuntimeError, match="size mismatch"):
            load_model(nn.Linear(2, 2), path, assign=assign)


def on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return make()


@pytest.mark.parametrize("assign", [False, True])
def test_model_on_the_device_meta_gets_the_mapped_tensors(path: Path, assign: bool) -> None:
    original = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    save_model(original, path)
    model = on_meta(lambda: nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))).requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_model(model, path, assign=assign) == ([], [])
    for name, tensor in original.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor) and is_mapped(model.state_dict()[name])
    assert isinstance(model[0].weight, nn.Parameter) and not model[0].weight.requires_grad


def test_part_of_a_model_on_the_device_meta_is_mapped_and_the_rest_is_copied(path: Path) -> None:
    save_model(nn.ModuleDict({"a": net(), "b": net()}), path)
    model = nn.ModuleDict({"a": net(), "b": on_meta(net)})
    parameter = model["a"].weight
    assert load_model(model, path) == ([], [])
    assert model["a"].weight is parameter and not is_mapped(parameter) and is_mapped(model["b"].weight)
    for name, tensor in load_file(path).items():
        assert torch.equal(model.state_dict()[name], tensor)


def test_model_on_the_device_meta_keeps_its_dtype(path: Path) -> None:
    save_model(tied(2), path)
    model = on_meta(lambda: tied(0)).half()
    assert model["a"].weight is model["b"].weight
    load_model(model, path)
    assert model["a"].weight is model["b"].weight and model["a"].weight.dtype == torch.float16
    load_model(model := on_meta(lambda: tied(0)).half(), path, assign=True)
    assert model["a"].weight.dtype == torch.float32


def test_what_is_missing_stays_on_the_device_meta_and_is_named(path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = net()
            self.register_buffer("positions", torch.arange(3), persistent=False)

    save_file({"other": torch.ones(1)}, path)
    with pytest.raises(RuntimeError, match="missing in the store: .'linear.weight'."):
        load_model(on_meta(Model), path)
    save_model(Model(), path, replace=True)
    for assign in (False, True):
        with pytest.warns(UserWarning, match="stay on the device meta: .'positions'.; compute them"):
            load_model(on_meta(Model), path, assign=assign)
    with pytest.raises(RuntimeError, match="size mismatch"):
        load_model(on_meta(lambda: nn.ModuleDict({"linear": nn.Linear(3, 3, bias=False)})), path)


def test_model_is_loaded_through_a_device(path: Path) -> None:
    save_model(tied(2), path)
    for device in ("meta", torch.device("meta")):
        load_model(model := tied(0), path, True, device, assign=True)
        assert model["a"].weight is model["b"].weight and model["a"].weight.device.type == "meta"
    loaded = load_file(path, "meta")
    assert len({tensor.untyped_storage()._cdata for tensor in loaded.values()}) == 1, "they still share memory"
    assert loaded["a.weight"].shape == (2, 2) and loaded["a.weight"].dtype == torch.float32


def test_model_that_finds_nothing_is_told_the_prefix(store: stridemap.Store) -> None:
    model = torch.nn.Linear(3, 2)
    save_checkpoint(store, "step1", {"model": model.state_dict(), "optimizer": {"model": {"bias": torch.zeros(2)}}})
    for prefix, where in (("", "has a name"), ("net", "has the prefix 'net' and a name")):
        with pytest.raises(RuntimeError, match=f"no tensor in the store {where} of .*'weight'; give prefix='checkpoint/model.'$"):
            load_model(model, store, prefix=prefix)
    load_model(model, store, prefix="checkpoint/model.")
    with pytest.raises(RuntimeError, match="missing in the store: .*'in_proj_weight'"):
        load_model(torch.nn.MultiheadAttention(2, 1), store)
