"""`save_file` and `save_model` remove nothing unless they are told to, and a prefix ends at its separator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import stridemap
from stridemap.torch import load_checkpoint, load_file, load_model, save_checkpoint, save_file, save_model


@pytest.fixture(params=["path", "store"])
def place(request: pytest.FixtureRequest, path: Path) -> Iterator[Path | stridemap.Store]:
    """A store, and how it is named to the functions."""
    with stridemap.open(path, "x", durable=False) as store:
        yield path if request.param == "path" else store


def names(path: Path) -> list[str]:
    with stridemap.open(path) as store:
        return list(store)


def test_other_tensors_are_removed_only_by_request(place: Path | stridemap.Store, path: Path) -> None:
    save_file({"a": torch.ones(2), "b": torch.ones(3)}, place)
    with pytest.raises(stridemap.NameExistsError, match=r'remove 1 tensor: "a"; .*replace=True'):
        save_file({"b": torch.zeros(3)}, place)
    assert names(path) == ["a", "b"] and load_file(path)["b"].tolist() == [1] * 3
    with pytest.raises(ValueError, match="it would remove 2 tensors"):
        save_model(nn.Linear(2, 2), place)
    save_file({"a": torch.zeros(2), "b": torch.zeros(3)}, place)  # every name is replaced, and none is removed
    assert load_file(path)["b"].tolist() == [0] * 3
    save_model(nn.Linear(2, 2), place, replace=True)
    assert names(path) == ["bias", "weight"]
    save_file({str(index): torch.zeros(1) for index in range(10)}, place, replace=True)
    with pytest.raises(ValueError, match='remove 10 tensors: "0", "1", "2", 7 more'):
        save_file({}, place)


def test_store_is_added_to_under_a_prefix(place: Path | stridemap.Store, path: Path) -> None:
    save_file({"b": torch.ones(3)}, place)
    save_model(nn.Linear(2, 2), place, prefix="model.")
    save_model(nn.Linear(3, 3), place, prefix="other/")
    assert names(path) == ["b", "model.bias", "model.weight", "other/bias", "other/weight"]
    save_file({"weight": torch.ones(1)}, place, prefix="model.", replace=True)
    assert names(path) == ["b", "model.weight", "other/bias", "other/weight"]
    assert load_file(path, prefix="model.")["weight"].shape == (1,)


def test_prefix_ends_at_its_separator(place: Path | stridemap.Store, path: Path) -> None:
    save_model(nn.Linear(2, 2), place, prefix="model1")
    save_model(nn.Linear(3, 3), place, prefix="model10")
    save_model(nn.Linear(4, 4), place, prefix="model1/")
    save_file({"weight": torch.ones(1)}, place, prefix="model1", replace=True)
    assert names(path) == ["model1.weight", "model1/bias", "model1/weight", "model10.bias", "model10.weight"]
    assert load_file(path, prefix="model1").keys() == load_file(path, prefix="model1.").keys() == {"weight"}
    assert load_model(nn.Linear(3, 3), place, prefix="model10") == ([], [])
    assert load_model(nn.Linear(4, 4), place, prefix="model1/") == ([], [])


def test_newest_checkpoint_is_removed_only_by_request_and_stays_tagged(place: Path | stridemap.Store, path: Path) -> None:
    save_checkpoint(place, "step1", {"w": torch.ones(2)})
    save_checkpoint(place, "step2", {"w": torch.zeros(2), "v": torch.ones(1)})
    with pytest.raises(ValueError, match='remove 3 tensors: "checkpoint/description.json", "checkpoint/v", "checkpoint/w"; choose'):
        save_model(nn.Linear(2, 2), place)
    with pytest.raises(ValueError, match='"checkpoint/description.json"'):
        save_file({"v": torch.ones(2), "w": torch.ones(2)}, place, prefix="checkpoint/")
    assert load_checkpoint(path)["w"].tolist() == [0, 0]
    save_file({"w": torch.full((2,), 5.0)}, place, prefix="checkpoint/", replace=True)
    assert names(path) == ["checkpoint/w"]
    with pytest.raises(KeyError, match="there is no checkpoint in generation"):
        load_checkpoint(path)
    assert load_checkpoint(path, "step1")["w"].tolist() == [1, 1]
    save_model(nn.Linear(2, 2), place, replace=True)
    assert names(path) == ["bias", "weight"]
    assert load_checkpoint(path, "step2")["v"].tolist() == [1]


def test_what_other_writers_add_is_seen(path: Path) -> None:
    with stridemap.open(path, "x", durable=False) as store:
        with stridemap.open(path, "r+", durable=False) as other:
            other["theirs"] = 1
        with pytest.raises(ValueError, match="theirs"):
            save_file({"ours": torch.ones(1)}, store)
        assert list(load_file(store)) == ["theirs"]
