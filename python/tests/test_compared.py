"""The table in `docs/python.md` that compares libraries: a test for each row, with each cell."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch
from mappings import mapped_file
from torch import nn

import stridemap
from stridemap.torch import load_checkpoint, load_file, load_model, save_checkpoint, save_file, save_model


def by_torch(value: Any, folder: Path) -> Any:
    torch.save(value, folder / "x.pt")
    return torch.load(folder / "x.pt", mmap=True)


def by_safetensors(tensors: dict[str, torch.Tensor], folder: Path) -> dict[str, torch.Tensor]:
    safetensors.torch.save_file(tensors, folder / "x.safetensors")
    return safetensors.torch.load_file(folder / "x.safetensors")


def by_stridemap(tensors: dict[str, torch.Tensor], folder: Path) -> dict[str, torch.Tensor]:
    save_file(tensors, folder / "x.smap", replace=True)
    return load_file(folder / "x.smap")


def stored(folder: Path) -> int:
    return sum(file.stat().st_size for file in (folder / "x.smap/storages").iterdir())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.b.weight = self.a.weight


def test_tied_weights(tmp_path: Path) -> None:
    state = Tied().state_dict()
    for load in (by_stridemap, by_torch):
        loaded = load(state, tmp_path)
        assert loaded["a.weight"].data_ptr() == loaded["b.weight"].data_ptr()
    with pytest.raises(RuntimeError, match="share memory"):
        by_safetensors(state, tmp_path)
    safetensors.torch.save_model(Tied(), str(tmp_path / "x.safetensors"))
    assert len(safetensors.torch.load_file(tmp_path / "x.safetensors")) == 1


def test_transpose(tmp_path: Path) -> None:
    tensors = {"x": torch.arange(6).view(2, 3).t()}
    assert by_stridemap(tensors, tmp_path)["x"].stride() == by_torch(tensors, tmp_path)["x"].stride() == (1, 3)
    with pytest.raises(ValueError, match="non contiguous"):
        by_safetensors(tensors, tmp_path)


def test_slice_of_a_large_tensor(tmp_path: Path) -> None:
    whole = torch.zeros(1000, 1000)
    by_stridemap({"x": whole[:, :10]}, tmp_path)
    assert 999_000 * 4 < stored(tmp_path) < 1_000_000 * 4
    by_stridemap({"x": whole[:10]}, tmp_path)
    by_safetensors({"x": whole[:10]}, tmp_path)
    by_torch({"x": whole[:10]}, tmp_path)
    assert (tmp_path / "x.safetensors").stat().st_size < 41_000
    assert (tmp_path / "x.pt").stat().st_size > 4_000_000
    with pytest.raises(ValueError, match="non contiguous"):
        by_safetensors({"x": whole[:, :10]}, tmp_path)


def test_expanded_tensor(tmp_path: Path) -> None:
    tensors = {"x": torch.ones(1).expand(1_000_000)}
    assert by_stridemap(tensors, tmp_path)["x"].stride() == by_torch(tensors, tmp_path)["x"].stride() == (0,)
    assert stored(tmp_path) < 1000 and (tmp_path / "x.pt").stat().st_size < 10_000
    with pytest.raises(ValueError, match="non contiguous"):
        by_safetensors(tensors, tmp_path)


def test_state_of_an_optimizer(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    save_checkpoint(tmp_path / "x.smap", "step1", state)
    for loaded in (load_checkpoint(tmp_path / "x.smap"), by_torch(state, tmp_path)):
        assert loaded["param_groups"] == state["param_groups"]
        assert torch.equal(loaded["state"][0]["exp_avg"], state["state"][0]["exp_avg"])
    with pytest.raises((ValueError, TypeError, AttributeError)):
        by_safetensors(state, tmp_path)


def test_unchanged_tensor_of_the_next_checkpoint(tmp_path: Path) -> None:
    state, sizes = {"x": torch.zeros(1_000_000)}, []
    for step in range(2):
        save_checkpoint(tmp_path / "x.smap", str(step), state)
        sizes.append(stored(tmp_path))
    assert sizes[1] - sizes[0] < 10_000
    for load, name in ((by_safetensors, "x.safetensors"), (by_torch, "x.pt")):
        load(state, tmp_path)
        assert (tmp_path / name).stat().st_size > 4_000_000


def test_parameters_of_a_loaded_model(tmp_path: Path) -> None:
    original = nn.Linear(2, 2)
    state = by_torch(original.state_dict(), tmp_path)
    save_model(original, tmp_path / "x.smap")
    safetensors.torch.save_model(original, str(tmp_path / "x.safetensors"))
    for load, is_kept in (
        (lambda model: load_model(model, tmp_path / "x.smap"), True),
        (lambda model: load_model(model, tmp_path / "x.smap", assign=True), False),
        (lambda model: safetensors.torch.load_model(model, tmp_path / "x.safetensors"), True),
        (lambda model: model.load_state_dict(state), True),
        (lambda model: model.load_state_dict(state, assign=True), False),
    ):
        model = nn.Linear(2, 2).half()
        parameter = model.weight
        load(model)
        assert bool(mapped_file(model.weight)) != is_kept
        assert (model.weight is parameter, model.weight.dtype == torch.float16) == (is_kept, is_kept)


def test_model_on_the_device_meta(tmp_path: Path) -> None:
    original = nn.Linear(2, 2)
    state = by_torch(original.state_dict(), tmp_path)
    save_model(original, tmp_path / "x.smap")
    safetensors.torch.save_model(original, str(tmp_path / "x.safetensors"))
    for load, is_loaded in (
        (lambda model: load_model(model, tmp_path / "x.smap"), True),
        (lambda model: safetensors.torch.load_model(model, tmp_path / "x.safetensors"), False),
        (lambda model: model.load_state_dict(state), False),
        (lambda model: model.load_state_dict(state, assign=True), True),
    ):
        with torch.device("meta"):
            model = nn.Linear(2, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load(model)
        assert (model.weight.device.type == "cpu") == is_loaded and (not is_loaded or mapped_file(model.weight))


def test_save_to_a_path_with_other_tensors(tmp_path: Path) -> None:
    for save in (by_stridemap, by_safetensors, by_torch):
        save({"mine": torch.ones(1)}, tmp_path)
    with pytest.raises(stridemap.NameExistsError, match="replace=True"):
        save_file({"x": torch.ones(1)}, tmp_path / "x.smap")
    for load in (by_safetensors, by_torch):
        assert list(load({"x": torch.ones(1)}, tmp_path)) == ["x"]


def test_text_with_the_tensors(tmp_path: Path) -> None:
    tensors, metadata = {"x": torch.ones(1)}, {"format": "pt"}
    save_file(tensors, tmp_path / "x.smap", metadata)
    safetensors.torch.save_file(tensors, tmp_path / "x.safetensors", metadata)
    for file in (stridemap.safe_open(tmp_path / "x.smap"), safetensors.safe_open(tmp_path / "x.safetensors", "pt")):
        assert file.metadata() == metadata
    assert by_torch({**tensors, **metadata}, tmp_path)["format"] == "pt"


def test_one_tensor_of_many(tmp_path: Path) -> None:
    tensors = {"x": torch.arange(6).view(2, 3), "y": torch.ones(1)}
    for load, suffix in ((by_stridemap, ".bin"), (by_safetensors, ".safetensors"), (by_torch, ".pt")):
        loaded = load(tensors, tmp_path)["x"]
        assert loaded[1, 1:].tolist() == [4, 5] and mapped_file(loaded).endswith(suffix)
    for file in (stridemap.safe_open(tmp_path / "x.smap"), safetensors.safe_open(tmp_path / "x.safetensors", "pt")):
        assert file.get_slice("x")[1, 1:].tolist() == [4, 5]


def test_add_a_tensor_to_what_is_saved(tmp_path: Path) -> None:
    by_stridemap({"x": torch.ones(1)}, tmp_path)
    with stridemap.open(tmp_path / "x.smap", "r+") as store:
        store["y"] = torch.zeros(1)
    assert set(load_file(tmp_path / "x.smap")) == {"x", "y"}
    for load in (by_safetensors, by_torch):
        load({"x": torch.ones(1)}, tmp_path)
        assert list(load({"y": torch.ones(1)}, tmp_path)) == ["y"]


def test_write_to_a_loaded_tensor(tmp_path: Path) -> None:
    for load, again in (
        (by_stridemap, lambda: load_file(tmp_path / "x.smap")),
        (by_safetensors, lambda: safetensors.torch.load_file(tmp_path / "x.safetensors")),
        (by_torch, lambda: torch.load(tmp_path / "x.pt", mmap=True)),
    ):
        loaded = load({"x": torch.ones(2)}, tmp_path)
        loaded["x"].zero_()
        assert loaded["x"].tolist() == [0, 0] and again()["x"].tolist() == [1, 1]


def test_bytes_in_memory() -> None:
    tensors = {"x": torch.ones(2)}
    assert stridemap.torch.load(stridemap.torch.save(tensors))["x"].tolist() == [1, 1]
    assert safetensors.torch.load(safetensors.torch.save(tensors))["x"].tolist() == [1, 1]
    torch.save(tensors, buffer := io.BytesIO())
    assert torch.load(io.BytesIO(buffer.getvalue()))["x"].tolist() == [1, 1]
