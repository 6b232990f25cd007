"""How long do the random transforms take for a batch, against torchvision's v2 called for each sample, and for the batch?

    PIXPACK_TORCHVISION=.venv/torchvision python -m scripts.benchmarks.transforms.bench_transforms

Both do the same work: torchvision's functions get the parameters that ours drew, one image at a time, as it must where each
sample has its own, and their results are stacked to a batch. So drawing is in our time alone. Beside them torchvision's
function is called once with the whole batch, as v2's transforms are: every sample then gets the same parameters, here those of
one whose box is of middle size, or which is flipped, so it is other work. The limit is a copy of the batch. Checked before
anything is timed: ours and the loop gave the same pixels, up to 2 levels for ColorJitter and 1 for a GPU's resize. With labels,
8 boxes and a mask of each sample move too; with own sizes the rows are of many sizes. The second table has all other transforms
beside torchvision's of the same arguments, called for each image on as many threads, and in PerSample: both draw for themselves
there; that they give the same pixels for the same numbers is tested. Each round times all ways in turn; ratios are taken round
by round. Where kornia can be imported, a table has its transforms of the batch, of floats. With --cpu-time all rates are images
a CPU second of the process, of all threads together: they hold on a machine that other programs use too. Give --threads 1 with
it, since threads that wait for others may spin.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict

from reader import ColorJitter, Compose, ImageBatch, RaggedBatch, RandomCrop, RandomHorizontalFlip, RandomResizedCrop
from reader.transforms.random import CROP, FLIP, draw
from scripts.benchmarks.transforms import _kornia_ways
from scripts.benchmarks.transforms._transform_pairs import TITLES, line_of_pair, measure_pair, pairs
from scripts.common.arguments import bench_parser
from scripts.common.figures import machine, publish, rate_cells, ratio_cells, ratios, spread, table
from scripts.common.timing import in_turns, seconds
from scripts.common.torchvision_part import torchvision_v2

_TITLES = [
    "transform",
    "images/s",
    "min..max",
    "a loop",
    "min..max",
    "ratio",
    "p10..p90",
    "a batch",
    "ratio",
    "p10..p90",
]


@dataclass(frozen=True)
class Case:
    """Ours for a batch, torchvision's for one image and its number, and how many levels they may differ by.

    batch_sample: the sample whose parameters torchvision's function gets for the whole batch; None: it takes no such batch.
    others: other libraries' of the batch, by name; each draws for itself.
    """

    name: str
    ours: Callable[[Any], ImageBatch]
    sample: Callable[[torch.Tensor, int], torch.Tensor]
    levels: int
    batch_sample: int | None = 0
    others: dict[str, Callable[[torch.Tensor], Any]] = field(default_factory=dict)


def main() -> int:
    """Time each transform both ways."""
    about = {"size": "side of the crops"}
    threads = torch.get_num_threads()
    parser = bench_parser(__doc__, about=about, batch_size=128, size=224, rounds=9, threads=threads)
    parser.add_argument("--row", type=int, default=256, help="side of the stored rows")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--first-table", action="store_true", help="leave the second table out")
    parser.add_argument("--cpu-time", action="store_true", help="count CPU seconds of the process in place of seconds")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    batch = smooth_batch(options.batch_size, options.row).to(options.device)
    clock = time.process_time if options.cpu_time else time.perf_counter
    kornia = _kornia_ways.kornia_ways(options.size)
    every = [replace(case, others=kornia.get(case.name, {})) for case in cases(batch, options.size)]
    results = [measure(case, batch, options.rounds, clock) for case in every]
    for labelled in (with_labels(batch), own_sizes(batch)):
        results.append(measure(labelled_case(labelled, options.size), labelled, options.rounds, clock))
    print(table([_TITLES, *map(line_of, results)]))
    if kornia:
        print(
            table([_kornia_ways.TITLES, *(line for found in results for line in _kornia_ways.lines_of_others(found))])
        )
    v2, given = torchvision_v2(), (batch, options.rounds, options.threads, clock)
    drawn = [] if options.first_table else [measure_pair(pair, *given) for pair in pairs(v2, options.size)]
    if drawn:
        print(table([TITLES, *map(line_of_pair, drawn)]))
    shape = {
        name: getattr(options, name)
        for name in ("batch_size", "row", "size", "rounds", "threads", "device", "cpu_time")
    }
    about = machine(Path(tempfile.gettempdir()))
    publish(
        {"benchmark": "bench_transforms", **shape, "machine": about, "transforms": results, "drawn": drawn},
        options.output,
    )
    return 0


def line_of(found: dict[str, Any]) -> list[str]:
    """Return a line of the table: rates of ours, the loop and the batch, and our ratio to the latter two."""
    rates = [rate_cells(found[name]) for name in ("images_per_second", "torchvision_images_per_second")]
    batch_cells = [""] * 3
    if found["batch_images_per_second"]:
        batch_cells = [rate_cells(found["batch_images_per_second"])[0], *ratio_cells(found["batch_ratio"])]
    return [found["transform"], *rates[0], *rates[1], *ratio_cells(found["ratio"]), *batch_cells]


def smooth_batch(count: int, side: int) -> ImageBatch:
    """Make photograph-like rows: noise of a few pixels' grain. What they show changes no time, only the comparison."""
    grain = torch.rand(count, 3, side // 4, side // 4, generator=torch.Generator().manual_seed(0)) * 255
    images = torch.nn.functional.interpolate(grain, (side, side), mode="bilinear").to(torch.uint8)
    rows = torch.arange(count)
    pixels = images.movedim(1, -1).contiguous()
    return ImageBatch(pixels=pixels, targets=rows, rows=rows, batch_size=[count])


def with_labels(batch: ImageBatch) -> ImageBatch:
    """Give each row 8 boxes and a mask."""
    count, height = batch.pixels.shape[:2]
    corners = torch.rand(count, 8, 2, 2, generator=torch.Generator().manual_seed(1)).sort(2).values * height
    extras = {
        "boxes": corners.view(count, 8, 4),
        "box_count": torch.full((count,), 8, dtype=torch.int32),
        "box_targets": torch.zeros(count, 8, dtype=torch.int64),
        "masks": batch.pixels[..., 0].cpu().clone(),
    }
    labelled = batch.clone()
    labelled.extras = TensorDict(extras, batch_size=[count]).to(batch.pixels.device)
    return labelled


def own_sizes(batch: ImageBatch) -> RaggedBatch:
    """Make rows of half to all of the width and the height."""
    count, side = batch.pixels.shape[:2]
    sides = torch.randint(side // 2, side + 1, (count, 2), generator=torch.Generator().manual_seed(2)).tolist()
    rows = [row[:height, :width].reshape(-1) for row, (height, width) in zip(batch.pixels, sides, strict=True)]
    sizes = torch.tensor([len(row) for row in rows])
    shapes = torch.tensor([[*both, 3] for both in sides], dtype=torch.int32)
    made = RaggedBatch(torch.cat(rows), batch.targets, sizes.cumsum(0) - sizes, shapes, rows=batch.rows, batch_size=[])
    return made.to(batch.pixels.device)


def labelled_case(batch: ImageBatch | RaggedBatch, size: int) -> Case:
    """Pair RandomResizedCrop of such a batch with torchvision's functions for its images, boxes and masks."""
    functional, resized = torchvision_functional(), RandomResizedCrop(size)
    drawn = resized.boxes(batch).tolist()
    is_ragged = isinstance(batch, RaggedBatch)

    def sample(image: torch.Tensor, n: int) -> torch.Tensor:
        x0, y0, x1, y1 = drawn[n]
        box = (y0, x0, y1 - y0, x1 - x0)
        if batch.extras is not None:
            sizes = {"format": "XYXY", "canvas_size": tuple(image.shape[-2:])}
            functional.resized_crop(tv_tensors().BoundingBoxes(batch.extras["boxes"][n], **sizes), *box, [size, size])
            functional.resized_crop(tv_tensors().Mask(batch.extras["masks"][n]), *box, [size, size])
        return functional.resized_crop(image, *box, [size, size], antialias=True)

    name = f"RandomResizedCrop({size}), {'own sizes' if is_ragged else 'with labels'}"
    return Case(name, resized, sample, 0 if batch.pixels.device.type == "cpu" else 1, None)


def cases(batch: ImageBatch, size: int) -> list[Case]:
    """Pair each transform with torchvision's functions and the same parameters."""
    functional = torchvision_functional()
    flips = (draw(batch, 0, FLIP)[0] < 0.5).tolist()
    slack = batch.pixels.shape[1] - size
    corners = (draw(batch, 0, CROP) * (slack + 1)).long().T.tolist()
    resized = RandomResizedCrop(size)
    boxes = resized.boxes(batch).tolist()
    areas = [(x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in boxes]
    exact = 0 if batch.pixels.device.type == "cpu" else 1
    jittered = ColorJitter(0.4, 0.4, 0.4)
    factors, orders = (drawn.tolist() for drawn in jittered.drawn(batch))

    def resized_crop(image: torch.Tensor, n: int) -> torch.Tensor:
        x0, y0, x1, y1 = boxes[n]
        return functional.resized_crop(image, y0, x0, y1 - y0, x1 - x0, [size, size], antialias=True)

    adjusts = (functional.adjust_brightness, functional.adjust_contrast, functional.adjust_saturation)

    def jitter(image: torch.Tensor, n: int) -> torch.Tensor:
        for step in orders[n]:
            if step < 3:
                image = adjusts[step](image, factors[step][n])
        return image

    return [
        Case("copy", copied, lambda image, n: image, 0, None),
        Case(
            "RandomHorizontalFlip()",
            RandomHorizontalFlip(),
            lambda image, n: functional.horizontal_flip(image) if flips[n] else image,
            0,
            flips.index(True),
        ),
        Case(
            f"RandomCrop({size})", RandomCrop(size), lambda image, n: functional.crop(image, *corners[n], size, size), 0
        ),
        Case(f"RandomResizedCrop({size})", resized, resized_crop, exact, areas.index(sorted(areas)[len(areas) // 2])),
        Case(
            f"RandomResizedCrop({size}), RandomHorizontalFlip()",
            Compose([resized, RandomHorizontalFlip()]),
            lambda image, n: functional.horizontal_flip(resized_crop(image, n)) if flips[n] else resized_crop(image, n),
            exact,
            None,
        ),
        Case("ColorJitter(0.4, 0.4, 0.4)", jittered, jitter, 2),
    ]


def copied(batch: ImageBatch) -> ImageBatch:
    """Copy the batch: the limit."""
    return batch.clone()


def measure(case: Case, batch: Any, rounds: int, clock: Callable[[], float] = time.perf_counter) -> dict[str, Any]:
    """Compare the results of ours and the loop, then time all ways in turns."""

    def theirs() -> torch.Tensor:
        return torch.stack([case.sample(image, n) for n, image in enumerate(batch.images)])

    # both are warm after this
    difference = int((case.ours(batch).images.int() - theirs().int()).abs().max())
    if difference > case.levels:
        raise SystemExit(f"bench_transforms: {case.name} differs from torchvision by {difference} levels.")
    ways: list[Callable[[], Any]] = [lambda: case.ours(batch), theirs]
    if (batch_sample := case.batch_sample) is not None:
        ways.append(lambda: case.sample(batch.images, batch_sample))
        ways[-1]()
    known, others = len(ways), []
    for name, other in case.others.items():
        try:
            other(batch.images)
        except Exception as e:
            print(f"bench_transforms: {case.name}, {name} failed: {type(e).__name__}: {e}"[:500], file=sys.stderr)
        else:
            others.append(name)
            ways.append(partial(other, batch.images))
    found = in_turns({n: partial(seconds, way, batch.pixels.device, clock) for n, way in enumerate(ways)}, rounds)
    rates = [[len(batch) / took for took in values] for values in found.values()]
    return {
        "transform": case.name,
        "images_per_second": spread(rates[0], 0),
        "torchvision_images_per_second": spread(rates[1], 0),
        "ratio": ratios(rates[0], rates[1]),
        "batch_images_per_second": spread(rates[2], 0) if known > 2 else None,
        "batch_ratio": ratios(rates[0], rates[2]) if known > 2 else None,
        "largest_difference": difference,
        "others": {
            name: {"images_per_second": spread(rates[n], 0), "ratio": ratios(rates[0], rates[n])}
            for n, name in enumerate(others, known)
        },
    }


def tv_tensors() -> Any:
    """Import torchvision's boxes and masks; `torchvision_functional` must have been called."""
    from torchvision import tv_tensors as found

    return found


def torchvision_functional() -> Any:
    """Return the functional of `torchvision_v2`."""
    return torchvision_v2().functional


if __name__ == "__main__":
    sys.exit(main())
