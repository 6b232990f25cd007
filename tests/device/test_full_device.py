"""A loop on a device whose memory other tensors fill. It takes all of the device, so nothing else may use it meanwhile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_FULL = """
import sys, torch
from reader import MemmapDataset, MemmapLoader
data = MemmapDataset(sys.argv[1])
loader = MemmapLoader(data, 10, device="cuda", residency=sys.argv[2], as_tuple=False)
held, size = [], torch.cuda.mem_get_info()[0]
while size >= 512:
    try:
        held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        size //= 2
try:
    print(sum(len(batch) for batch in loader))
except torch.OutOfMemoryError:
    print("full")
held.clear()
torch.cuda.empty_cache()
print(sum(len(batch) for batch in loader))
"""


@pytest.mark.cuda
@pytest.mark.parametrize("residency", ["cache"])
def test_a_full_device_is_an_error_of_torch_and_the_next_epoch_has_every_row(
    shared_store: Path, residency: str
) -> None:
    words = [sys.executable, "-c", _FULL, str(shared_store), residency]
    done = subprocess.run(words, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["full", "90"]
