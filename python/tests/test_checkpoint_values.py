"""What PyTorch users have in a checkpoint comes back equal and of its exact type, or is refused by its place and name."""

from __future__ import annotations

import collections
import copy
import dataclasses
import datetime
import decimal
import enum
import json
import pathlib
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch

import stridemap
from stridemap.torch import load_checkpoint, save_checkpoint


def assert_same(found: Any, expected: Any, where: str = "") -> None:
    """Assert that two values are equal and have the same type, and so have their parts. A NaN is equal to itself."""
    assert type(found) is type(expected), where
    if isinstance(expected, torch.Tensor):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), where
        assert np.array_equal(*(stridemap._arrays.elements_of(tensor, "compare")[2] for tensor in (found, expected))), where
        assert not isinstance(expected, torch.nn.Parameter) or found.requires_grad == expected.requires_grad
    elif isinstance(expected, np.ndarray | np.generic):
        assert (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes()), where
    elif isinstance(expected, dict):
        assert len(found) == len(expected), where
        for (key, value), (expected_key, expected_value) in zip(found.items(), expected.items(), strict=True):
            assert_same(key, expected_key, f"{where}: key")
            assert_same(value, expected_value, f"{where}.{key}")
        assert getattr(found, "default_factory", None) is getattr(expected, "default_factory", None)
        assert_same(getattr(found, "_metadata", None), getattr(expected, "_metadata", None), f"{where}._metadata")
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), where
        for index, (value, expected_value) in enumerate(zip(found, expected, strict=True)):
            assert_same(value, expected_value, f"{where}.{index}")
    else:
        assert repr(found) == repr(expected) if isinstance(expected, float | complex) else found == expected, where


NAN = float("nan")
VALUES: dict[str, Any] = {
    "none": None,
    "bools": [True, False],
    "ints": [0, -1, 2**63 - 1, -(2**63), 2**127 + 1, -(10**5000)],
    "floats": [0.1, -0.0, 5e-324, float("inf"), -float("inf"), NAN],
    "complex": [complex(1, -0.0), complex(NAN, float("inf"))],
    "texts": ["", "\x00", "ü\ud800", "tensor"],
    "bytes": [b"", bytes(range(256)), bytearray(b"x")],
    "paths": [Path("/a/b"), pathlib.PurePosixPath("a"), pathlib.PureWindowsPath("C:\\a")],
    "containers": [(), [], {}, set(), frozenset(), ([()],), {"tensor": "x", "dict": []}],
    "sets": [{1, "1", (2, None)}, frozenset({b"x", 1.5})],
    "keys": {None: 1, True: 2, 2: 3, 0.5: 4, "2": 5, (1, "a"): 6, b"2": 7, torch.float32: 8, frozenset({1}): 9},
    "dicts": [
        collections.OrderedDict([("b", 1), ("a", torch.ones(1))]),
        collections.defaultdict(list, {"x": [1]}),
        collections.defaultdict(None, {1: 2}),
        collections.Counter({30: 1, 80: 2}),
    ],
    "torch": [torch.Size([2, 3]), torch.bfloat16, torch.device("cuda:1"), torch.device("cpu")],
    "parameters": [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2), requires_grad=False)],
    "scalars": [
        *(kind(1) for kind in (np.bool_, np.int8, np.uint64, np.float16, np.float64, np.complex64)),
        np.float32("nan"), np.str_("ü"), np.str_(""), np.bytes_(b"x"), np.datetime64("2026-01-02"), np.timedelta64(3, "ms"),
        np.float64(1).astype(">f8"), ml_dtypes.bfloat16(1.5),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_value_comes_back_of_its_exact_type(name: str, store: stridemap.Store) -> None:
    save_checkpoint(store, "x", {"value": VALUES[name]})
    assert_same(load_checkpoint(store), {"value": VALUES[name]})
    json.loads(store["checkpoint/description.json"].numpy().tobytes(), parse_constant=lambda text: pytest.fail(text))


ARRAYS = [
    *(np.arange(6).reshape(2, 3).astype(dtype) for dtype in "?bBhHiIqQefdFD"),
    *(np.arange(6).reshape(2, 3).astype(dtype) for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn)),
    np.array(1.5), np.empty((0, 3)), np.array(ml_dtypes.bfloat16(2)),
    np.arange(12).reshape(3, 4).T[::2], np.arange(12)[::-1], np.broadcast_to(np.float32(1), (2, 3)),
    np.zeros(4, [("a", "i1"), ("b", "<i4")])["b"],
]  # fmt: skip


