#!/usr/bin/env python3
"""Export the network with its normalisation inside, and compare what comes back with what went in.

    python examples/train.py out/ --checkpoint run.pt
    python examples/export.py out/ exported/ --checkpoint run.pt

Writes model.onnx, model.torchscript and model.pt2 (torch.export; Model Explorer opens it and the ONNX): each takes
uint8[B, C, H, W] as a store has it, for any B, so that whoever runs it cannot normalise wrongly. Each is loaded again and run
on rows of the store. Where there are CUDA and Torch-TensorRT, the network is compiled with that too.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from network import datasets, network

from reader import StoreError

# What other kernels, in another order of additions, may differ by: a share of the largest score.
TOLERANCE = 1e-4
NEEDS = {"ONNX": ["onnxscript", "onnxruntime"], "TensorRT": ["torch_tensorrt"]}

Way = Callable[[torch.Tensor], torch.Tensor]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("store", help="a store with classes, as `pack` wrote it")
    parser.add_argument("folder", type=Path, help="where the files go")
    parser.add_argument("--checkpoint", metavar="FILE", help="weights, as train.py left them; without: random ones")
    options = parser.parse_args()
    torch.manual_seed(0)
    try:
        train, _ = datasets(options.store, None)
    except (StoreError, ValueError) as e:
        print(f"export.py: {e}", file=sys.stderr)
        return 1
    model = network(train.manifest).eval()
    if options.checkpoint:
        model.load_state_dict(torch.load(options.checkpoint, map_location="cpu")["model"])
    options.folder.mkdir(parents=True, exist_ok=True)
    # two sizes of batches: one to export with, another to try what came out
    example, images = train[:2].images, train[-5:].images
    with torch.inference_mode():
        expected = model(images)
    differences = []
    for name, way in {"ONNX": onnx, "TorchScript": torchscript, "torch.export": exported, "TensorRT": tensorrt}.items():
        lacks = [package for package in NEEDS.get(name, []) if importlib.util.find_spec(package) is None]
        if name == "TensorRT" and not torch.cuda.is_available():
            lacks.append("a CUDA device")
        if lacks:
            print(f"{name}: left out, {' and '.join(lacks)} missing")
            continue
        loaded = way(model, example, options.folder)
        with torch.inference_mode():
            difference = float((loaded(images) - expected).abs().max() / expected.abs().max())
        print(f"{name}: scores of {len(images)} images differ by at most {difference:.1e} of the largest")
        differences.append(difference)
    return 0 if all(difference < TOLERANCE for difference in differences) else 1


def onnx(model: torch.nn.Module, example: torch.Tensor, folder: Path) -> Way:
    import onnxruntime

    path = str(folder / "model.onnx")
    program = program_of(model, example)
    torch.onnx.export(
        program, f=path, input_names=["images"], output_names=["scores"], external_data=False, verbose=False
    )
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


def torchscript(model: torch.nn.Module, example: torch.Tensor, folder: Path) -> Way:
    path = str(folder / "model.torchscript")
    with warnings.catch_warnings():
        # torch calls TorchScript deprecated; what loads it is still in use
        warnings.simplefilter("ignore")
        torch.jit.trace(model, example).save(path)
        return torch.jit.load(path)


def exported(model: torch.nn.Module, example: torch.Tensor, folder: Path) -> Way:
    path = folder / "model.pt2"
    torch.export.save(program_of(model, example), path)
    return torch.export.load(path).module()


def tensorrt(model: torch.nn.Module, example: torch.Tensor, folder: Path) -> Way:
    import torch_tensorrt

    fast: Any = torch_tensorrt.compile(model.cuda(), ir="dynamo", inputs=[example.cuda()])
    model.cpu()
    return lambda images: fast(images[: len(example)].cuda()).cpu()


def program_of(model: torch.nn.Module, example: torch.Tensor) -> torch.export.ExportedProgram:
    return torch.export.export(model, (example,), dynamic_shapes={"input": {0: torch.export.Dim("batch")}})


if __name__ == "__main__":
    sys.exit(main())
