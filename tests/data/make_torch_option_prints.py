#!/usr/bin/env python3
"""Writes PyTorch's output with print options: make_torch_option_prints.py OUT.jsonl SEED   (needs torch)

The fields are those of make_torch_prints.py, and the options by their names in torch.set_printoptions.
"""
import json, random, sys
import torch
from make_torch_edge_prints import COMPLEX, FLOATS, INTS, case

SIZES = [[9], [40], [4, 9], [30, 3], [3, 8, 8], [2, 2, 5, 12]]

if __name__ == "__main__":
    r = random.Random(int(sys.argv[2]))
    with open(sys.argv[1], "w") as f:
        for dtype in FLOATS * 4 + COMPLEX * 4 + INTS:
            options = {"precision": r.randrange(9), "threshold": r.choice([0, 10, 100, 10**6]),
                       "edgeitems": r.randrange(1, 6), "linewidth": r.choice([1, 40, 80, 120, 500])}
            torch.set_printoptions(profile="default")
            torch.set_printoptions(**options)
            f.write(json.dumps({**case(r, dtype, r.choice(SIZES)), "options": options}, separators=(",", ":")) + "\n")