def test_arrays_come_back_and_can_be_written(store: stridemap.Store) -> None:
    read_only = np.arange(5)
    read_only.flags.writeable = False
    expected = [*ARRAYS, read_only]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_checkpoint(store, "1", expected)
    assert_same(load_checkpoint(store), expected)
    ids = [store[f"checkpoint/{index}"].storage_id for index in range(len(expected))]
    save_checkpoint(store, "2", expected)
    assert [store[f"checkpoint/{index}"].storage_id for index in range(len(expected))] == ids
    loaded = load_checkpoint(store)
    loaded[0][:] = True
    assert loaded[0].all() and not load_checkpoint(store)[0].all()


def test_array_and_tensor_that_share_memory_share_it_again(store: stridemap.Store) -> None:
    tensor = torch.zeros(2, 1000)
    save_checkpoint(store, "x", {"tensor": tensor, "array": tensor.numpy()[1], "other": np.zeros(1000, np.float32)})
    loaded = load_checkpoint(store)
    loaded["tensor"][1, 5] = 7
    assert loaded["array"][5] == 7 and loaded["other"][5] == 0


class Point(NamedTuple):
    x: int


class Colour(enum.IntEnum):
    RED = 1


@dataclasses.dataclass
class Settings:
    rate: float = 0.1


class Own(torch.Tensor):
    pass


class Named(str):
    pass


REFUSED: list[tuple[Any, str, str]] = [
    (object(), "object", "convert it to a plain value or a tensor"),
    (Point(1), "test_checkpoint_values.Point", "save value._asdict()"),
    (torch.ones(2, 2).max(0), "torch.return_types.max", "save tuple(value)"),
    (Colour.RED, "test_checkpoint_values.Colour", "save value.value"),
    (Settings(), "test_checkpoint_values.Settings", "save dataclasses.asdict(value)"),
    (Named("x"), "test_checkpoint_values.Named", "save str(value)"),
    (torch.ones(1).as_subclass(Own), "test_checkpoint_values.Own", "save value.as_subclass(torch.Tensor)"),
    (torch.nn.Linear(1, 1), "torch.nn.modules.linear.Linear", "save value.state_dict()"),
    (np.random.default_rng(), "numpy.random._generator.Generator", "save value.bit_generator.state"),
    (torch.Generator(), "torch._C.Generator", "save value.get_state()"),
    (random.Random(), "random.Random", "save value.getstate()"),
    (datetime.date(2026, 1, 2), "datetime.date", "save value.isoformat()"),
    (decimal.Decimal(1), "decimal.Decimal", "convert it"),
    (copy.copy, "function", "save its name"),
    (Point, "type", "save its name"),
    (np.ma.masked_array([1], [True]), "numpy.ma.MaskedArray", "save value.filled(), and value.mask beside it"),
    (np.array([None]), "numpy.ndarray of dtype |O", "save value.tolist()"),
    (np.array(["x"]), "numpy.ndarray of dtype <U1", "save value.tolist()"),
    (np.array(["2026"], "M8[s]"), "numpy.ndarray of dtype <M8[s]", "save value.view('int64')"),
    (np.zeros(1, ">f4"), "numpy.ndarray of dtype >f4", "save value.astype"),
    (np.zeros(1, np.longdouble), "numpy.ndarray of dtype <f16", "save value.astype('float64')"),
    (np.zeros(1, [("x", "f4")]), "numpy.ndarray of dtype [('x', '<f4')]", "save each field"),
    (np.zeros(1, [("x", "f4")])[0], "numpy.void", "convert it"),
    (collections.defaultdict(Point), "a defaultdict of Point", "save dict(value)"),
    (collections.ChainMap(), "collections.ChainMap", "convert it"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "kind", "advice"), REFUSED, ids=lambda part: part if isinstance(part, str) else "")
