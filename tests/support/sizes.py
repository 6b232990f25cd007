"""Shrinks sizes and waits of the product for tests: public constants of its modules, also in started processes.

`python sizes.py WORDS` is the command with them.
"""

from __future__ import annotations

import importlib
import os
import runpy
from collections.abc import Callable
from typing import Any

# "least_block_inputs=2 worker_seconds=0.5"; the last value of a repeated name counts
VARIABLE = "PIXPACK_TEST_SIZES"
_NAMES = {
    "packer.packing.parts": "part_copy_bytes",
    "packer.packing.ray": "ray_part_inputs",
    "packer.sources.remote": "source_objects_ahead source_requests",
    "packer.store.tasks": "block_bytes least_block_inputs",
    "packer.workers.engine": "worker_held_bytes engine_poll_seconds longest_look_seconds worker_seconds",
    "reader.compiled": "compiled_thread_bytes compiled_transforms",
    "reader.device.resident": "device_copy_bytes",
    "reader.loading.gathering": "window_ahead_bytes stream_ahead_bytes small_store_bytes",
    "reader.loading.loader": "batch_group_bytes transformed_group_bytes",
    "reader.memory.raw_file": "staged_read_bytes",
    "reader.memory.spans": "own_copy_bytes copy_thread_bytes memcpy_bytes streamed_batch_bytes",
    "reader.planning.orders": "shuffle_block_bytes shuffle_window_blocks",
    "reader.transforms.kernels.pixel_ops": "cpu_pass_bytes",
    "reader.transforms.kernels.regions": "masks_per_pass",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def set_sizes(put: Callable[[Any, str, Any], None] = setattr) -> None:
    """Set the constants of this process to the values in the environment."""
    for word in os.environ.get(VARIABLE, "").split():
        name, _, value = word.partition("=")
        module, constant = importlib.import_module(_MODULES[name]), name.upper()
        put(module, constant, type(getattr(module, constant))(float(value)))


if __name__ == "__main__":
    set_sizes()
    runpy.run_module("packer", run_name="__main__", alter_sys=True)
