"""Gathers the boxes of label files, and gives the paths by which these name inputs. Reads no file."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from packer.inputs.annotations.boxes import Boxes
from packer.inputs.samples import Inputs
from packer.text import counted, some


@dataclass
class BoxLabels:
    """The boxes of label files, in any order, as they are gathered."""

    count: int
    classes: tuple[str, ...] = ()
    owners: array[int] = field(default_factory=lambda: array("q"))
    corners: array[float] = field(default_factory=lambda: array("d"))
    targets: array[int] = field(default_factory=lambda: array("q"))
    refused: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    # of all that was read: see docs/FORMAT.md, labels
    digest: str = ""

    def __post_init__(self) -> None:
        self.frames = np.zeros((self.count, 2))

    def add(self, inputs: Iterable[int], corners: tuple[float, float, float, float], target: int) -> None:
        """Give inputs a box: x0, y0, x1, y1 in their frame."""
        for index in inputs:
            self.owners.append(index)
            self.corners.extend(corners)
            self.targets.append(target)

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

    def boxes(self) -> Boxes:
        """Return all boxes, input after input."""
        corners = np.array(self.corners, np.float64).reshape(-1, 4)
        owners, targets = np.array(self.owners, np.int64), np.array(self.targets, np.int64)
        return Boxes.grouped(owners, corners, targets, self.frames)


def label_paths(split: str, inputs: Inputs) -> list[str]:
    """Return the paths of inputs as labels may give them: with the split's folder; of a member, its name in the archive."""
    if inputs.archives:
        return [inputs.above + path for path in inputs.paths]
    return [f"{split}/{path}" for path in inputs.paths] if split else inputs.paths[:]
