"""Which stand-ins there are and what each needs. Runs none of them."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from scripts.studies.programs._edits import HERE, WAYS, by_file, patched


@dataclass(frozen=True)
class Program:
    """A stand-in: a small program of ours with the structure of one that others published.

    Attributes:
        title: of the program that it stands for.
        needs: the packages that it imports, beside torch.
        requirements: those of the package index, of the version that it is measured with, as pip takes them.
        size: of its crops, as its authors have it or nearly so.
        data: what it reads: "" photographs by class, "small" the same of 32 pixels, "boxes" drawn images with boxes.
    """

    name: str
    title: str
    needs: tuple[str, ...] = ("torchvision",)
    requirements: tuple[str, ...] = ("torchvision==0.28.0",)
    size: int = 224
    data: str = ""

    @property
    def original(self) -> Path:
        """The program as it is without a store."""
        return HERE / self.name / "original.py"

    def ways(self) -> dict[str, str]:
        """Return the text of the same program on a store, by what it reads with: dataset, loader."""
        before = self.original.read_text(encoding="utf-8")
        diffs = {way: self.original.with_name(f"{way}.diff") for way in WAYS}
        return {
            way: patched(before, by_file(path.read_text(encoding="utf-8"))["original.py"])
            for way, path in diffs.items()
            if path.exists()
        }

    def write_ways(self, folder: Path) -> dict[str, Path]:
        """Write the versions on a store to FOLDER/NAME, where they can be run; returns their paths by way."""
        paths = {}
        for way, text in self.ways().items():
            paths[way] = folder / self.name / f"{way}.py"
            paths[way].parent.mkdir(parents=True, exist_ok=True)
            paths[way].write_text(text, encoding="utf-8")
        return paths

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
        ),
        Program(
            "hf_trainer",
            "transformers run_image_classification.py",
            ("torchvision", "transformers", "datasets", "accelerate"),
            (_TORCHVISION, "transformers==5.23.0", "datasets==5.2.0", "accelerate==1.15.0"),
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
        ),
        Program(
            "accelerate_cv",
            "accelerate complete_cv_example.py",
            ("torchvision", "accelerate"),
            (_TORCHVISION, "accelerate==1.15.0"),
        ),
        Program("dino", "DINO main_dino.py, multi-crop", size=112),
        Program(
            "airbench",
            "cifar10-airbench",
            size=32,
            data="small",
        ),
        Program(
            "ultralytics_detect",
            "ultralytics detect",
            ("torchvision", "ultralytics", "cv2", "polars"),
            (_TORCHVISION, "ultralytics==8.4.190"),
            data="boxes",
        ),
        Program(
            "torchvision_detection",
            "torchvision references/detection/train.py",
            ("torchvision", "pycocotools"),
            (_TORCHVISION, "pycocotools==2.0.11"),
            data="boxes",
        ),
    )
}