def test_what_a_checkpoint_cannot_hold_is_named_with_a_way_out(value: Any, kind: str, advice: str, store: stridemap.Store) -> None:
    with pytest.raises(TypeError) as raised:
        save_checkpoint(store, "c", {"a": [0, {"b": value}]})
    message = str(raised.value).replace("numpy.ma.core.", "numpy.ma.")
    assert message.startswith("a.1.b: a checkpoint cannot hold ") and advice in message
    assert kind in message or kind in message.replace("builtin_function_or_method", "function")
    assert store.tags() == []


def test_other_refusals(store: stridemap.Store) -> None:
    knot: list[Any] = []
    knot.append([knot])
    with pytest.raises(ValueError, match="^a.0.0: a checkpoint cannot hold what contains itself"):
        save_checkpoint(store, "c", {"a": knot})
    with pytest.raises(TypeError, match="^a: a checkpoint cannot hold a tensor as a key, or in a set"):
        save_checkpoint(store, "c", {"a": {torch.ones(1)}})
    with pytest.raises(TypeError, match="^a: its layout is torch.sparse_coo; save to_dense"):
        save_checkpoint(store, "c", {"a": torch.eye(2).to_sparse()})
    odd = collections.OrderedDict()
    odd.version = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"^a: .* attributes of its own: \['version'\]; save dict\(value\)"):
        save_checkpoint(store, "c", {"a": odd})
    with pytest.raises(TypeError, match="name of a checkpoint"):
        save_checkpoint(store, 5, {})  # type: ignore[arg-type]
    # What is there twice does not contain itself.
    save_checkpoint(store, "c", [part := [1], part])


@pytest.mark.parametrize(
    "description",
    [
        {"function": "os.system"},
        {"defaultdict": ["system", []]},
        {"scalar": ["object", "AAAAAAAAAAA="]},
        {"scalar": ["finfo", "AAAAAAAAAAA="]},
        {"torch.dtype": "load"},
        {"torch.dtype": "os"},
        {"tensor": "other"},
        {},
    ],
)
def test_description_of_a_stranger_runs_nothing(description: Any, store: stridemap.Store) -> None:
    text = json.dumps({"stridemap checkpoint": description}).encode()
    store["checkpoint/description.json"] = np.frombuffer(text, np.uint8)
    with pytest.raises((stridemap.DamagedError, KeyError)):
        load_checkpoint(store)


def optimizers(parameters: Any) -> list[torch.optim.Optimizer]:
    found = list(parameters)
    return [
        torch.optim.AdamW(found, 0.01, amsgrad=True),
        torch.optim.SGD(found, 0.01, momentum=0.9, nesterov=True),
        torch.optim.Adam(found, torch.tensor(0.01)),
        torch.optim.RMSprop(found, 0.01, centered=True),
        torch.optim.Adagrad(found, 0.01),
        torch.optim.LBFGS(found, 0.01),
    ]


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "LambdaLR": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
    "MultiStepLR": lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 1, 3]),
    "CosineAnnealingWarmRestarts": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2),
    "OneCycleLR": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 20),
    "CyclicLR": lambda optimizer: torch.optim.lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, mode="exp_range"),
    "SequentialLR": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [torch.optim.lr_scheduler.ConstantLR(optimizer), torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)],
        [2],
    ),
    "ReduceLROnPlateau": lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_state_of_a_scheduler_comes_back(name: str, store: stridemap.Store) -> None:
    scheduler = SCHEDULERS[name](torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1, momentum=0.5))
    scheduler.optimizer.step() if hasattr(scheduler, "optimizer") else None
    scheduler.step(*([0.5] if name == "ReduceLROnPlateau" else []))
    expected = copy.deepcopy(scheduler.state_dict())
    save_checkpoint(store, "x", expected)
    assert_same(load_checkpoint(store), expected)


