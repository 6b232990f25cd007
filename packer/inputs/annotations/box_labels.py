"""What label files of boxes say, outlines included, as it is gathered; and by which paths they name inputs. Reads no file."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from packer.errors import ScanError
from packer.inputs.annotations.boxes import Boxes, BoxRules
from packer.inputs.samples import Inputs
from packer.option_names import Option
from packer.pixels.outlines import Outline, drawing
from packer.text import counted, some

# of a mask's 256 values 0 is where no object is
_MOST_CLASSES = 255


@dataclass
class BoxLabels:
    """What label files say of inputs, as it is gathered; boxes come in any order, outlines so that the last is on top.

    outlines is None where no masks are made of them.
    """

    count: int
    classes: tuple[str, ...] = ()
    owners: array[int] = field(default_factory=lambda: array("q"))
    corners: array[float] = field(default_factory=lambda: array("d"))
    targets: array[int] = field(default_factory=lambda: array("q"))
    refused: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    outlines: list[list[tuple[int, Outline]]] | None = None
    without_outline: int = 0
    # of all that was read: see reader/FORMAT.md, labels
    digest: str = ""

    def __post_init__(self) -> None:
        self.frames = np.zeros((self.count, 2))

    def add(self, inputs: Iterable[int], corners: tuple[float, float, float, float], target: int) -> None:
        """Give inputs a box: x0, y0, x1, y1 in their frame."""
        for index in inputs:
            self.owners.append(index)
            self.corners.extend(corners)
            self.targets.append(target)

    def add_outline(self, inputs: Iterable[int], outline: Outline | None, target: int) -> None:
        """Give inputs the outline of an object, where masks are made; None: it has none, which is counted."""
        if self.outlines is None:
            return
        for index in inputs:
            if outline is None:
                self.without_outline += 1
            else:
                self.outlines[index].append((target + 1, outline))

    def drawings(self, source: str) -> list[str]:
        """Return what each input's mask is drawn of: pixels are class index + 1, and 0 where no object is.

        Raises:
            ScanError: there are more classes than values.
        """
        if len(self.classes) > _MOST_CLASSES:
            raise ScanError(
                f"{source} has {len(self.classes)} classes, and a mask has room for {_MOST_CLASSES}. Leave out"
                f" {Option('masks')}, or join classes."
            )
        if self.outlines is not None and self.without_outline and not any(self.outlines):
            raise ScanError(
                f"{source} has no polygon and no RLE, of which masks are drawn. Leave out {Option('masks')}."
            )
        if self.without_outline:
            self.notes.append(
                f"{counted(self.without_outline, 'box', 'boxes')} of {source} without polygon or RLE: not in the masks."
            )
        outlines = self.outlines or []
        return [drawing(own, frame) for own, frame in zip(outlines, self.frames.tolist(), strict=True)]

    def refuse(self, inputs: Iterable[int], reason: str) -> None:
        """Reject inputs; of several reasons the first is reported."""
        for index in inputs:
            self.refused.setdefault(index, reason)

    def note(self, found: list[str], one: str, many: str) -> None:
        """Say of how many something is true, and name the first; not at all where it is none.

        Args:
            one: what to say of a single one: "image has no boxes"; many: of several: "images have no boxes".
        """
        if found:
            self.notes.append(f"{counted(len(found), one, many)}: {some(found)}.")

    def boxes(self, rules: BoxRules) -> Boxes:
        """Return all boxes, input after input."""
        corners = np.array(self.corners, np.float64).reshape(-1, 4)
        owners, targets = np.array(self.owners, np.int64), np.array(self.targets, np.int64)
        return Boxes.grouped(owners, corners, targets, self.frames, rules)


def label_paths(split: str, inputs: Inputs) -> list[str]:
    """Return the paths of inputs as labels may give them: with the split's folder; of a member, its name in the archive."""
    if inputs.archives:
        archives = [inputs.archives[number].path for number, *_ in inputs.members.tolist()]
        return [path[len(archive) + 1 :] for path, archive in zip(inputs.paths, archives, strict=True)]
    return [f"{split}/{path}" for path in inputs.paths] if split else inputs.paths[:]
