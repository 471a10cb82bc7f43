"""Checkpoints are tags: they come back as they were saved, share what is unchanged, and leave everything else as it is."""

from __future__ import annotations

import copy
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_handles import disk_usage
from test_torch import Tied

import stridemap
from stridemap.torch import load_checkpoint, load_file, load_model, save_checkpoint, save_file, save_model


def train(model: Tied, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(torch.randint(0, 50, (4, 5))).square().mean().backward()
        optimizer.step()


def test_training_continues_from_a_checkpoint_as_if_it_had_not_ended(store: stridemap.Store) -> None:
    torch.manual_seed(2)
    model = Tied()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    train(model, optimizer, 3)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3, "name": (1, None, "x", 0.1)}
    save_checkpoint(store, "step3", state)
    expected = copy.deepcopy(optimizer.state_dict())
    loaded = load_checkpoint(store)
    assert loaded["step"] == 3 and loaded["name"] == (1, None, "x", 0.1)
    assert loaded["optimizer"]["param_groups"] == expected["param_groups"]
    assert loaded["optimizer"]["state"].keys() == expected["state"].keys()
    other = Tied()
    other.load_state_dict(loaded["model"])
    resumed = torch.optim.Adam(other.parameters(), 0.01)
    resumed.load_state_dict(loaded["optimizer"])
    train(model, optimizer, 4)
    train(other, resumed, 4)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


def names(store: stridemap.Store) -> list[str]:
    return [tag.name for tag in store.tags()]


def test_unchanged_tensors_of_a_checkpoint_are_not_written_again(store: stridemap.Store) -> None:
    frozen, trained = torch.zeros(1_000_000), torch.zeros(1000)
    tied = frozen.view(1000, 1000).t()
    for step in range(10):
        trained += 1
        before = disk_usage(store)
        save_checkpoint(store, f"step{step}", {"frozen": frozen, "tied": tied, "trained": trained, "step": step})
        assert step == 0 or disk_usage(store) - before < 20_000
    assert names(store) == [f"step{step}" for step in range(10)]
    first, last = load_checkpoint(store, "step0"), load_checkpoint(store)
    assert (first["step"], last["step"]) == (0, 9)
    assert first["trained"][0] == 1 and last["trained"][0] == 10
    assert last["frozen"].data_ptr() == last["tied"].data_ptr()
    assert store.at("step0")["checkpoint/frozen"].shares_storage(store["checkpoint/tied"])
    assert load_checkpoint(store, store.tags()[4].generation)["step"] == 4
    with pytest.raises(KeyError, match="no tag with this name; did you mean"):
        load_checkpoint(store, "step99")
    with pytest.raises(TypeError, match="opaque"):
        save_checkpoint(store, "wrong", {"opaque": object()})
    assert load_checkpoint(store)["step"] == 9 and len(names(store)) == 10


@pytest.mark.parametrize("assign", [False, True])
def test_tensor_is_compared_whatever_it_was_loaded_from(path: Path, assign: bool) -> None:
    """Also if its neighbours, in the file and in memory, have changed."""
    net = torch.nn.Sequential(*(torch.nn.Linear(100, 100) for _ in range(6)))
    save_model(net, path.with_suffix(".base"))
    load_model(net, path.with_suffix(".base"), assign=assign)
    with stridemap.open(path, "x", durable=False) as store:
        save_checkpoint(store, "0", net.state_dict())
        ids = [store[f"checkpoint/{index}.weight"].storage_id for index in range(6)]
        for step in range(1, 6):
            with torch.no_grad():
                net[step].weight += 1
            save_checkpoint(store, f"{step}", net.state_dict())
            now = [store[f"checkpoint/{index}.weight"].storage_id for index in range(6)]
            assert [index for index in range(6) if ids[index] != now[index]] == [step]
            ids = now
        net.load_state_dict(load_checkpoint(store, "3"), assign=assign)
        save_checkpoint(store, "again", net.state_dict())
        now = [store[f"checkpoint/{index}.weight"].storage_id for index in range(6)]
        assert now[:4] == ids[:4] and now[4] != ids[4]
        for name, tensor in load_checkpoint(store, "3").items():
            assert torch.equal(tensor, load_checkpoint(store)[name])


