"""IMAGES as a program without a store reads them: each decoded whole by Pillow, then resized and cropped by a pack's options.

`pack compare` compares a store with them. They have what ImageFolder has: classes, samples, and (image, target) by index.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt

from packer.errors import DecodeError, OptionsError, PackError
from packer.inputs.samples import Inputs
from packer.pixels.geometry import Geometry
from packer.pixels.opening import UPRIGHT, load_image, open_image
from packer.sample_lines import read_paths, read_rejects
from packer.sources.base import Readable
from packer.sources.local import locate
from reader.format.manifest import Manifest

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


class FolderRows:
    """The images of a folder, tar, zip or URL, as rows of the store packed from it; without rejected images.

    Args:
        images: the name of the packed input.
        inputs: the current images, as `scan` lists them.
        store, manifest: the store; its rejects are left out.

    Raises:
        OptionsError: the store was packed from other images.
    """

    def __init__(self, images: str, inputs: Inputs, store: Path, manifest: Manifest) -> None:
        has_classes = inputs.target_kind == manifest.target_kind == "class" and "extras/boxes" not in manifest.tensors
        self.classes = list(inputs.classes) if has_classes and inputs.classes else None
        targets = inputs.targets.tolist() if self.classes else [None] * len(inputs)
        rejected = {reject.path for reject in read_rejects(store)}
        chosen = [index for index, path in enumerate(inputs.paths) if path not in rejected]
        self.samples = [(inputs.paths[index], targets[index]) for index in chosen]
        self._inputs, self._chosen, self._geometry = inputs, chosen, Geometry.recorded(manifest)
        self._mode = _MODES[manifest.channels]
        # rows read so far whose image EXIF orientation turned
        self.turned = set[int]()
        if set(read_paths(store)).isdisjoint(path for path, _ in self.samples):
            raise OptionsError(
                f"{images} has no image of {store}. Expected the packed images, such as the folder of class folders."
            )

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> tuple[npt.NDArray[np.uint8], object]:
        """Return (uint8[H, W, C], target) of an image that became a row; raises PackError if it cannot be read."""
        path, target = self.samples[row]
        try:
            data, _ = self._source(self._chosen[row]).read()
            # Pillow's warnings, which the pack has recorded
            with warnings.catch_warnings(action="ignore"), open_image(data) as opened:
                turn = UPRIGHT.get(load_image(opened))
                self.turned.update([row] * (turn is not None))
                image = (opened if turn is None else opened.transpose(turn)).convert(self._mode)
        except DecodeError as e:
            raise PackError(f"{path} cannot be compared: {e}. It has changed since it was packed.") from e
        made, _ = self._geometry.to_row(image, self._geometry.resized(*image.size))
        return np.array(made), target

    def _source(self, index: int) -> Readable:
        inputs = self._inputs
        member = inputs.members[index] if inputs.archives else None
        return locate(inputs.base, inputs.paths[index], inputs.archives, member, inputs.roots)
