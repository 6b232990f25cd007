"""Every `pack` line that a document shows runs as it stands, in a folder that has what it names."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from children import program
from conftest import PACK, make_tree
from inputs.test_remote import s3, s3_server  # noqa: F401 (fixtures)
from PIL import Image
from test_docs import DOCS, FORMAT, FROM_STORAGE, PAGES, README, ROOT, fenced

from packer import pack, pack_dataset, push
from packer.cli import app

CONTRIBUTING = ROOT / "CONTRIBUTING.md"
SHOWN_ON = [README, CONTRIBUTING, FORMAT, *PAGES]
CLASSES = ("cat", "dog", "owl")

# What does not run here, by its first words, and the test or the program that runs it.
ELSEWHERE = {
    "pip install": "scripts/readme.py",
    "scripts/quickstart": "scripts/readme.py",
    "scripts/setup.sh": "scripts/benchmarks/packing/first_batch.py",
    "scripts/test": ".ci/run",
    "python3 -m venv env": "scripts/common/fresh.py",
    ".ci/run": ".ci/run",
    "scripts/gpu/on_gpu": "tests/test_on_gpu.py",
    "python -m scripts.samples.make_sample": "scripts/quickstart",
    "python -m scripts.benchmarks.reading.bench_imagefolder": "scripts/readme.py",
    "python -m scripts.studies.claims": "tests/studies/test_claims.py",
    "python -m scripts.studies.peers": "tests/studies/test_peers.py",
    "pack images/ out/ --fit none --max-size 512 --engine ray": "tests/workers/test_ray.py",
    "pack info out.packing/": "tests/store/test_unfinished.py",  # with exit code 1
}
# What stands in a page before a line, or elsewhere, and has to have been run.
PARTS = "for i in 1 2 3 4; do pack images/ out/ --fit none --max-size 512 --part $i/4; done"
BEFORE = {
    "pack images/ out/": "rm images/*/001.jpg",  # CIFAR, as the page says: images of one size
    "pack show out/ --rows 7 --single -o seven.png": "rm -r out; mv many out",
    "pack seal out/": PARTS,
    "pack images/ out/ --fit none --max-size 512 --part 2/8 --resume": "",
    "pack subset s3://bucket/out some/ --rows 0-999": "pack push many/ s3://bucket/out",
    "pack pull s3://bucket/stores/out out/": "pack push out/ s3://bucket/stores/out; rm -r out",
    "pack push out/ s3://bucket/stores/out --overwrite": "pack push out/ s3://bucket/stores/out",
    "find photos -name '*.jpg' | sort | pack update - out/": "find photos -name '*.jpg' | sort | pack - out --size 8",
    "pack update photos/ out/ --boxes instances.json": "pack photos/ out/ --size 8 --fit pad --boxes instances.json --overwrite",
    "pack update photos/ out/ --classes classes.txt": "pack photos/ out/ --size 8 --overwrite",
    "pack val.csv out-val/ --size 224 --target-column kind,color --classes out/": (
        "pack train.csv out/ --size 8 --target-column kind,color --overwrite"
    ),
    "pack show out/ --rows 100-149 -o some.png": "rm -r out; mv many out",
    "seq 0 2 1998 | pack subset out/ even/ --rows -": "rm -r out; mv many out",
    "pack subset out/ few/ --per-class 20 --seed 1": "rm -r out; mv many out",
    "pack /data/imagenet/val /nvme/val --size 224 --crop-fraction 0.875 --classes /nvme/train --resume": (
        "pack /data/imagenet/train /nvme/train --size 8"
    ),
    "pack verify /nvme/train": "pack /data/imagenet/train /nvme/train --size 8",
}


def before(line: str) -> str:
    """Return what has to have been run before a line: of one that reads a store at a URL, the push."""
    reads = re.match(r"pack (?:info|verify|show|subset|pull) (s3://\S+)", line)
    return BEFORE.get(line, f"pack push out/ {reads[1]}" if reads else "")


def lines() -> Iterator[tuple[str, str]]:
    """Yield every line of shell that a document shows, once, with the name of the first document that has it."""
    seen = set()
    for path in SHOWN_ON:
        for code in fenced(path, "sh"):
            for line in code.splitlines():
                words = " ".join(re.sub(r"(^|\s)#.*$", "", line).split())
                if words and words not in seen:
                    seen.add(words)
                    yield str(path.relative_to(ROOT)), words


def elsewhere(line: str) -> str | None:
    return next((where for words, where in ELSEWHERE.items() if line.startswith(words)), None)


RUN = [(page, line) for page, line in lines() if not elsewhere(line)]


def test_what_runs_elsewhere_is_shown_and_runs_there() -> None:
    shown = [line for _, line in lines()]
    assert [words for words in ELSEWHERE if not any(line.startswith(words) for line in shown)] == []
    assert [where for where in ELSEWHERE.values() if not (ROOT / where).is_file()] == []
    assert [line for line in BEFORE if line not in shown] == []
    assert all(re.search(r"\bpack\b", line) for _, line in RUN)


@pytest.mark.parametrize("path", SHOWN_ON, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_block_of_code_is_of_a_kind_that_is_run(path: Path) -> None:
    """Guards both tests of documents: a block that says it is text, or has no language, would be run by none."""
    text = path.read_text(encoding="utf-8")
    kinds = re.findall(r"^ *```(\w*)$(?:.*?)^ *```$", text, re.M | re.S)
    if path.parent not in (
        DOCS / "reference" / "cli",
        DOCS / "reference" / "python",
    ):  # signatures and help, both generated
        assert set(kinds) <= {"python", "pycon", "sh", "diff"} | ({"text"} if path.stem == "architecture" else set())
    # an indented line of code after an empty one is a block too
    assert re.findall(r"\n\n    (?:pack|python|scripts/|pip|train|loader)\b.*", text) == [], (
        "write ```sh or ```python around it"
    )


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the lines name: images, lists, archives, labels and stores."""
    root = tmp_path_factory.mktemp("commands")
    tree = make_tree(root / "made", each=2)
    for folder, name in zip(sorted(tree.iterdir()), CLASSES, strict=True):
        folder.rename(tree / name)
    for name in ("images", "images-val", "val", "photos", "data/images", "data/imagenet/val"):
        shutil.copytree(tree, root / name)
    for path in sorted(tree.rglob("*.jpg")):
        to = root / "data/imagenet/train" / path.relative_to(tree).with_suffix(".JPEG")
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, to)
    (root / "nvme").mkdir()
    (root / "data/stores").mkdir()
    _write_lists(root, tree)
    _write_labels(root, tree)
    _write_stores(root, tree)
    return root