def test_strides_of_dimensions_of_size_1_make_no_difference(store: stridemap.Store) -> None:
    weight = torch.randn(8, 4, 1, 1).to(memory_format=torch.channels_last)
    assert weight.is_contiguous() and weight.stride() != torch.empty(8, 4, 1, 1).stride()
    save_checkpoint(store, "1", {"w": weight})
    before = store["checkpoint/w"].storage_id
    save_checkpoint(store, "2", {"w": weight})
    assert store["checkpoint/w"].storage_id == before
    save_checkpoint(store, "3", {"w": torch.randn(8, 4, 2, 2).to(memory_format=torch.channels_last)})
    assert load_checkpoint(store)["w"].is_contiguous(memory_format=torch.channels_last)


def test_fine_tuning_of_a_loaded_model_writes_what_it_trains(tmp_path: Path) -> None:
    """The benchmark loads each checkpoint again, and compares the bytes on disk with those of what has changed."""
    steps = os.environ.get("STRIDEMAP_TEST_CHECKPOINT_STEPS")
    arguments = [steps] if steps else ["4", "200"]
    program = Path(__file__).parents[1] / "benches/checkpoints.py"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    run = subprocess.run([sys.executable, program, *arguments], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    assert f"{arguments[0]} checkpoints of a model" in run.stdout
    print(run.stdout)


#: The dtypes that NumPy does not have, and those of two parts.
DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "complex64", "complex128")


@pytest.mark.parametrize("dtype", [getattr(torch, name) for name in DTYPES if hasattr(torch, name)], ids=str)
def test_tensors_of_any_dtype_are_compared_and_come_back(dtype: torch.dtype, store: stridemap.Store) -> None:
    # All bytes there are, so also NaNs, which are not equal to themselves.
    whole = torch.arange(16 * 256, dtype=torch.int64).to(torch.uint8).view(dtype)
    state = {"whole": whole, "other": whole.clone(), "every third": whole[1::3], "t": whole.reshape(16, -1).t(), "one": whole[5], "none": whole[:0]}
    if dtype.is_complex:
        state |= {"conj": whole.conj(), "real": whole.real, "minus": whole.conj().imag}
    save_checkpoint(store, "1", state)
    ids = {name: store[f"checkpoint/{name}"].storage_id for name in state}
    save_checkpoint(store, "2", state)
    assert {name: store[f"checkpoint/{name}"].storage_id for name in state} == ids
    before = {name: tensor.clone() for name, tensor in state.items()}
    state["other"].view(torch.uint8)[9] += 1
    save_checkpoint(store, "3", state)
    assert {name for name in state if store[f"checkpoint/{name}"].storage_id != ids[name]} == {"other"}
    for tag, expected in (("2", before), ("3", state)):
        loaded = load_checkpoint(store, tag)
        for name, tensor in expected.items():
            back = loaded[name]
            assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape), name
            assert bits(back) == bits(tensor), (tag, name)
        assert loaded["whole"].data_ptr() == loaded["t"].data_ptr() != loaded["other"].data_ptr()


def bits(tensor: torch.Tensor) -> bytes:
    """Return the bytes of the elements, in row-major order."""
    whole = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    return bytes(whole.view(torch.uint8).numpy())


def test_checkpoint_of_any_nesting(store: stridemap.Store) -> None:
    state: Any = {1: [torch.ones(2), {"a.b": (torch.zeros(0), float("inf"))}], "tensor": {"tuple": None}, (1, 2): []}
    state |= {"1": [torch.full((2,), 2.0)], "a.b": torch.full((1,), 3.0), "a": {"b": torch.full((1,), 4.0)}}
    save_checkpoint(store, "x", state)
    loaded = load_checkpoint(store)
    assert loaded.keys() == state.keys() and loaded["tensor"] == {"tuple": None} and loaded[1, 2] == []
    assert (loaded["1"][0].tolist(), loaded["a.b"].item(), loaded["a"]["b"].item()) == ([2, 2], 3, 4)
    assert loaded[1][0].tolist() == [1, 1] and loaded[1][1]["a.b"][0].shape == (0,)
    assert loaded[1][1]["a.b"][1] == float("inf")


