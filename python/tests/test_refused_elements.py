"""What cannot be saved as it is raises an exception that names the tensor and the way out, and nothing is saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

import stridemap
from stridemap.torch import save_checkpoint, save_file, save_model

masked = np.ma.masked_array([1.0, 2.0, 3.0], [False, True, False])


class HasArray:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.array


MASKED = {
    "array": masked, "no element is masked": np.ma.masked_array([1, 2]), "list": [masked, masked],
    "nested list": [[[1.0, 2.0, 3.0]], (masked,)], "element": [1.0, np.ma.masked], "view": masked[::2],
    "records": np.ma.masked_array([(1, 2.0)], mask=[(True, False)], dtype=[("a", "i4"), ("b", "f4")]),
    "matrix of bools": np.ma.masked_array(np.eye(2, dtype=bool), True), "array of Dask": da.from_array(masked, chunks=2),
    "object": HasArray(masked), "objects": [HasArray(masked)],
}  # fmt: skip


@pytest.mark.parametrize("kind", MASKED)
def test_mask_is_not_dropped(kind: str, store: stridemap.Store) -> None:
    with pytest.raises(ValueError, match=r'save "x": the mask of a masked array cannot be saved; save array.filled'):
        store["x"] = MASKED[kind]
    store.create_growable("log", (3,), "float64")
    with pytest.raises(ValueError, match='append to "log": the mask'):
        store.append("log", MASKED[kind])
    with pytest.raises(ValueError, match='save "y"'):
        store.update({"x": 1, "y": MASKED[kind]})
    assert list(store) == ["log"] and len(store["log"]) == 0
    store["x"] = masked.filled(-1)
    assert store["x"].numpy().tolist() == [1, -1, 3]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.array([1, None]), "object"),
        ([1, None], "object"),
        (HasArray(np.array([1, "NA"], object)), "object"),
        (np.zeros(2, [("a", "i4"), ("b", "f4")]), "save each field"),
        (np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f4")]), "save each field"),
        (np.zeros(2, "V3"), "V3"),
        (np.zeros(2, "M8[s]"), "datetime64"),
        (np.array(["a"]), "<U1"),
        (np.zeros(2, np.longdouble), "float128|float96|longdouble"),
    ],
)
def test_elements_that_are_not_numbers_are_named(value: Any, said: str, store: stridemap.Store) -> None:
    with pytest.raises(TypeError, match=f'^save "some.name": elements of dtype .*({said})'):
        store["some.name"] = value
    assert list(store) == []


def freed() -> torch.Tensor:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.quint8)


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(3)


TENSORS: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "wrapper": (lambda: TwoTensor(torch.ones(2), torch.ones(2)), "TwoTensor has no elements of its own"),
    "masked": (lambda: torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False])), "MaskedTensor"),
    "sparse": (lambda: torch.eye(2).to_sparse(), "sparse_coo; save to_dense"),
    "csr": (lambda: torch.eye(2).to_sparse_csr(), "sparse_csr; save to_dense"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "unbind"),
    "jagged": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "unbind"),
    "meta": (lambda: torch.ones(2, device="meta"), "meta"),
    "freed": (freed, "its storage was freed"),
    "lazy": (lambda: nn.LazyLinear(3).weight, "call the model once"),
    "quantized": (quantized, "dequantize"),
    "complex32": (lambda: torch.ones(2, dtype=torch.complex32), "elements of dtype complex32"),
    "bits": (lambda: torch.ones(2, dtype=torch.uint8).view(torch.bits8), "elements of dtype bits8"),
    "fake": (fake, "FakeTensor has no elements"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", TENSORS)
def test_tensors_without_elements_are_named(kind: str, store: stridemap.Store) -> None:
    make, said = TENSORS[kind]
    value = make()
    module = nn.Module()
    module.layer = nn.ParameterDict() if kind != "lazy" else nn.LazyLinear(3, bias=False)
    if kind != "lazy":
        module.layer.register_buffer("weight", value)
    for save in (
        lambda: store.__setitem__("layer.weight", value),
        lambda: store.update({"a": torch.ones(1), "layer.weight": value}),
        lambda: save_file({"a": torch.ones(1), "layer.weight": value}, store),
        lambda: save_model(module, store),
        lambda: save_checkpoint(store, "c", {"model": {"a": torch.ones(1), "layer.weight": value}}),
    ):
        with pytest.raises(TypeError, match=r'save "layer\.weight"|^model\.layer\.weight: ') as caught:
            save()
        assert said in str(caught.value)
        assert list(store) == []


def test_tensors_of_a_subclass_with_elements_are_saved(store: stridemap.Store) -> None:
    class Named(torch.Tensor):
        pass

    named = torch.arange(6.0).view(2, 3).as_subclass(Named)
    save_file({"x": named, "row": named[1], "parameter": nn.Parameter(torch.ones(2)), "empty": named[:0]}, store)
    store["y"] = named.t()
    assert store["x"].numpy().tolist() == [[0, 1, 2], [3, 4, 5]] and store["row"].shares_storage(store["x"])
    assert store["y"].shape == (3, 2) and store["empty"].shape == (0, 3)


def test_keys_that_are_not_names_are_named(store: stridemap.Store) -> None:
    with pytest.raises(TypeError, match="a str, not int: 1"):
        save_file({1: torch.ones(1)}, store)  # type: ignore[dict-item]
    with pytest.raises(TypeError, match='save "w": it is not a tensor but list'):
        save_file({"w": [1.0]}, store)  # type: ignore[dict-item]
