#!/usr/bin/env python3
"""Export the network with its normalization inside, and compare the exports with the network.

    python examples/train.py out/ --checkpoint run.pt
    python examples/export.py out/ exported/ --checkpoint run.pt

Writes model.onnx, model.torchscript and model.pt2 (torch.export; Model Explorer opens it and the ONNX): each takes
uint8[B, C, H, W] as in a store, for any B, so that its users cannot normalize wrongly. Each is loaded again and run on rows
of the store. With CUDA and Torch-TensorRT, the network is also compiled by Torch-TensorRT.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from checkpoints import restore
from network import datasets, network, one_size

from pixpack import MemmapLoader, StoreError

# Allowed difference of other kernels, with another order of additions: a share of the largest score.
TOLERANCE = 1e-4
ANY_BATCH = {"input": {0: torch.export.Dim("batch")}}
NEEDS = {"ONNX": ["onnxscript", "onnxruntime"], "TensorRT": ["torch_tensorrt", "a CUDA device"]}

Way = Callable[[torch.Tensor], torch.Tensor]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("store", help="a store with classes, as `pack` wrote it")
    parser.add_argument("folder", type=Path, help="where the files go")
    parser.add_argument("--checkpoint", type=Path, help="weights, as train.py left them; without: random ones")
    options = parser.parse_args()
    torch.manual_seed(0)
    try:
        train, _ = datasets(options.store, None)
        model = network(train.manifest).eval()
        if options.checkpoint:
            restore(options.checkpoint, {"model": model}, "cpu")
        options.folder.mkdir(parents=True, exist_ok=True)
    except (StoreError, ValueError, OSError) as e:
        print(f"export.py: {e}", file=sys.stderr)
        return 1
    # two batch sizes: one for the export, another to test it
    (example, _), (images, _) = (next(iter(MemmapLoader(train, n, transform=one_size(train.manifest)))) for n in (2, 5))
    expected = model(images).detach()
    differences = []
    for name, way in {"ONNX": onnx, "TorchScript": torchscript, "torch.export": exported, "TensorRT": tensorrt}.items():
        if lacks := [what for what in NEEDS.get(name, []) if not is_there(what)]:
            print(f"{name}: left out, {' and '.join(lacks)} missing")
            continue
        found = way(model, example, options.folder)(images).detach()
        difference = float((found - expected[: len(found)]).abs().max() / expected.abs().max())
        print(f"{name}: scores of {len(found)} images differ by at most {difference:.1e} of the largest")
        differences.append(difference)
    return 0 if all(difference < TOLERANCE for difference in differences) else 1


def is_there(what: str) -> bool:
    return torch.cuda.is_available() if what == "a CUDA device" else importlib.util.find_spec(what) is not None


def onnx(model: torch.nn.Module, example: torch.Tensor, folder: Path) -> Way:
    import onnxruntime

    path = folder / "model.onnx"
    how: dict[str, Any] = {"dynamic_shapes": ANY_BATCH, "dynamo": True, "external_data": False, "verbose": False}
    torch.onnx.export(model, (example,), path, input_names=["images"], output_names=["scores"], **how)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


def torchscript(model: torch.nn.Module, example: torch.Tensor, folder: Path) -> Way:
    torch.jit.trace(model, example).save(path := folder / "model.torchscript")
    return torch.jit.load(path)


def exported(model: torch.nn.Module, example: torch.Tensor, folder: Path) -> Way:
    path = folder / "model.pt2"
    torch.export.save(torch.export.export(model, (example,), dynamic_shapes=ANY_BATCH), path)
    return torch.export.load(path).module()


def tensorrt(model: torch.nn.Module, example: torch.Tensor, folder: Path) -> Way:
    import torch_tensorrt

    fast: Any = torch_tensorrt.compile(model.cuda(), ir="dynamo", inputs=[example.cuda()])
    model.cpu()
    return lambda images: fast(images[: len(example)].cuda()).cpu()  # made for batches of this size


if __name__ == "__main__":
    sys.exit(main())
