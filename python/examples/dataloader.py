"""A DataLoader with 4 workers over a mapped store. Usage: python dataloader.py [ROWS], 100,000 unless given.

The data set is pickled without elements: each worker gets the path and the headers, and maps the same files.
"""

from __future__ import annotations

import sys
import tempfile

import numpy as np
from torch.utils.data import DataLoader, Dataset

import stridemap


class Rows(Dataset[tuple[stridemap.Tensor, stridemap.Tensor]]):
    def __init__(self, path: str) -> None:
        store = stridemap.open(path)
        self.images, self.labels = store["images"], store["labels"]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[stridemap.Tensor, stridemap.Tensor]:
        return self.images[index], self.labels[index]


def main(count: int = 100_000) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with stridemap.open(f"{folder}/data.smap", "x") as store:
            store["labels"] = np.arange(count) % 10
            store["images"] = np.repeat(np.arange(count, dtype=np.float32) % 10, 64).reshape(count, 8, 8)
        loader = DataLoader(
            Rows(f"{folder}/data.smap"), batch_size=256, shuffle=True, num_workers=4, multiprocessing_context="spawn"
        )
        wrong = sum(int((images[:, 0, 0] != labels).sum()) for images, labels in loader)
        print(f"{count} rows in {len(loader)} batches, {wrong} wrong")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