def _write_lists(root: Path, tree: Path) -> None:
    names = [path.relative_to(tree).with_suffix("").as_posix() for path in sorted(tree.rglob("*.jpg"))]
    tables = {
        "labels.csv": [{"path": f"{name}.jpg", "breed": name[:3]} for name in names],
        "pairs.csv": [{"path": f"{name}.jpg", "caption": f"a {name[:3]}"} for name in names],
        "train.csv": [
            {"path": f"photos/{name}.jpg", "id": name, "label": name[:3], "kind": name[:3], "color": name[1]}
            for name in names
        ],
    }
    for name, rows in (tables | {"val.csv": tables["train.csv"]}).items():
        with open(root / name, "w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, [*rows[0]])
            table.writeheader()
            table.writerows(rows)
    (root / "names.txt").write_text("".join(f"{name}\n" for name in CLASSES))
    (root / "classes.txt").write_text("".join(f"{name}\n" for name in (*CLASSES, "yak")))
    (root / "hundred.txt").write_text("cat\ndog\n")
    for number in range(2):
        with tarfile.open(root / f"shard-00{number}.tar", "w") as tar:
            for name in names[number::2]:
                members = {"jpg": (tree / f"{name}.jpg").read_bytes(), "cls": b"1", "txt": b"a text"}
                for suffix, content in members.items():
                    member = tarfile.TarInfo(f"{number}/{name.replace('/', '-')}.{suffix}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


def _write_labels(root: Path, tree: Path) -> None:
    images, boxes = [], []
    for number, path in enumerate(sorted(tree.rglob("*.jpg"))):
        with Image.open(path) as image:
            width, height = image.size
        name = path.relative_to(tree)
        images.append({"id": number, "file_name": name.as_posix(), "width": width, "height": height})
        outline = [[4, 4, 24, 4, 24, 24, 4, 24]]
        box = {"bbox": [4, 4, 20, 20], "area": 400, "segmentation": outline, "iscrowd": 0, "category_id": 1}
        boxes.append(box | {"id": number, "image_id": number})
        for folder, suffix in (("data/labels", ".txt"), ("annotations", ".png")):
            (root / folder / name).parent.mkdir(parents=True, exist_ok=True)
            if suffix == ".txt":
                (root / folder / name).with_suffix(suffix).write_text("0 0.5 0.5 0.4 0.4\n")
            else:
                Image.new("L", (width, height), 1).save((root / folder / name).with_suffix(suffix))
                Image.new("L", (width, height), 255).save(root / folder / name.parent / f"{name.stem}_mask.png")
    coco = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "thing"}]}
    (root / "instances.json").write_text(json.dumps(coco))