def test_states_of_models_optimizers_scalers_and_generators_come_back(store: stridemap.Store) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.MultiheadAttention(4, 2))
    for optimizer in optimizers(model[:2].parameters()):
        for _ in range(2):
            model[:2](torch.randn(5, 3)).square().sum().backward()
            optimizer.step(lambda: torch.tensor(1.0)) if isinstance(optimizer, torch.optim.LBFGS) else optimizer.step()
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": torch.amp.GradScaler("cpu").state_dict(),
            "random": [torch.get_rng_state(), np.random.get_state(), np.random.get_state(legacy=False), random.getstate()],
            "generators": [kind().state for kind in (np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64)],
        }
        save_checkpoint(store, "x", state, replace=True)
        assert_same(load_checkpoint(store), state)
    assert load_checkpoint(store)["model"]._metadata["1"] == {"version": 2}


class Run:
    """A training run with all that its losses depend on."""

    def __init__(self, optimizer: str) -> None:
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        self.generator = np.random.default_rng(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 1))
        of = {"AdamW": lambda p: torch.optim.AdamW(p, 0.01), "SGD": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9)}
        self.optimizer = of[optimizer](self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda epoch: 0.9**epoch)
        self.scaler = torch.amp.GradScaler("cpu", growth_interval=2)

    def losses(self, steps: int) -> list[float]:
        found = []
        for _ in range(steps):
            scale = random.random() + np.random.rand() + self.generator.random()
            loss = self.model(torch.randn(4, 8) * scale).square().mean()
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()
            found.append(loss.item())
        return found

    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler, "scaler": self.scaler}

    def state(self) -> dict[str, Any]:
        states = {name: part.state_dict() for name, part in self.parts().items()}
        numbers = {"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "python": random.getstate()}
        return {**states, "random": {**numbers, "generator": self.generator.bit_generator.state}}

    def load(self, state: dict[str, Any]) -> None:
        for name, part in self.parts().items():
            part.load_state_dict(state[name])
        torch.set_rng_state(state["random"]["torch"])
        np.random.set_state(state["random"]["numpy"])
        random.setstate(state["random"]["python"])
        self.generator.bit_generator.state = state["random"]["generator"]


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_run_that_is_resumed_has_the_losses_of_one_that_was_not_interrupted(optimizer: str, store: stridemap.Store) -> None:
    run = Run(optimizer)
    run.losses(5)
    save_checkpoint(store, "5", run.state())
    expected = run.losses(10)
    resumed = Run(optimizer)
    resumed.losses(2)
    resumed.load(load_checkpoint(store, "5"))
    assert resumed.losses(10) == expected and len(set(expected)) == 10


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (np.longdouble(1), "save float"),
        (np.clongdouble(1), "save float"),
        (np.ma.masked_array([1, 2], [True, False]), "save value.filled"),
        (torch.nn.Linear, "save its name"),
    ],
)
def test_way_out_keeps_the_value(value: Any, advice: str, store: stridemap.Store) -> None:
    with pytest.raises(TypeError, match=f"a: a checkpoint cannot hold .*{advice}"):
        save_checkpoint(store, "x", {"a": value})


def test_path_and_name_in_the_wrong_order(store: stridemap.Store) -> None:
    with pytest.raises(ValueError, match="'run.smap' is the name of a checkpoint here, and looks like a store; the store comes first"):
        save_checkpoint(store, "run.smap", {})
