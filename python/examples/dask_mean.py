"""The mean of a large tensor, on several processes of Dask. Usage: python dask_mean.py [MIB], 4096 unless given."""

from __future__ import annotations

import sys
import tempfile

import dask.array as da
from dask.distributed import Client, LocalCluster

import stridemap
from stridemap.dask import from_store, to_store


def main(mib: int = 4096) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/large.smap"
        with LocalCluster(n_workers=4, threads_per_worker=1, memory_limit=None, dashboard_address=None) as cluster:
            with Client(cluster):
                numbers = da.random.default_rng(0).random((mib, 1 << 18), dtype="float32", chunks=(16, -1))
                to_store(numbers, path, "x")  # each worker writes its blocks, and there is one commit
                mean = from_store(path, "x", chunks=(64, -1)).mean(dtype="float64").compute()
        print(f"{stridemap.open(path)['x'].nbytes >> 20} MiB, mean {mean:.4f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