def test_checkpoint_has_the_values_and_ties_of_now_and_not_those_of_the_last(store: stridemap.Store) -> None:
    x = torch.zeros(10_000)
    save_checkpoint(store, "1", {"w": x, "tied": [x, x], "apart": [x + 1, x + 1]})
    written = store["checkpoint/w"].torch()
    written += 1
    save_checkpoint(store, "2", {"w": written, "tied": [x, x.clone()], "apart": [(y := x + 1), y]})
    loaded = load_checkpoint(store, "2")
    assert loaded["w"][0] == 1 and load_checkpoint(store, "1")["w"][0] == 0
    assert loaded["tied"][0].data_ptr() != loaded["tied"][1].data_ptr()
    assert loaded["apart"][0].data_ptr() == loaded["apart"][1].data_ptr()
    save_checkpoint(store, "3", {"other": x})
    assert "checkpoint/w" not in store and load_checkpoint(store)["other"].shape == (10_000,)
    assert load_checkpoint(store, "2")["w"][0] == 1


def test_checkpoint_is_replaced_only_by_request(store: stridemap.Store) -> None:
    save_checkpoint(store, "best", {"w": torch.zeros(2)})
    before = store.generation
    with pytest.raises(stridemap.NameExistsError, match='tag "best": the tag exists, .*give replace=True'):
        save_checkpoint(store, "best", {"w": torch.ones(2)})
    assert store.generation == before and load_checkpoint(store, "best")["w"].tolist() == [0, 0]
    save_checkpoint(store, "best", {"w": torch.ones(2)}, replace=True)
    assert load_checkpoint(store, "best")["w"].tolist() == [1, 1] and names(store) == ["best"]


def test_checkpoints_are_listed_deleted_and_pruned_as_tags(store: stridemap.Store) -> None:
    for step in range(5):
        save_checkpoint(store, f"step{step}", {"w": torch.full((50_000,), float(step)), "step": step})
    store.tag("best", at="step1")
    store.untag("step3")
    assert [tag.name for tag in store.prune(keep_last=1, names="step*")] == ["step0", "step1", "step2"]
    assert names(store) == ["best", "step4"] and load_checkpoint(store, "best")["w"][0] == 1
    assert disk_usage(store) < 450_000
    store.restore("best")
    assert load_checkpoint(store)["w"][0] == 1


def test_checkpoint_leaves_other_tensors_as_they_are(store: stridemap.Store) -> None:
    store["checkpoint/notes"] = [1]
    store["w"] = [2]
    store.save("checkpoint.json", [3], kind="mutable")
    save_checkpoint(store, "1", {"w": torch.ones(2), "old": torch.ones(3)})
    save_checkpoint(store, "2", {"w": torch.zeros(2)})
    assert list(store) == ["checkpoint.json", "checkpoint/description.json", "checkpoint/notes", "checkpoint/w", "w"]
    assert (store["checkpoint/notes"].item(), store["w"].item(), store["checkpoint.json"].item()) == (1, 2, 3)
    with pytest.raises(stridemap.NameExistsError, match='"checkpoint/notes" exists, and does not belong to a checkpoint'):
        save_checkpoint(store, "3", {"notes": torch.ones(1)})
    assert names(store) == ["1", "2"] and store["checkpoint/notes"].item() == 1
    with pytest.raises(TypeError, match="key"):
        save_checkpoint(store, "3", {torch.ones(1): 1})


def test_tensor_that_was_saved_over_that_of_a_checkpoint_is_not_kept(store: stridemap.Store) -> None:
    save_checkpoint(store, "1", {"w": torch.ones(2), "v": torch.ones(2)})
    store.save("checkpoint/w", torch.ones(2), kind="mutable")
    store["checkpoint/v"] = torch.zeros(2)
    save_checkpoint(store, "2", {"w": torch.ones(2), "v": torch.ones(2)})
    with pytest.raises(stridemap.Error), store["checkpoint/w"].lock():
        pass
    assert store["checkpoint/v"].numpy().tolist() == [1, 1]


bytes_of_json = torch.tensor(list(b'{"stridemap checkpoint": {"tensor": "w"}}'), dtype=torch.uint8)


