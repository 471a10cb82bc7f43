#!/usr/bin/env python3
"""Writes a second corpus of chains of views with PyTorch's results, like make_torch_views.py.

usage: make_torch_more_views.py OUT.jsonl CASES SEED   (needs torch 2.15 and numpy)

It has the operations that the first corpus lacks, deeper chains, ranks up to 7 and sizes of zero. The lines differ as
follows: the chain may end in a different dtype ("dtype"), and "bytes" is then its elements' bytes, in hexadecimal; a
step has its dtype if that changed. A chain whose first step is view_dtype to complex64 works on complex numbers.
Lines with "engine": "numpy" hold sliding_window_view, expand (broadcast_to), transpose (swapaxes) and movedim (moveaxis) by
NumPy.
"""
import json, random, sys, warnings
import numpy as np, torch
import make_torch_views as first
from make_torch_views import random_dim, factor, shape_for
warnings.filterwarnings("ignore")

MOST_ELEMENTS, MOST_AXES = 45, 7
DTYPES = {name: getattr(torch, name) for name in
          "uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128 uint16 uint32 uint64".split()}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
NEW = ["movedim", "squeeze", "view_dtype", "view_dtype", "unflatten", "split", "tensor_split", "view_as_real",
       "view_as_complex", "real", "imag", "as_strided"]


def state(t):
    return {"size": list(t.size()), "stride": list(t.stride()), "offset": t.storage_offset()}


def some_dims(r, n):
    dims = r.sample(range(n), r.randrange(0, n + 1)) if n else []
    dims = [d - n if r.random() < .3 else d for d in dims]
    if dims and r.random() < .06:
        dims[0] = r.choice([n, dims[-1]])
    return dims


def cuts(r, n):
    """A number of parts, or a list of positions."""
    if r.random() < .5:
        return r.choice([d for d in range(1, n + 1) if n % d == 0] or [1]) + (r.random() < .15)
    return [r.randrange(-n - 1, n + 2) for _ in range(r.randrange(0, 4))]


def sizes(r, n):
    """Sizes of parts that mostly add up to n."""
    out = []
    while sum(out) < n:
        out.append(r.randrange(0, n - sum(out) + 1) or 1)
    if r.random() < .1:
        out.append(r.choice([0, 1]))
    return out or [0]


def propose(r, t):
    n = t.dim()
    d = lambda: random_dim(r, n)
    size = lambda k: t.size(k) if n and -n <= k < n else 3
    if r.random() < .45:
        return first.propose(r, t)
    op = r.choice(NEW)
    if n and size(-1) == 2 and t.dtype in (torch.float32, torch.float64) and r.random() < .4:
        op = "view_as_complex"
    if op in ("view_as_real", "imag", "view_as_complex") and t.dtype == torch.int64 and r.random() < .8:
        op = "view_dtype"
    if op == "movedim":
        source, destination = some_dims(r, n), some_dims(r, n)
        k = min(len(source), len(destination)) if r.random() > .06 else 7
        return op, {"source": source[:k], "destination": destination[:k]}
    if op == "squeeze":
        return op, {"dim": some_dims(r, n)}
    if op == "view_dtype":
        return op, {"dtype": r.choice(list(DTYPES))}
    if op in ("view_as_real", "view_as_complex", "real", "imag"):
        return op, {}
    if op == "unflatten":
        k = d(); s = factor(r, size(k)) or [1]
        s[r.randrange(len(s))] = -1
        return op, {"dim": k, "sizes": s}
    if op == "split":
        k = d(); return op, {"split_size": sizes(r, size(k)), "dim": k, "index": r.randrange(0, 3)}
    if op == "tensor_split":
        k = d(); return op, {"parts": cuts(r, size(k)), "dim": k, "index": r.randrange(0, 3)}
    if op == "as_strided":
        k = r.randrange(0, 4)
        s = [r.randrange(1, 4) for _ in range(k)]
        far = 10_000 if r.random() < .1 else 0
        return op, {"size": s, "stride": [r.randrange(0, 4) for _ in range(k)], "offset": far + r.randrange(0, 4)}
    raise AssertionError(op)


def apply(t, op, a):
    if op == "squeeze" and isinstance(a["dim"], list): return t.squeeze(tuple(a["dim"]))
    if op == "view_dtype": return t.view(DTYPES[a["dtype"]])
    if op == "view_as_real": return torch.view_as_real(t)
    if op == "view_as_complex": return torch.view_as_complex(t)
    if op == "real": return t.real
    if op == "imag": return t.imag
    return first.apply(t, op, a)


def some_size(r):
    size = []
    for _ in range(r.choice([0, 1, 2, 3, 4, 5, 6, 7])):
        size.append(r.choice([1, 1, 2, 2, 3, 4, 5, 6, 8]))
        if np.prod(size) > MOST_ELEMENTS: size.pop()
    if r.random() < .06 and size: size[r.randrange(len(size))] = 0
    return size


