"""The kernel of Triton that makes crops on CUDA, run by Triton's interpreter, which needs no device, and on a device."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import environment as environment_with

ROOT = Path(__file__).resolve().parents[2]

# Images of several sizes, each with a box that becomes larger, smaller, or both, in either interpolation, mirrored or not.
_COMPARED = """
import contextlib, sys
import torch
from torch.nn.functional import interpolate
from reader.compiled import Crops
from reader.host_values import sent
from reader.transforms.kernels.triton_crops import cropped

device = torch.device(sys.argv[1])
if device.type == "cpu":
    torch.cuda.device = lambda device: contextlib.nullcontext()
random = torch.Generator().manual_seed(0)
for channels, has_grids in ((3, False), (1, True), (4, False), (3, True)):
    count, height, width = 12, 17, 21
    sides = torch.randint(9, 60, (count, 2), generator=random)
    images = [torch.randint(0, 256, (*side, channels), dtype=torch.uint8, generator=random) for side in sides.tolist()]
    sizes = torch.tensor([image.numel() for image in images])
    table = torch.cat([(sizes.cumsum(0) - sizes)[:, None], sides], 1)
    corners = (torch.rand(count, 2, generator=random) * (sides - 1)).long()
    ends = corners + 1 + (torch.rand(count, 2, generator=random) * (sides - corners)).long()
    boxes = torch.cat([corners.flip(1), ends.flip(1)], 1)
    new = torch.tensor([[height, width]]).expand(count, 2)
    top_left = torch.zeros(count, 2, dtype=torch.int64)
    if has_grids:
        new = new + torch.randint(0, 9, (count, 2), generator=random)
        top_left = (torch.rand(count, 2, generator=random) * (new - torch.tensor([height, width]) + 1)).long()
    grids = torch.cat([top_left, new], 1) if has_grids else None
    is_cubic, is_mirrored = (torch.rand(2, count, generator=random) < 0.5).unbind()
    pixels = torch.cat([image.reshape(-1) for image in images]).to(device)
    parts = [None if part is None else sent(part, device) for part in (boxes, grids, is_cubic, is_mirrored)]
    crops = Crops(parts[0], height, width, *parts[1:])
    made = cropped(pixels, table, channels, crops).cpu()
    # of numbers that only the device knows
    unknown = [None if part is None else part.clone() for part in parts]
    again = cropped(pixels, table.to(device), channels, Crops(unknown[0], height, width, *unknown[1:])).cpu()
    assert torch.equal(made, again)
    for n, image in enumerate(images):
        x0, y0, x1, y1 = boxes[n].tolist()
        mode = "bicubic" if is_cubic[n] else "bilinear"
        box = image[y0:y1, x0:x1].movedim(-1, 0)[None].float()
        full = interpolate(box, new[n].tolist(), mode=mode, antialias=True)[0].clamp(0, 255)
        (top, left), crop = top_left[n].tolist(), made[n].flip(1) if is_mirrored[n] else made[n]
        expected = full[:, top : top + height, left : left + width].movedim(0, -1)
        assert (crop.float() - expected).abs().max() < 0.51, (channels, n, mode)
copied = cropped(pixels, table[:1], 3, Crops(sent(torch.tensor([[2, 3, 7, 9]]), device), 6, 5)).cpu()
assert torch.equal(copied[0], images[0][3:9, 2:7])
# so many images that a grid of two axes would end
many = torch.arange(70_000)
boxes = torch.tensor([[0, 0, 1, 1]]).expand(70_000, 4)
if device.type == "cuda":
    pixels, table = (many % 251).to(torch.uint8), torch.stack([many, many * 0 + 1, many * 0 + 1], 1)
    assert torch.equal(cropped(pixels.to(device), table, 1, Crops(boxes, 1, 1)).cpu().view(-1), pixels)
print("compared")
"""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_crops_are_those_of_torchs_float_kernels(device: str) -> None:
    folder = os.environ.get("PIXPACK_TRITON", "")
    if not (Path(folder, "triton").is_dir() or importlib.util.find_spec("triton")):
        pytest.skip("Triton is not installed, nor in a folder that PIXPACK_TRITON names")
    if device == "cuda" and "PIXPACK_SIMULATED_GPU" in os.environ:
        pytest.skip("a simulated device runs no kernels")
    environment = environment_with(*filter(None, [folder])) | {"TRITON_INTERPRET": "1" if device == "cpu" else "0"}
    words = [sys.executable, "-c", _COMPARED, device]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=300)
    assert done.stdout == "compared\n", done.stderr
