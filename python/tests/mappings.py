"""Where the elements of tensors are."""

from __future__ import annotations

from pathlib import Path

import torch


def mapped_file(tensor: torch.Tensor) -> str:
    """Return the path of the file whose mapping has the elements of a tensor, or "" for other memory."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(address, 16) for address in line.split()[0].split("-"))
        if start <= tensor.data_ptr() < end:
            path = line.partition("/")[1:]
            return "".join(path)
    raise AssertionError("no memory has this address")


def is_mapped(tensor: torch.Tensor) -> bool:
    """Return whether the elements are in a mapped file of a store."""
    return mapped_file(tensor).endswith(".bin")