@pytest.mark.parametrize(
    "state",
    [
        {"description.json": bytes_of_json, "description.json'": torch.ones(1)},
        {"description": {"json": torch.ones(1)}},
        {"b/c": torch.ones(1), "b": {"/c": torch.ones(2)}, "b%2Fc": torch.ones(3)},
        {"b'": torch.ones(1), "b": torch.ones(2)},
        torch.ones(1),
        {"": torch.ones(1)},
        {},
        5,
    ],
)
def test_state_of_any_names_comes_back(state: Any, store: stridemap.Store) -> None:
    save_checkpoint(store, "other", {"w": torch.zeros(1), "b": torch.zeros(2)})
    save_checkpoint(store, "x", state)
    assert repr(load_checkpoint(store)) == repr(load_checkpoint(store, "x")) == repr(state)
    save_checkpoint(store, "y", {"w": torch.zeros(1)})
    assert repr(load_checkpoint(store, "x")) == repr(state)
    assert list(store) == ["checkpoint/description.json", "checkpoint/w"]


@pytest.mark.parametrize(
    "save",
    [
        lambda store: save_file({"w": torch.ones(2)}, store, prefix="checkpoint/"),
        lambda store: store.save("checkpoint/w", [1.0, 1.0], kind="mutable"),
        lambda store: store.save("checkpoint/description.json", np.frombuffer(b'{"dict": []}', np.uint8)),
        lambda store: store.save("checkpoint/description.json", np.frombuffer(b"5", np.uint8)),
        lambda store: store.save("checkpoint/description.json", [1.0]),
    ],
)
def test_checkpoint_changes_nothing_that_another_save_made(save: Any, store: stridemap.Store) -> None:
    save(store)
    before = {name: tensor.numpy().tolist() for name, tensor in store.items()}
    with pytest.raises(stridemap.NameExistsError, match="does not belong to a checkpoint; rename or remove"):
        save_checkpoint(store, "best", {"w": torch.zeros(2)})
    assert {name: tensor.numpy().tolist() for name, tensor in store.items()} == before and names(store) == []
    with pytest.raises(KeyError, match="there is no checkpoint in generation"):
        load_checkpoint(store)
    store.tag("v1")
    with pytest.raises(KeyError, match="there is no checkpoint in 'v1' of"):
        load_checkpoint(store, "v1")


def test_checkpoint_sees_what_other_writers_saved(path: Path) -> None:
    with stridemap.open(path, "x", durable=False) as store, stridemap.open(path, "r+", durable=False) as other:
        save_checkpoint(other, "a", {"w": torch.zeros(2)})
        other["checkpoint/v"] = 1
        with pytest.raises(ValueError, match='"checkpoint/v" exists, and does not belong to a checkpoint'):
            save_checkpoint(store, "b", {"v": torch.ones(2)})
        save_checkpoint(store, "c", {"w": torch.zeros(2)})
        assert store["checkpoint/w"].storage_id == store.at("a")["checkpoint/w"].storage_id


def train_until_killed(path: Path, has_begun: Any) -> None:
    for step in range(1000):
        save_checkpoint(path, f"step{step}", {"w": torch.full((1000,), float(step)), "frozen": torch.ones(1000), "step": step})
        has_begun.set()


def test_checkpoints_of_a_killed_process_are_whole(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    has_begun = context.Event()
    child = context.Process(target=train_until_killed, args=(path, has_begun))
    child.start()
    assert has_begun.wait(120)
    with stridemap.open(path) as store:
        while store.wait_for_change(60) and len(names(store)) < 10:
            pass
    child.kill()
    child.join()
    with stridemap.open(path) as store:
        saved = store.tags()
        assert len(saved) >= 10 and load_checkpoint(store)["step"] == len(saved) - 1
        for step, tag in enumerate(saved):
            state = load_checkpoint(store, tag.name)
            assert (tag.name, state["step"]) == (f"step{step}", step)
            assert state["w"].unique().tolist() == [step] and state["frozen"].unique().tolist() == [1]
        assert store.verify() == []
        assert load_file(store, prefix="checkpoint/").keys() == {"description.json", "frozen", "w"}
        assert load_checkpoint(path, "step3")["step"] == 3
    with stridemap.open(path, at="step5") as earlier:
        assert load_checkpoint(earlier)["step"] == 5


def test_state_can_be_none(store: stridemap.Store) -> None:
    for name, state in (("a", None), ("b", [None]), ("c", 0), ("d", None)):
        save_checkpoint(store, name, state)
        assert load_checkpoint(store) == state
