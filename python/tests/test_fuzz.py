"""Random calls with random arguments: each returns, or raises an exception that is not of the interpreter.

STRIDEMAP_FUZZ_SECONDS is how long, and STRIDEMAP_FUZZ_SEED repeats a run. The calls are made in a process of their own:
its exit code shows a crash.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import random
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import stridemap

SEED = int(os.environ.get("STRIDEMAP_FUZZ_SEED", random.SystemRandom().randrange(1 << 32)))
# The first three wait for other processes, without a limit of time unless one is given.
NOT_CALLED = ("watch", "wait_for_change", "wait", "close", "verify", "_abc_impl", "__delitem__")
DTYPES = ["bool", "uint8", "int16", "float32", "float64", "complex64", "bfloat16", "float4_e2m1fn_x2", "no", ""]


def argument(draw: random.Random, store: stridemap.Store, depth: int = 0) -> Any:
    """Return a random value: mostly small numbers, names and shapes."""
    match draw.randrange(14 if depth < 2 else 9):
        case 0 | 1 | 2:
            return draw.randrange(-4, 9)
        case 3:
            return draw.choice([1 << 62, -(1 << 63), 1 << 70, 0, None, True, 1.5, float("nan"), ...])
        case 4:
            return draw.choice(["a", "b", "c", "", "\0", "x" * 300, "g.", "g.a", "g/", ".2f", "json:[", "json:[1]"])
        case 5:
            return draw.choice(DTYPES)
        case 6:
            return slice(*(draw.choice([None, draw.randrange(-5, 6)]) for _ in range(3)))
        case 7:
            return np.arange(draw.randrange(7), dtype=draw.choice(["i4", "f4", "?", ">f8", "c8", "O", "S1"]))
        case 8:
            return draw.choice(["sealed", "mutable", "live"])
        case 9 | 10:
            return tuple(argument(draw, store, depth + 1) for _ in range(draw.randrange(4)))
        case 11:
            return draw.choice([[draw.randrange(-1, 5) for _ in range(draw.randrange(4))], [True, False], {"a": [1.5]}])
        case 12:
            names = list(store)
            return store[draw.choice(names)] if names else None
        case _:
            return np.zeros([draw.randrange(4) for _ in range(draw.randrange(3))])


def act(draw: random.Random, store: stridemap.Store, objects: list[Any]) -> None:
    """Call a random method, and sometimes keep what it returns."""
    target = draw.choice(objects)
    names = [name for name in dir(type(target)) if not name.startswith("__")]
    extra = ["__getitem__", "__setitem__", "__delitem__", "__len__", "__repr__", "__reduce__", "__array__"]
    if isinstance(target, stridemap.Tensor | stridemap.Store | stridemap.Group):
        names += extra * 3
    if isinstance(target, stridemap.Tensor):
        names += ["__eq__", "__lt__", "__ne__", "__float__", "__int__", "__complex__", "__index__", "__format__", "__bool__"]
        names += ["sum", "mean", "min", "max", "std"]
    if (name := draw.choice(names)) in NOT_CALLED:
        return
    value = getattr(target, name)
    if callable(value):
        count = draw.randrange(4)
        value = value(*(argument(draw, store) for _ in range(count)))
    if isinstance(value, stridemap.Lock):
        with value as array:
            np.asarray(array)[...] = 1
        return
    if isinstance(value, np.ndarray):
        value.sum()
        if value.flags.writeable and value.base is not None and draw.random() < 0.5:
            value[...] = 0
    if isinstance(value, stridemap.Tensor):
        if value.size < 1 << 16:
            np.asarray(value).tobytes()
            repr(value)
        objects.append(value)
    elif isinstance(value, list) and value and isinstance(value[0], stridemap.Tensor):
        objects.extend(value[:3])
    elif hasattr(value, "__class__") and type(value).__module__.startswith("stridemap"):
        objects.append(value)


def run(path: str, seconds: float) -> None:
    import torch  # noqa: F401  # The first call that needs it would take a large part of the time.

    # A call that never returns ends the process, and its lines are printed.
    faulthandler.dump_traceback_later(seconds + 120, exit=True)
    draw = random.Random(SEED)
    store = stridemap.open(path, "x", durable=False, timeout=0.1)
    until, calls, refused = time.monotonic() + seconds, 0, 0
    objects: list[Any] = [store]
    while time.monotonic() < until:
        if not list(store) or calls % 500 == 0:
            # A transaction that was kept may hold the store.
            for kept in objects:
                with suppress(Exception):
                    kept.abort()
            objects = [store]
            gc.collect()
            store["a"] = np.arange(24.0).reshape(2, 3, 4)
            store["g.a"], store["g.one"], store.attrs["k"] = np.arange(6, dtype=np.uint8), 1, "json:[1]"
            store.save("b", np.arange(12), kind="mutable")
            store.save("c", np.arange(12), kind="live")
            objects = [store, store["a"], store["b"], store["c"], store["c"].live(), store.snapshot()]
            objects += [store.group("g."), store["g.a"], store["g.one"], store.attrs, store.snapshot().group("g.")]
        try:
            act(draw, store, objects)
        except Exception:
            refused += 1
        calls += 1
        del objects[40:]
    assert store.verify() == []
    print(f"{calls} calls, {refused} refused")


def test_random_calls_crash_nothing(tmp_path: Path) -> None:
    seconds = os.environ.get("STRIDEMAP_FUZZ_SECONDS", "3")
    command = [sys.executable, __file__, str(tmp_path / "x.smap"), seconds]
    environment = {**os.environ, "STRIDEMAP_FUZZ_SEED": str(SEED)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"seed {SEED}, exit {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    calls, _, refused, _ = done.stdout.split()
    assert int(calls) > 300 and int(refused) < int(calls), done.stdout


if __name__ == "__main__":
    run(sys.argv[1], float(sys.argv[2]))
