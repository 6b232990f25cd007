"""Gives inputs the boxes of the label files that --boxes names."""

from __future__ import annotations

from pathlib import Path

from packer.errors import ScanError
from packer.inputs.annotations.box_labels import label_paths
from packer.inputs.annotations.coco import read_coco
from packer.inputs.annotations.yolo import read_yolo
from packer.inputs.samples import Inputs
from packer.option_names import Option
from packer.options import InputOptions


def give_boxes(splits: dict[str, Inputs], options: InputOptions, classes: tuple[str, ...] | None) -> None:
    """Give the inputs of all splits the boxes that --boxes names, and the class list of the boxes.

    Args:
        classes: the class list to impose.

    Raises:
        ScanError: there is no such file or folder, or it is not understood; the inputs have classes of their own.
    """
    path = Path(options.boxes or "")
    names = [name for split, inputs in splits.items() for name in label_paths(split, inputs)]
    found = (read_yolo if path.is_dir() else read_coco)(path, names, classes)
    boxes = found.boxes()
    start = 0
    for inputs in splits.values():
        span = range(start, start := start + len(inputs))
        _check_own_labels(inputs, path)
        inputs.boxes = boxes.chosen(span)
        inputs.classes = found.classes
        inputs.labels["boxes"] = found.digest
        inputs.refused = {i - span.start: found.refused[i] for i in span if i in found.refused} | inputs.refused
    next(iter(splits.values())).notes += found.notes


def _check_own_labels(inputs: Inputs, path: Path) -> None:
    if inputs.classes:
        raise ScanError(
            f"{path} has classes, and so have the targets of the images ({inputs.classes[0]!r} is one). A store has one class"
            f" list: leave out the column of targets, or {Option('boxes')}."
        )
