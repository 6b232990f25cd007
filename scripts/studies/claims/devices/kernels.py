"""Does torch.compile fuse pointwise operations into one kernel, and is that faster?

Two chains: the slides' operations over a large tensor, and Normalize over a batch of images. Kernels are counted on the CPU as
the operators that run without compiling and as the C++ loops that torch.compile writes; on a GPU torch.profiler counts what
was launched. Checked: both ways give the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._inductor import config
from torch.utils._python_dispatch import TorchDispatchMode

from reader import Normalize
from scripts.common import plot
from scripts.common.figures import ratios, spread
from scripts.common.timing import synchronize
from scripts.studies.claims._claim import LOOPS, Calls, ClaimResult, compiling_device, lacking, seconds_in_turns

CLAIM = "Pointwise operations are fused into one kernel, which saves passes over memory and launches."
SOURCE = LOOPS

ROUNDS = 15
EAGER, COMPILED = "one by one", "torch.compile"
POINTWISE, NORMALIZE = "x * a + b, sin, cos, sigmoid", "Normalize, images to bfloat16"

Call = Callable[[], torch.Tensor]


def measure(quick: bool, work: Path) -> dict[str, Any]:
    """Return kernels and milliseconds of each chain, compiled and not, on the fastest device there is."""
    device = compiling_device()
    # to try vector instructions and to compile headers ahead takes longer than the kernel of a quick run
    plain = {"cpp.vec_isa_ok": False, "cpp_cache_precompile_headers": False} if quick else {}
    with config.patch(plain):
        found = {name: chain(*of, device, 1 if quick else ROUNDS) for name, of in chains(quick, device).items()}
    return {"device": device.type, "chains": found, "not_measured": {} if device.type == "cuda" else {"cuda": "no GPU"}}


def chains(quick: bool, device: torch.device) -> dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]]:
    """Return what is computed, and of what."""
    images = torch.randint(0, 256, (2, 3, 8, 8) if quick else (64, 3, 224, 224), dtype=torch.uint8, device=device)
    normalize = Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225], torch.bfloat16).to(device)
    found: dict[str, Any] = {NORMALIZE: (normalize, images)}
    # a quick run compiles once
    return found if quick else {POINTWISE: (pointwise, torch.randn(16 << 20, device=device)), **found}


def pointwise(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(torch.cos(torch.sin(x * 1.5 + 0.5)))


def chain(
    function: Callable[[torch.Tensor], torch.Tensor], given: torch.Tensor, device: torch.device, rounds: int
) -> dict[str, Any]:
    """Count and time a function, compiled and not; raises if the results differ."""
    from torch._inductor import metrics

    compiled = torch.compile(function, fullgraph=True)
    metrics.reset()
    torch.testing.assert_close(compiled(given), function(given), rtol=2e-2, atol=2e-2)
    ways: dict[str, Call] = {EAGER: lambda: function(given), COMPILED: lambda: compiled(given)}
    kernels = {EAGER: operators(ways[EAGER]), COMPILED: metrics.generated_kernel_count}
    if device.type == "cuda":
        kernels = {name: launches(way) for name, way in ways.items()}
    calls = {name: Calls(lambda way=way: (way(), synchronize(device))) for name, way in ways.items()}
    seconds = seconds_in_turns(calls, rounds)
    return {
        "kernels": kernels,
        "milliseconds": {name: spread([1e3 * s for s in values], 3) for name, values in seconds.items()},
        "ratio": ratios(seconds[EAGER], seconds[COMPILED]),
    }


def operators(call: Call) -> int:
    """Count the operators that run, views left out: each is a pass over memory of its own."""
    seen = []

    class OperatorCount(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not func.is_view:
                seen.append(func)
            return func(*args, **(kwargs or {}))

    with OperatorCount():
        call()
    return len(seen)


def launches(call: Call) -> int:
    """Count the kernels that a call launches on a GPU."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    on_device = [event for event in profiler.key_averages() if event.device_type == torch.autograd.DeviceType.CUDA]
    # names of stretches of the program, which a trace shows beside what ran in them
    return sum(event.count for event in on_device if not event.is_user_annotation)


def conclude(figures: dict[str, Any]) -> ClaimResult:
    found = figures["chains"]
    reported = "; ".join(
        f"{name}: {rate_of(of, EAGER)}, compiled {rate_of(of, COMPILED)}, {of['ratio']['median']:.1f} times as fast"
        for name, of in found.items()
    )
    faster = [of["ratio"]["median"] for of in found.values()]
    most = max(of["kernels"][COMPILED] for of in found.values())
    return ClaimResult(
        f"torch.compile makes {'one kernel' if most == 1 else f'up to {most} kernels'} of a chain, {min(faster):.1f} to"
        f" {max(faster):.1f} times as fast on {figures['device']}",
        f"{reported}{lacking(figures)}.",
        most == 1 and min(faster) > 1,
    )


def rate_of(of: dict[str, Any], way: str) -> str:
    return f"{of['kernels'][way]} kernel(s) and {of['milliseconds'][way]['median']:.1f} ms"


def draw(make: Any, figures: dict[str, Any]) -> Any:
    figure, panels = make(panels=len(figures["chains"]))
    figure.subplots_adjust(wspace=0.12)
    for n, (axes, (name, of)) in enumerate(zip(panels, figures["chains"].items(), strict=True)):
        values = {way: of["milliseconds"][way]["median"] for way in (EAGER, COMPILED)}
        texts = [f"{value:.1f} ms, {of['kernels'][way]} kernel(s)" for way, value in values.items()]
        plot.bars(axes, values, texts, xlabel=f"milliseconds on {figures['device']}, median")
        axes.set_xlim(right=max(values.values()) * 1.7)
        axes.set_title(name)
        if n:
            axes.set_yticklabels([])
    return figure
