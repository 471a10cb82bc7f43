"""`save_file` and `save_model` remove nothing unless they are told to, and a prefix ends at its separator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
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


def test_metadata_become_attributes(place: Path | stridemap.Store, path: Path) -> None:
    save_file({"a": torch.ones(2)}, place, {"format": "pt", "step": "1"})
    save_model(nn.Linear(2, 2), place, metadata={"format": "pt"}, prefix="model")
    save_file({"a": torch.zeros(2)}, place, prefix="other.")  # leaves attributes as they are
    with stridemap.open(path) as store:
        assert dict(store.attrs) == {"format": "pt", "step": "1"} and dict(store.attrs_of("model.")) == {"format": "pt"}
    save_model(nn.Linear(2, 2), place, {"format": "new", "epoch": "2"}, prefix="model")
    with pytest.raises(stridemap.NameExistsError, match='it would remove 1 attribute: "epoch"; choose another prefix, or'):
        save_model(nn.Linear(2, 2), place, {"format": "pt"}, prefix="model")
    with pytest.raises(ValueError, match='remove 1 tensor: "model.bias" and 2 attributes: "epoch", "format"; choose'):
        save_file({"weight": torch.ones(1)}, place, {}, prefix="model")
    with stridemap.open(path) as store:
        assert dict(store.attrs_of("model.")) == {"format": "new", "epoch": "2"}
    save_file({"weight": torch.ones(1)}, place, {"a": "b"}, prefix="model", replace=True)
    with pytest.raises(TypeError, match="metadata are texts, and the value of 'step' is of type int"):
        save_file({"weight": torch.zeros(1)}, place, {"step": 1}, prefix="model", replace=True)  # type: ignore[dict-item]
    with stridemap.open(path) as store:
        assert dict(store.attrs_of("model.")) == {"a": "b"} and store["model.weight"].item() == 1
        assert dict(store.attrs) == {"format": "pt", "step": "1"}


def test_arrays_are_saved_like_tensors(place: Path | stridemap.Store, path: Path) -> None:
    import stridemap.numpy

    stridemap.numpy.save_file({"a": np.arange(3), "b": np.ones((2, 2))}, place, {"format": "np"})
    with pytest.raises(stridemap.NameExistsError, match='save_file to .*: it would remove 1 tensor: "b"'):
        stridemap.numpy.save_file({"a": np.zeros(3)}, place)
    stridemap.numpy.save_file({"a": np.zeros(3)}, place, prefix="other")
    assert stridemap.numpy.load_file(path, prefix="other").keys() == {"a"}
    loaded = stridemap.numpy.load_file(place)
    assert loaded.keys() == {"a", "b", "other.a"} and loaded["a"].tolist() == [0, 1, 2]
    assert not loaded["a"].flags.writeable and load_file(path)["b"].tolist() == [[1, 1], [1, 1]]
