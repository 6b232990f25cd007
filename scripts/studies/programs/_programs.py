"""Which programs there are, what each needs, and how many of its lines are changed. Runs none of them."""

from __future__ import annotations

import difflib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from scripts.studies.programs._edits import edit

HERE = Path(__file__).resolve().parent
_WAYS = ("dataset", "loader")


@dataclass(frozen=True)
class Program:
    """A program of the study.

    Attributes:
        title: of the program that others published.
        needs: the packages that it imports, beside torch.
        requirements: those of the package index, of the version that it is measured with, as pip takes them.
        size: of its crops, as its authors have it or nearly so.
        data: what it reads: "" photographs by class, "small" the same of 32 pixels, "boxes" drawn images with boxes.
        note: what its versions on a store lack, or why they have more lines than nine; "" where nothing.
    """

    name: str
    title: str
    needs: tuple[str, ...] = ("torchvision",)
    requirements: tuple[str, ...] = ("torchvision==0.28.0",)
    size: int = 224
    data: str = ""
    note: str = ""

    @property
    def original(self) -> Path:
        """The program as it is without a store."""
        return HERE / self.name / "original.py"

    def ways(self) -> dict[str, str]:
        """Return the text of the same program on a store, by what it reads with: dataset, loader."""
        before = self.original.read_text(encoding="utf-8")
        scripts = {way: self.original.with_name(f"{way}.ed") for way in _WAYS}
        return {way: edit(before, path.read_text(encoding="utf-8")) for way, path in scripts.items() if path.exists()}

    def write_ways(self, folder: Path) -> dict[str, Path]:
        """Write the versions on a store to FOLDER/NAME, where they can be run; returns their paths by way."""
        paths = {}
        for way, text in self.ways().items():
            paths[way] = folder / self.name / f"{way}.py"
            paths[way].parent.mkdir(parents=True, exist_ok=True)
            paths[way].write_text(text, encoding="utf-8")
        return paths

    def changed_lines(self, way: str) -> tuple[int, int]:
        """Count the lines that the program loses and gains on a store."""
        return changed_lines(self.original.read_text(encoding="utf-8"), self.ways()[way])

    def lacking(self) -> list[str]:
        """Name the packages that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


_TORCHVISION = "torchvision==0.28.0"
PROGRAMS = {
    program.name: program
    for program in (
        Program("torchvision_classification", "torchvision references/classification/train.py"),
        Program(
            "timm_train",
            "timm train.py",
            ("torchvision", "timm"),
            (_TORCHVISION, "timm==1.0.31"),
            note="with MemmapLoader, create_loader, which makes transform and DataLoader in one call of nine lines, gives way to"
            " a recipe of batches: timm's own transform would be called for each image",
        ),
        Program(
            "hf_trainer",
            "transformers run_image_classification.py",
            ("torchvision", "transformers", "datasets", "accelerate"),
            (_TORCHVISION, "transformers==5.23.0", "datasets==5.2.0", "accelerate==1.15.0"),
            note="rows are (image, label), not columns: the functions of set_transform go, most of the lines",
        ),
        Program(
            "lightning_ddp",
            "Lightning, DDP",
            ("torchvision", "lightning"),
            (_TORCHVISION, "lightning==2.6.6"),
        ),
        Program(
            "ultralytics_classify",
            "ultralytics classify",
            ("torchvision", "ultralytics", "cv2", "polars"),
            (_TORCHVISION, "ultralytics==8.4.190"),
        ),
        Program(
            "simclr",
            "SimCLR (sthalles)",
            size=96,
            note="with MemmapLoader a tenth line: its order has a seed of its own, as torch's does not reach it",
        ),
        Program(
            "accelerate_cv",
            "accelerate complete_cv_example.py",
            ("torchvision", "accelerate"),
            (_TORCHVISION, "accelerate==1.15.0"),
            note="MemmapLoader reads no dataset class of a program: PetsDataset goes, and with it the function and the lists of"
            " files and labels that it was made of",
        ),
        Program("dino", "DINO main_dino.py, multi-crop", size=112),
        Program(
            "airbench",
            "cifar10-airbench",
            size=32,
            data="small",
            note="CifarLoader is a loader of its own, which augments on the device: MemmapLoader replaces the class and"
            " its two functions",
        ),
        Program(
            "ultralytics_detect",
            "ultralytics detect",
            ("torchvision", "ultralytics", "cv2", "polars"),
            (_TORCHVISION, "ultralytics==8.4.190"),
            data="boxes",
            note="no MemmapLoader: mosaic takes several images of the dataset for each sample",
        ),
        Program(
            "torchvision_detection",
            "torchvision references/detection/train.py",
            ("torchvision", "pycocotools"),
            (_TORCHVISION, "pycocotools==2.0.11"),
            data="boxes",
            note="with MemmapLoader boxes come from the store: the program's dataset, its wrapper and its collate_fn go, and its"
            " transforms become one of batches",
        ),
    )
}


def diff(before: str, after: str, context: int = 3) -> list[str]:
    """Return the lines of a unified diff, without its two lines of file names."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=context, lineterm="")
    return list(lines)[2:]


def changed_lines(before: str, after: str) -> tuple[int, int]:
    """Count the lines that a program loses and gains; docstrings of modules say what it is, and are the same in both.

    Example:
        >>> changed_lines("a\\nb\\nc\\n", "a\\nB\\nc\\nd\\n")
        (1, 2)
    """
    lines = [line for line in diff(before, after, context=0) if not line.startswith("@@")]
    return sum(line.startswith("-") for line in lines), sum(line.startswith("+") for line in lines)
