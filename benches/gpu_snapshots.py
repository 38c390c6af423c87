#!/usr/bin/env python3
"""The snapshots' table on a GPU, through its real plugin in a worker, beside what the bus can do.

    python benches/gpu_snapshots.py --plugin /path/to/xla_cuda_plugin.so

Needs the release build (`cargo build --release`), JAX, the CUDA plugin and its libraries on this machine, and no
network. Columns of packages that are not there stay empty. The bus is measured with the CUDA driver alone: copies from
the GPU to pinned and to pageable memory, and back.
"""

import argparse
import ctypes
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import snapshot_table
from measuring import LIBRARY, environment

PINNED = [
    ("memcpy", "raw", "memcpy"),
    ("**Mainstay snapshot**", "ours", "snapshot"),
    ("Mainstay to `pinned_host`", "ours", "to_pinned"),
    ("Mainstay to `unpinned_host`", "ours", "to_unpinned"),
    ("plugin to `pinned_host`", "raw", "to_pinned"),
    ("plugin to `unpinned_host`", "raw", "to_unpinned"),
    ("plugin `device_get`", "raw", "device_get"),
]


class Cuda:
    """The driver's functions that a copy needs."""

    def __init__(self) -> None:
        """Takes the first GPU's context."""
        self.library = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self("cuInit", 0)
        self("cuDeviceGet", ctypes.byref(device), 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self("cuCtxSetCurrent", context)

    def __call__(self, function: str, *arguments: Any) -> None:
        """Calls a function of the driver."""
        if code := getattr(self.library, function)(*arguments):
            raise RuntimeError(f"{function} failed with the driver's error {code}")

    def _best(self, function: str, *arguments: Any) -> float:
        times = []
        for _ in range(5):
            begin = time.perf_counter()
            self(function, *arguments)
            times.append(time.perf_counter() - begin)
        return min(times)

    def rates(self, size: int) -> dict[str, float]:
        """Gigabytes a second of each kind of copy."""
        there, pinned = ctypes.c_uint64(), ctypes.c_void_p()
        self("cuMemAlloc_v2", ctypes.byref(there), ctypes.c_size_t(size))
        self("cuMemHostAlloc", ctypes.byref(pinned), ctypes.c_size_t(size), 0)
        pageable = (ctypes.c_char * size)()
        ctypes.memset(pageable, 1, size)
        rates = {}
        for name, host in (("pinned", pinned), ("pageable", ctypes.cast(pageable, ctypes.c_void_p))):
            rates[f"to {name} memory"] = size / self._best("cuMemcpyDtoH_v2", host, there, ctypes.c_size_t(size)) / 1e9
            rates[f"from {name} memory"] = (
                size / self._best("cuMemcpyHtoD_v2", there, host, ctypes.c_size_t(size)) / 1e9
            )
        self("cuMemFreeHost", pinned)
        self("cuMemFree_v2", there)
        return rates


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plugin", type=Path, required=True, help="the GPU's PJRT plugin")
    parser.add_argument("--largest", type=int, default=4096, help="largest array, in MiB")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if not arguments.plugin.is_file():
        sys.exit(f"bench: there is no plugin at {arguments.plugin}")
    largest = arguments.largest << 20
    for name, rate in Cuda().rates(min(largest, 1 << 30)).items():
        print(f"bus, {name}: {rate:.1f} GB/s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        # The same GPU in both processes: each takes memory as it needs it.
        memory: dict[str, object] = {"preallocate": False}
        through = {
            "plugin": str(arguments.plugin),
            "slices": 1,
            "devices_per_slice": 1,
            "host_memory": str(3 * largest + (1 << 30)),
            "plugin_options": "preallocate=false",
        }
        environments = {
            "raw": environment("raw", arguments.plugin, memory, Path(folder)),
            "ours": environment("mainstay", LIBRARY, through, Path(folder)),
        }
        columns = (PINNED, snapshot_table.TO_DEVICE)
        snapshot_table.run_one(environments, columns, "a GPU", snapshot_table.SIZES, arguments.rounds, largest)


if __name__ == "__main__":
    main()
