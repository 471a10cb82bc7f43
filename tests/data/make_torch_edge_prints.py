#!/usr/bin/env python3
"""Writes PyTorch's output at the limits of its print modes: make_torch_edge_prints.py OUT.jsonl SEED   (needs torch)

The fields are those of make_torch_prints.py. It covers each float dtype, including the 8-bit ones, with values near the
bounds of scientific notation, ties, only special values or random bits; complex numbers of two such parts; integers of
random bits; up to six dimensions; and sizes without elements.
"""
import base64, json, random, sys
import torch

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2,
          torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu]
INTS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64]
COMPLEX = [torch.complex64, torch.complex128]
SHAPES = [[], [1], [7], [23], [2, 9], [3, 1, 4], [2, 1, 1, 5], [1, 2, 1, 2, 3], [1, 2, 1, 1, 3, 2]]
BOUNDS = [.99995, .00005, .00015, 1e-4, 9.9e-5, 1., 1000., 1001., 999.99996, 1e8, 1.0001e8, 100005000., 65504., 1e-45, 3.4e38]
SPECIAL = [float("nan"), float("inf"), float("-inf"), 0., -0.]


def bits(r, dtype, n):
    raw = [r.randrange(256) for _ in range(n * torch.tensor([], dtype=dtype).element_size())]
    return torch.tensor(raw, dtype=torch.uint8).view(dtype)


def floats(r, dtype, n):
    kind = r.choice(["bits", "bounds", "ties", "special", "mixed"])
    if kind == "bits": return bits(r, dtype, n)
    some = r.sample(BOUNDS, 3)
    pick = {"bounds": lambda: r.choice([-1, 1]) * r.choice(some),
            "ties": lambda: r.randrange(-99999, 99999) / 2 ** 5,
            "special": lambda: r.choice(SPECIAL),
            "mixed": lambda: r.choice(SPECIAL + [r.gauss(0, 1)] * 5)}[kind]
    return torch.tensor([pick() for _ in range(n)], dtype=torch.float64).to(dtype)


def case(r, dtype, size):
    n = torch.Size(size).numel()
    if dtype in INTS: t = bits(r, dtype, n)
    elif dtype in COMPLEX: t = torch.complex(*(floats(r, torch.float32 if dtype == torch.complex64 else torch.float64, n) for _ in "ri"))
    else: t = floats(r, dtype, n)
    t = t.reshape(size)
    return {"dtype": str(dtype)[6:], "size": size, "stride": list(t.stride()), "storage_offset": 0,
            "storage": base64.b64encode(bytes(t.untyped_storage().tolist())).decode(), "text": str(t)}


if __name__ == "__main__":
    r = random.Random(int(sys.argv[2]))
    cases = [case(r, dtype, r.choice(SHAPES)) for dtype in FLOATS * 4 + COMPLEX * 6 + INTS]
    cases += [case(r, dtype, size) for dtype, size in zip(FLOATS, [[0], [0, 3], [2, 0, 4], [0] * 9])]
    with open(sys.argv[1], "w") as f:
        for c in cases: f.write(json.dumps(c, separators=(",", ":")) + "\n")
