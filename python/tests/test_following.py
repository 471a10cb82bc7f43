"""A served model takes new generations when it is asked to: what changed, without a copy, or nothing at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mappings import is_mapped
from test_forks import in_child
from test_torch import Tied
from torch import nn

import stridemap
from stridemap.torch import follow, save_checkpoint, save_file, save_model


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.Linear(30, 5)).eval()


def states(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_equal(model: nn.Module, expected: dict[str, torch.Tensor]) -> None:
    assert model.state_dict().keys() == expected.keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def places(model: nn.Module) -> dict[str, int]:
    return {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("way", ["handle", "path", "pulled"])
def test_only_what_changed_is_replaced(way: str, path: Path, tmp_path: Path) -> None:
    trained, served = net(), net()
    with stridemap.open(path, "x", durable=False) as store:
        url, replica = (tmp_path / "remote.smap").as_uri(), tmp_path / "replica.smap"

        def save(step: int) -> None:
            save_checkpoint(store, f"step{step}", {"model": trained.state_dict(), "step": step})
            if way == "pulled":
                store.push(url)
                stridemap.pull(url, replica)

        save(0)
        follower = follow({"handle": store, "path": path, "pulled": replica}[way], served, prefix="checkpoint/model")
        assert_equal(served, states(trained))
        assert all(map(is_mapped, served.parameters())) and follower.update() == []
        objects, before = dict(served.named_parameters()), places(served)
        for step in range(1, 4):
            old = states(served)
            with torch.no_grad():
                trained[2].weight += 1
                trained[1].running_mean += 1
                trained[1].num_batches_tracked += 1
            save(step)
            assert_equal(served, old)
            with torch.inference_mode():
                assert follower.update() == ["1.num_batches_tracked", "1.running_mean", "2.weight"]
                assert follower.update() == []
            assert_equal(served, states(trained))
            now = places(served)
            assert {name for name in now if now[name] != before[name]} == {"1.num_batches_tracked", "1.running_mean", "2.weight"}
            assert dict(served.named_parameters()) == objects and all(map(is_mapped, served.parameters()))
            assert torch.equal(served(torch.ones(2, 20)), trained(torch.ones(2, 20)))
            before = now
        save(4)
        # The description changed, and nothing in the model.
        generation = follower.generation
        assert follower.update() == [] and follower.generation > generation
        served(torch.ones(1, 20)).sum().backward()
        assert served[2].weight.grad is not None
        served[0].weight.data += 1
        assert store["checkpoint/model.0.weight"].numpy()[0, 0] == trained[0].weight[0, 0]


def test_generation_that_does_not_fit_leaves_the_model_as_it_was(store: stridemap.Store) -> None:
    trained, served = net(), net()
    save_model(trained, store)
    follower = follow(store, served)
    before, expected = places(served), states(served)
    changed = {"0.bias": torch.zeros(30), "0.weight": torch.zeros(30, 20)}

    def refused(match: str) -> None:
        for _ in range(2):
            with pytest.raises(RuntimeError, match=match):
                follower.update()
        assert places(served) == before
        assert_equal(served, expected)
        assert follower.generation == 2

    store.update({**changed, "2.weight": torch.zeros(30, 5), "2.bias": torch.zeros(6)})
    refused(r"of another shape: '2.weight': \(30, 5\) in the store, \(5, 30\) in the model, '2.bias': \(6,\) in")
    store.restore(2)
    store.update(changed)
    del store["2.weight"]
    refused("generation 6 of .* and Sequential do not fit each other, so the model stays as it is: missing in the store: 2.weight$")
    store["3.weight"] = trained[2].weight
    refused("missing in the store: 2.weight; not in the model: 3.weight$")
    store.rename("3.weight", "2.weight")
    assert follower.update() == ["0.bias", "0.weight", "2.weight"] and not served[0].weight.any()
    store.restore(2)
    assert follower.update() == ["0.bias", "0.weight", "2.weight"]
    assert_equal(served, expected)


def test_model_that_does_not_fit_at_first_is_not_changed(store: stridemap.Store) -> None:
    served = net()
    before, expected = places(served), states(served)
    save_file({**served.state_dict(), "0.weight": torch.zeros(30, 20), "2.bias": torch.zeros(7)}, store)
    with pytest.raises(RuntimeError, match="of another shape: '2.bias'"):
        follow(store, served)
    del store["2.bias"]
    with pytest.raises(RuntimeError, match="missing in the store: 2.bias"):
        follow(store, served)
    assert places(served) == before
    assert_equal(served, expected)


def test_tied_parameters_stay_tied(store: stridemap.Store) -> None:
    trained, served = Tied(), Tied()
    names = sorted(served.state_dict())
    save_model(trained, store, prefix="m")
    follower = follow(store, served, prefix="m")
    groups = [group for group in follower._tied() if len(group) > 1]
    assert groups
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter += 1
    save_model(trained, store, prefix="m")
    assert follower.update() == names
    assert_equal(served, states(trained))
    assert [group.keys() for group in follower._tied() if len(group) > 1] == [group.keys() for group in groups]
    # One of the names is enough, and two must have the same elements.
    first, second, *_ = groups[0]
    store[f"m.{first}"] = torch.zeros_like(groups[0][first])
    with pytest.raises(RuntimeError, match="are tied in the model, but have different elements in the store"):
        follower.update()
    assert_equal(served, states(trained))
    del store[f"m.{second}"]
    assert set(follower.update()) == set(groups[0])
    assert not served.state_dict()[second].any() and not served.state_dict()[first].any()


def test_dtype_and_meta_and_what_is_not_followed(store: stridemap.Store, path: Path) -> None:
    trained = nn.Linear(3, 2)
    save_model(trained, store)
    with torch.device("meta"):
        served = nn.Linear(3, 2)
    follower = follow(store, served)
    assert is_mapped(served.weight)
    served.to(torch.float64)
    store["bias"] = torch.ones(2)
    assert follower.update() == ["bias"] and served.bias.dtype == torch.float64 and served.bias.tolist() == [1, 1]
    assert served(torch.ones(3, dtype=torch.float64)).dtype == torch.float64
    store.tag("v1")
    with stridemap.open(path, at="v1") as fixed, pytest.raises(ValueError, match="stays on it; open it without at"):
        follow(fixed, served)
    stridemap.export(store, path.with_suffix(".safetensors"))
    with pytest.raises(stridemap.Error, match="not a store"):
        follow(path.with_suffix(".safetensors"), served)


def test_model_of_inference_mode_is_followed(store: stridemap.Store) -> None:
    save_model(net(), store)
    with torch.inference_mode():
        served = net()
        follower = follow(store, served)
        for step in range(2):
            served(torch.ones(1, 20))
            store["2.bias"] = torch.full((5,), float(step))
            store["1.running_mean"] = torch.full((30,), float(step))
            assert follower.update() == ["1.running_mean", "2.bias"] and served[2].bias.tolist() == [step] * 5
    served(torch.ones(1, 20))


def test_follower_works_in_a_forked_child(store: stridemap.Store) -> None:
    trained, served = nn.Linear(3, 2), nn.Linear(3, 2)
    save_model(trained, store)
    follower = follow(store, served)
    store["bias"] = torch.ones(2)

    def update() -> Any:
        return follower.update(), served.bias.tolist()

    assert in_child(update) == (["bias"], [1, 1])
    assert served.bias.tolist() != [1, 1] and update() == (["bias"], [1, 1])


def test_memory_of_a_generation_is_given_back(store: stridemap.Store) -> None:
    trained, served = nn.Linear(1000, 1500), nn.Linear(1000, 1500)
    save_model(trained, store)
    follower = follow(store, served)
    maps = Path("/proc/self/maps")
    counts = []
    for step in range(8):
        store["weight"] = torch.full((1500, 1000), float(step))
        assert follower.update() == ["weight"] and served.weight[0, 0] == step
        counts.append(maps.read_text().count(store.path))
    assert counts[-1] <= counts[1] + 1


class Pair(nn.Module):
    """Two parameters, and state that is not a tensor of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(3))

    def get_extra_state(self) -> torch.Tensor:
        return torch.zeros(1)

    def set_extra_state(self, state: Any) -> None:
        assert state.shape == (1,)


def test_parameters_that_shared_memory_in_the_store_are_not_tied(store: stridemap.Store) -> None:
    with store.transaction() as txn:
        txn["a"] = np.arange(3, dtype=np.float32)
        txn["b"] = txn["a"]
        txn["_extra_state"] = np.zeros(1, np.float32)
    served = Pair()
    follower = follow(store, served)
    assert served.b.tolist() == [0, 1, 2]
    store["b"] = np.full(3, 7, np.float32)
    assert follower.update() == ["b"]
    assert served.a.tolist() == [0, 1, 2] and served.b.tolist() == [7, 7, 7]
