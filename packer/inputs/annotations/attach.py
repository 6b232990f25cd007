"""Gives inputs the boxes that --boxes names, and masks of their outlines, whichever kind of label files they are in."""

from __future__ import annotations

from pathlib import Path

from packer.errors import ScanError
from packer.inputs.annotations.box_labels import label_paths
from packer.inputs.annotations.boxes import BoxRules
from packer.inputs.annotations.coco import read_coco
from packer.inputs.annotations.masks import check_no_masks
from packer.inputs.annotations.yolo import read_yolo
from packer.inputs.samples import Inputs
from packer.option_names import Option
from packer.options import InputOptions


def give_boxes(splits: dict[str, Inputs], options: InputOptions, classes: tuple[str, ...] | None) -> None:
    """Give the inputs of all splits the boxes that --boxes names, the class list of the boxes, and, where asked, their masks.

    Args:
        classes: the class list to impose.

    Raises:
        ScanError: there is no such file or folder, or it is not understood; the inputs have classes of their own.
    """
    path = Path(options.boxes or "")
    names = [name for split, inputs in splits.items() for name in label_paths(split, inputs)]
    found = (read_yolo if path.is_dir() else read_coco)(path, names, classes, has_masks=options.draws_masks)
    drawings = found.drawings(str(path)) if options.draws_masks else []
    boxes = found.boxes(BoxRules(options.min_visibility, options.max_boxes, options.upright_labels))
    start = 0
    for inputs in splits.values():
        span = range(start, start := start + len(inputs))
        _check_own_labels(inputs, path)
        inputs.boxes = boxes.chosen(span)
        if options.draws_masks:
            check_no_masks(inputs)
            inputs.masks = drawings[span.start : span.stop]
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
    for name in ("boxes", "box_targets", "box_count"):
        if name in inputs.extras:
            raise ScanError(f"the inputs have a column {name!r} already. Rename it, or leave out {Option('boxes')}.")