def torch_case(r):
    size = some_size(r)
    numel = int(np.prod(size)) if size else 1
    t = torch.arange(numel, dtype=torch.int64).reshape(size); base = t
    steps, shared = [], True
    wanted = 1 + r.randrange(12)
    for attempt in range(3 * wanted):
        if len(steps) == wanted: break
        op, a = ("view_dtype", {"dtype": "complex64"}) if not steps and r.random() < .3 else propose(r, t)
        try:
            u = apply(t, op, a)
        except (RuntimeError, IndexError, ValueError, TypeError):
            # A chain of mostly refusals tests little. The offset of a view without elements is specific to PyTorch.
            if r.random() < .5 and (t.numel() or op not in ("view_dtype", "view_as_complex")): steps.append({"op": op, "args": a, "refused": True})
            continue
        if u.numel() > 2 * MOST_ELEMENTS or u.dim() > MOST_AXES or u.dtype not in NAMES: continue
        if u.numel() == 0 and r.random() < .7: continue
        step = {"op": op, "args": a, **state(u), "is_contiguous": u.is_contiguous()}
        if u.dtype != t.dtype: step["dtype"] = NAMES[u.dtype]
        if u.numel() and t.numel() and u.untyped_storage().data_ptr() != t.untyped_storage().data_ptr():
            step["copied"] = True; shared = False
        steps.append(step); t = u
    end = {"engine": "torch", "storage_len": numel, "base": state(base), "steps": steps, "shared": shared,
           "is_contiguous": t.is_contiguous()}
    if t.dtype == torch.int64:
        return {**end, "values": t.reshape(-1).tolist()}
    flat = t.clone(memory_format=torch.contiguous_format).reshape(-1)
    return {**end, "dtype": NAMES[t.dtype], "bytes": flat.view(torch.uint8).numpy().tobytes().hex() if flat.numel() else ""}


def numpy_case(r):
    size = [max(n, 1) for n in some_size(r)] or [4]
    n = int(np.prod(size)); base = np.arange(n, dtype=np.int64); a = base.reshape(size); origin = base.__array_interface__["data"][0]
    st = lambda x: {"size": list(x.shape), "stride": [s // 8 for s in x.strides],
                    "offset": (x.__array_interface__["data"][0] - origin) // 8}
    start, steps = st(a), []
    for _ in range(r.randrange(1, 8)):
        if a.ndim == 0 or a.size == 0: break
        op = r.choice(["sliding_window_view", "sliding_window_view", "slice", "transpose", "movedim", "expand"])
        k = r.randrange(a.ndim)
        if op == "sliding_window_view":
            dims = [r.randrange(-a.ndim, a.ndim) for _ in range(r.randrange(1, 3))]
            args = {"window": [r.randrange(1, a.shape[d] + 1 + (r.random() < .06)) for d in dims], "dim": dims}
            call = lambda: np.lib.stride_tricks.sliding_window_view(a, tuple(args["window"]), axis=tuple(dims))
        elif op == "slice":
            args = {"dim": k, "start": r.choice([None, 0, 1]), "end": None, "step": r.choice([1, 2])}
            call = lambda: a[(slice(None),) * k + (slice(args["start"], None, args["step"]),)]
        elif op == "transpose":
            args = {"dim0": k, "dim1": r.randrange(-a.ndim, a.ndim)}; call = lambda: np.swapaxes(a, k, args["dim1"])
        elif op == "movedim":
            args = {"source": k, "destination": r.randrange(-a.ndim, a.ndim)}
            call = lambda: np.moveaxis(a, k, args["destination"])
        else:
            s = [r.choice([2, 3]) if x == 1 else x for x in a.shape]
            args = {"size": [2] * (r.random() < .4) + s}
            call = lambda: np.broadcast_to(a, args["size"])
        try:
            b = call()
        except ValueError:
            steps.append({"op": op, "args": args, "refused": True}); continue
        if b.size == 0 or b.size > 2 * MOST_ELEMENTS or b.ndim > MOST_AXES: continue
        steps.append({"op": op, "args": args, **st(b), "is_contiguous": bool(b.flags.c_contiguous)}); a = b
    return {"engine": "numpy", "storage_len": n, "base": start, "steps": steps, "shared": True,
            "is_contiguous": bool(a.flags.c_contiguous), "values": a.reshape(-1).tolist()}


if __name__ == "__main__":
    out, cases, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    r = random.Random(seed)
    with open(out, "w") as f:
        for i in range(cases):
            f.write(json.dumps(numpy_case(r) if i % 8 == 7 else torch_case(r), separators=(",", ":")) + "\n")
