"""Checkpoints come back as they were saved, share what is unchanged, and leave everything else as it is."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_torch import Tied

import stridemap
from stridemap.torch import load_checkpoint, load_file, save_checkpoint, save_file


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


def disk_usage(store: stridemap.Store) -> int:
    return sum(file.stat().st_size for file in Path(store.path).rglob("*") if file.is_file())


def test_unchanged_tensors_of_a_checkpoint_are_headers(store: stridemap.Store) -> None:
    frozen, trained = torch.zeros(1_000_000), torch.zeros(1000)
    tied = frozen.view(1000, 1000).t()
    for step in range(10):
        trained += 1
        before = disk_usage(store)
        save_checkpoint(store, f"step{step}", {"frozen": frozen, "tied": tied, "trained": trained, "step": step})
        assert step == 0 or disk_usage(store) - before < 50_000
    first, last = load_checkpoint(store, "step0"), load_checkpoint(store)
    assert (first["step"], last["step"]) == (0, 9)
    assert first["trained"][0] == 1 and last["trained"][0] == 10
    assert last["frozen"].data_ptr() == last["tied"].data_ptr()
    assert store["step0/frozen"].shares_storage(store["step9/tied"])
    with pytest.raises(KeyError, match="step99"):
        load_checkpoint(store, "step99")
    with pytest.raises(TypeError, match="opaque"):
        save_checkpoint(store, "wrong", {"opaque": object()})
    assert load_checkpoint(store)["step"] == 9


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
    written = store["1/w"].torch()
    written += 1
    save_checkpoint(store, "2", {"w": written, "tied": [x, x.clone()], "apart": [(y := x + 1), y]})
    loaded = load_checkpoint(store, "2")
    assert loaded["w"][0] == 1 and load_checkpoint(store, "1")["w"][0] == 0
    assert loaded["tied"][0].data_ptr() != loaded["tied"][1].data_ptr()
    assert loaded["apart"][0].data_ptr() == loaded["apart"][1].data_ptr()
    save_checkpoint(store, "2", {"other": x})
    assert "2/w" not in store and load_checkpoint(store)["other"].shape == (10_000,)


def test_checkpoint_removes_only_its_own_tensors(store: stridemap.Store) -> None:
    save_checkpoint(store, "run", {"w": torch.ones(2), "old": torch.ones(3)})
    save_checkpoint(store, "run/step1", {"w": torch.zeros(2)})
    store["run/notes"] = [1]
    save_checkpoint(store, "run", {"w": torch.full((2,), 3.0)})
    assert "run/old" not in store and store["run/notes"].shape == (1,)
    assert load_checkpoint(store, "run/step1")["w"].tolist() == [0, 0]
    assert load_checkpoint(store.path, "run")["w"].tolist() == [3, 3]
    store["other.json"] = [1]
    with pytest.raises(stridemap.NameExistsError, match="does not belong to this checkpoint"):
        save_checkpoint(store, "other", {})
    with pytest.raises(TypeError, match="key"):
        save_checkpoint(store, "run", {torch.ones(1): 1})




def test_checkpoints_never_need_the_same_name(store: stridemap.Store) -> None:
    save_checkpoint(store, "run", {"epoch1/w": torch.ones(3)})
    save_checkpoint(store, "run/epoch1", {"w": torch.zeros(3)})
    assert sorted(store) == ["run.json", "run/epoch1%2Fw", "run/epoch1.json", "run/epoch1/w"]
    assert load_checkpoint(store, "run")["epoch1/w"].tolist() == [1, 1, 1]
    save_checkpoint(store, "run", {"x": torch.ones(1)})
    assert load_checkpoint(store, "run/epoch1")["w"].tolist() == [0, 0, 0]
    assert load_checkpoint(store, "run").keys() == {"x"} and "run/epoch1%2Fw" not in store


bytes_of_json = torch.tensor(list(b'{"stridemap checkpoint": {"tensor": "w"}}'), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("a", {"b": {"c/d": torch.ones(1)}}), ("a/b.c", {"d": torch.zeros(1)})),
        (("a", {"b/c": torch.ones(1)}), ("a/b", {"c": torch.zeros(1)})),
        (("a", {"b%2Fc": torch.ones(1), "b/c": torch.zeros(1)}), ("a/b", {"c": torch.zeros(1)})),
        (("a", {"b.json": bytes_of_json}), ("a/b", {"w": torch.zeros(1)})),
        (("a", {"b": {"json": bytes_of_json}}), ("a/b", {})),
        (("a", {"b%2Ejson": bytes_of_json, "b.json": bytes_of_json}), ("a/b", {"w": torch.zeros(1)})),
        (("a", torch.ones(1)), ("a/", torch.zeros(1))),
        (("a", {"": torch.ones(1)}), ("a/", {"": torch.zeros(1)})),
        (("a.json", {"w": torch.ones(1)}), ("a", {"json/w": torch.zeros(1)})),
        (("", {"a/w": torch.ones(1)}), ("a", {"w": torch.zeros(1)})),
        (("", torch.ones(1)), ("/", torch.zeros(1))),
        (("a", {"b'": torch.ones(1), "b": torch.ones(2)}), ("a/b", {"'": torch.zeros(1)})),
    ],
)
@pytest.mark.parametrize("is_reversed", [False, True])
def test_checkpoints_do_not_change_each_other(
    first: tuple[str, Any], second: tuple[str, Any], is_reversed: bool, store: stridemap.Store
) -> None:
    both = [second, first] if is_reversed else [first, second]
    for name, state in both:
        save_checkpoint(store, name, state)
    for name, state in both:
        assert repr(load_checkpoint(store, name)) == repr(state)
    save_checkpoint(store, both[0][0], {})
    assert repr(load_checkpoint(store, both[1][0])) == repr(both[1][1])


@pytest.mark.parametrize(
    "save",
    [
        lambda store: save_file({"w": torch.ones(2)}, store, prefix="best/"),
        lambda store: store.save("best/w", [1.0, 1.0]),
        lambda store: store.save("best/w", [1.0, 1.0], kind="mutable"),
        lambda store: store.save("best.json", np.frombuffer(b'{"dict": [["w", {"tensor": "best/w"}]]}', np.uint8)),
        lambda store: store.save("best.json", np.frombuffer(b"5", np.uint8)),
        lambda store: store.save("best.json", [1.0]),
    ],
)
def test_checkpoint_changes_nothing_that_another_save_made(save: Any, store: stridemap.Store) -> None:
    save(store)
    before = {name: tensor.numpy().tolist() for name, tensor in store.items()}
    with pytest.raises(stridemap.NameExistsError, match="choose a different name"):
        save_checkpoint(store, "best", {"w": torch.zeros(2)})
    assert {name: tensor.numpy().tolist() for name, tensor in store.items()} == before
    with pytest.raises(KeyError, match="no checkpoint"):
        load_checkpoint(store, "best")


def test_checkpoint_sees_what_other_writers_saved(path: Path) -> None:
    with stridemap.open(path, "x", durable=False) as store, stridemap.open(path, "r+", durable=False) as other:
        save_checkpoint(other, "a", {"w": torch.zeros(2)})
        other["b/w"] = 1
        with pytest.raises(ValueError, match='"b/w" exists, and does not belong to this checkpoint'):
            save_checkpoint(store, "b", {"w": torch.ones(2)})
        save_checkpoint(store, "c", {"w": torch.zeros(2)})
        assert store["c/w"].shares_storage(store["a/w"])


def test_what_a_checkpoint_cannot_hold_is_named(store: stridemap.Store) -> None:
    for value, kind in ((np.bool_(True), "numpy.bool"), (np.ones(2), "numpy.ndarray"), ({1}, "set"), (object(), "object")):
        with pytest.raises(TypeError, match=f"^a.1.b: a checkpoint cannot hold {kind}; convert"):
            save_checkpoint(store, "c", {"a": [0, {"b": value}]})
    with pytest.raises(TypeError, match="name of a checkpoint"):
        save_checkpoint(store, 5, {})  # type: ignore[arg-type]
