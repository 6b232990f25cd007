"""How a pack is divided: how many inputs make a block, which inputs a part has, and the room that their rows take.

A function of the inputs and options, so that every part and every run divides alike; opens images only for their headers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from packer.inputs.samples import Inputs
from packer.options import PackOptions
from packer.packing.image_sizes import count_sizes, pixel_bytes
from packer.packing.parts.part_inputs import block_inputs_in_progress
from packer.pixels.layout import RowLayout
from packer.store.blocks import block_inputs
from packer.store.parts import Part


@dataclass(frozen=True)
class Division:
    """The inputs per block, the span of inputs to pack, and the largest size of their file of rows in bytes."""

    block_inputs: int
    span: range
    pixels_bytes: int


def divide(
    inputs: Inputs, split: str, layout: RowLayout, options: PackOptions, out: Path, part: Part | None
) -> Division:
    """Divide the inputs of OUT; part: the one that is packed, None for all.

    Rows with sizes of their own are measured by their headers: all of them where nothing says how many inputs a block has,
    those of the part where another part that is in progress does.

    Raises:
        PackError: a worker that read headers was killed; SourceError where the inputs cannot be read.
    """
    count = len(inputs)
    if layout.size is not None:
        step = block_inputs(count, layout.size_bytes(1))
        span = _span(part, count, step)
        refused = sum(index in span for index in inputs.refused)
        return Division(step, span, layout.expected_bytes(layout.size_bytes(len(span) - refused)))

    def measured(span: range) -> int:
        """Return the bytes of the rows of some inputs, before they are compressed."""
        sizes = count_sizes({split: inputs}, options, span)[split]
        return layout.file_bytes(pixel_bytes(sizes, layout))

    given = block_inputs_in_progress(out, part, options) if part is not None else None
    if given is not None:
        span = _span(part, count, given)
        return Division(given, span, layout.expected_bytes(measured(span)))
    every = measured(range(count))
    step = block_inputs(count, max(1, every // count))
    span = _span(part, count, step)
    return Division(step, span, layout.expected_bytes(every if span == range(count) else measured(span)))


def _span(part: Part | None, count: int, step: int) -> range:
    return range(count) if part is None else part.span(count, step)