def _write_stores(root: Path, tree: Path) -> None:
    pack(tree, root / "out", size=8, workers=1)
    for name in ("out-train", "raw", "imagenet", "monday", "tuesday", "a", "b", "new"):
        shutil.copytree(root / "out", root / name)
    pack(tree, root / "small", size=8, compress=True, workers=1)
    rows = [(Image.new("RGB", (8, 8), (n % 256, n % 7, 0)), n % 3) for n in range(2000)]
    pack_dataset(rows, root / "many", classes=CLASSES, workers=1)


@pytest.fixture
def folder(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of all that, with `pack` and `python` on PATH."""
    work = tmp_path / "work"
    shutil.copytree(prepared, work)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, words in (("pack", PACK), ("python", [sys.executable])):
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        (programs / name).chmod(0o755)
    (work / "examples").symlink_to(ROOT / "examples")
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    return work


def in_folder(line: str, bucket: str) -> str:
    """Return a line with its absolute paths and its bucket as they are here; a benchmark takes a moment, jq is not needed."""
    line = re.sub(r"(?<=\s)/(data|nvme)\b", r"\1", line).replace("s3://bucket", bucket)
    line = re.sub(r" --seconds \d+", "", line)
    line = re.sub(r"\bpack bench (\S+)", r"pack bench \1 --seconds 0.1", line)
    return line if shutil.which("jq") else re.sub(r" \| jq .*", " | python -m json.tool", line)


def stores_made(line: str) -> list[str]:
    """Return the folders that a line makes stores of, which must not be there before."""
    made = []
    for words in (
        shlex.split(part.strip()) for part in re.split(r"[|;]|&&|\bdo\b", line) if part.strip().startswith("pack ")
    ):
        words = words[1:]
        name = words.pop(0) if words[0] in app.cli.commands else "build"
        if name in ("build", "subset", "merge"):
            out = app.cli.commands[name].make_context(name, [*words], resilient_parsing=True).params["out"]
            made += [out] if "--overwrite" not in words and "://" not in out else []
    return made


def run(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line as a shell does; what needs nothing of a shell in a process that has imported the packages."""
    first, _, then = line.partition(" && ")
    if then:
        done = run(first, folder)
        return run(then, folder) if done.returncode == 0 else done
    if line.startswith(("pack ", "python examples/")) and not re.search(r"[|;&$<>*?~`#\n]", line):
        name, *words = shlex.split(line)
        return (
            program("packer", *words, cwd=folder)
            if name == "pack"
            else program(folder / words[0], *words[1:], cwd=folder)
        )
    command = ["bash", "-euo", "pipefail", "-c", line]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="runs commands of a Unix shell")
@pytest.mark.parametrize(("page", "line"), RUN, ids=[f"{page}: {line}" for page, line in RUN])
def test_a_command_of_the_documents_runs(page: str, line: str, folder: Path, request: pytest.FixtureRequest) -> None:
    bucket = request.getfixturevalue("s3") if "s3://" in line else ""
    if "split" in line or re.search(r"photos/(train|val)", line):
        splits = folder / "photos-of-classes"
        (folder / "photos").rename(splits)
        for split in ("train", "val"):
            shutil.copytree(splits, folder / "photos" / split)
    for command in (before(line), line):
        here = in_folder(command, bucket)
        for out in stores_made(here):
            shutil.rmtree(folder / out, ignore_errors=True)
        done = run(here, folder)
        assert done.returncode == 0, f"{page}: {here}\n{done.stderr}"
    made = [out for out in stores_made(in_folder(line, bucket)) if "--part" not in line or "seal" in line]
    assert [out for out in made if not (folder / out / "manifest.json").is_file()] == []


@pytest.mark.parametrize("path", FROM_STORAGE, ids=lambda p: p.stem)
def test_python_that_names_object_storage_or_a_servers_disk_runs(
    path: Path,
    shared_store: Path,
    tmp_path: Path,
    s3: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(shared_store, tmp_path / "nvme" / "train")
    push(shared_store, f"{s3}/out")
    names: dict[str, Any] = {"__name__": path.name}
    for code in fenced(path, "python"):
        here = code.replace("s3://bucket", s3).replace('"/nvme/', '"nvme/').replace('device="cuda"', 'device="cpu"')
        exec(compile(here, path.name, "exec"), names)
        if "loader" in names:
            images, targets = next(iter(names["loader"]))
            assert len(images) == len(targets) > 0
    assert names["train"].classes
