"""The examples, as subprocesses or through their main(): on small photographs in 3 classes, and on drawings with boxes."""

from __future__ import annotations

import importlib
import os
import random
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from children import program
from conftest import make_tree, torchvision_or_skip
from PIL import Image, ImageDraw

from packer import pack

ROOT = Path(__file__).resolve().parents[1]
EPOCH = re.compile(r"epoch (\d+): loss (\d+\.\d+), accuracy (\d\.\d+), held out (\d\.\d+), ([\d,]+) images/s")


def run(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run with this Python's `python` and `pack` first in PATH, as in an activated environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # one thread: on a busy machine the threads of so small a network mostly wait for each other
    variables = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, env=variables)


def train(*arguments: object) -> subprocess.CompletedProcess[str]:
    return program(ROOT / "examples" / "train.py", *arguments)


Example = Callable[..., int]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Example]:
    """Call the main() of an example with arguments, in this process, where torch is imported already; one thread as in run."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def call(name: str, *arguments: object) -> int:
        module = importlib.import_module(name)
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        return module.main()

    yield call
    torch.set_num_threads(threads)


def epochs(output: str) -> list[tuple[int, float, float, float]]:
    """Parse what train.py prints: epoch, loss, accuracy, held-out accuracy."""
    return [(int(n), float(a), float(b), float(c)) for n, a, b, c, _ in EPOCH.findall(output)]


def test_train_learns_the_classes_of_a_store(store: Path) -> None:
    done = train(store, "--epochs", "4", "--batch-size", "16", "--device", "cpu", "--val", store)
    assert done.returncode == 0, done.stderr
    found = epochs(done.stdout)
    assert [epoch for epoch, *_ in found] == [1, 2, 3, 4]
    losses = [loss for _, loss, *_ in found]
    assert losses[-1] < losses[0]
    assert all(0 <= accuracy <= 1 for _, _, *both in found for accuracy in both)


@pytest.mark.cuda
def test_train_runs_on_cuda(store: Path) -> None:
    done = train(store, "--epochs", "1", "--batch-size", "16", "--device", "cuda")
    assert done.returncode == 0, done.stderr
    assert len(epochs(done.stdout)) == 1


def refusal(example: Example, capsys: pytest.CaptureFixture[str], name: str, arguments: str, **paths: Path) -> str:
    """Return the sentence with which an example ends."""
    try:
        code = example(name, *[paths.get(word, word) for word in arguments.split()])
    except SystemExit as e:
        return str(e)
    assert code == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("train", "EMPTY", "is not a pixpack store"),
        ("train", "STORE --device abacus", "device is 'abacus'"),
        ("train", "STORE --val FLAT", "has other classes"),
        ("train", "STORE --checkpoint FILE", "is not a checkpoint of this network"),
        ("export", "STORE EMPTY --checkpoint NONE", "none.pt"),
        ("lightning_datamodule", "EMPTY", "is not a pixpack store"),
        ("detect", "STORE", "has no boxes. Pack it with --boxes."),
        ("segment", "STORE", "has no masks. Pack it with --masks."),
    ],
)
def test_an_example_says_in_one_sentence_what_it_cannot_use(
    shared_store: Path,
    tmp_path: Path,
    example: Example,
    capsys: pytest.CaptureFixture[str],
    name: str,
    arguments: str,
    said: str,
) -> None:
    if name in ("detect", "segment"):
        torchvision_or_skip()
    if name == "lightning_datamodule":
        pytest.importorskip("lightning")
    if "FLAT" in arguments:
        make_tree(tmp_path / "images", classes=1, each=2)
        pack(tmp_path / "images" / "class0", tmp_path / "flat", size=32, workers=1)
    paths = {"EMPTY": tmp_path, "FLAT": tmp_path / "flat", "FILE": Path(__file__), "NONE": tmp_path / "none.pt"}
    error = refusal(example, capsys, name, arguments, STORE=shared_store, **paths)
    assert error.startswith(f"{name}.py: ") or name in ("detect", "segment")
    assert said in error


@pytest.mark.parametrize(
    "found", ["raise ImportError", "raise RuntimeError('operator torchvision::nms does not exist')"]
)
@pytest.mark.parametrize(("name", "arguments"), [("detect", ""), ("segment", ""), ("train", "--model resnet50")])
def test_an_example_without_the_torchvision_of_its_torch_says_how_to_install_it(
    shared_store: Path,
    tmp_path: Path,
    example: Example,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    arguments: str,
    found: str,
) -> None:
    (tmp_path / "torchvision.py").write_text(found)
    monkeypatch.syspath_prepend(tmp_path)
    for module in [module for module in sys.modules if module.split(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, module)
    error = refusal(example, capsys, name, f"STORE {arguments}", STORE=shared_store)
    assert error.startswith(f"{name}.py: ")
    assert "pip install --no-deps torchvision" in error


def test_train_resumes_in_the_middle_of_an_epoch_to_the_same_weights(
    shared_store: Path, tmp_path: Path, example: Example, capsys: pytest.CaptureFixture[str]
) -> None:
    def weights(name: str) -> dict[str, torch.Tensor]:
        return torch.load(tmp_path / name)["model"]

    words = ["--device", "cpu", "--batch-size", "27", "--epochs", "2", "--checkpoint"]
    assert example("train", shared_store, *words, tmp_path / "full.pt") == 0
    assert len(epochs(capsys.readouterr().out)) == 2
    # 3 steps an epoch: the second run begins inside the first epoch and ends inside the second one
    for _ in range(3):
        assert example("train", shared_store, *words, tmp_path / "parts.pt", "--steps", 2) == 0
    out = capsys.readouterr().out
    assert re.findall(r"stopped (\d) steps before its end", out) == ["1", "2"]
    full, parts = weights("full.pt"), weights("parts.pt")
    assert [name for name in full if not torch.equal(full[name], parts[name])] == []
    assert sorted(p.name for p in tmp_path.glob("*.pt*")) == ["full.pt", "parts.pt"]


def test_train_compiles_and_computes_in_bfloat16(
    shared_store: Path, example: Example, capsys: pytest.CaptureFixture[str]
) -> None:
    assert example("train", shared_store, "--compile", "eager", "--amp", "--epochs", 1, "--device", "cpu") == 0
    assert len(epochs(capsys.readouterr().out)) == 1


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # what loads TorchScript is still in use
def test_export_gives_the_scores_of_the_network_with_its_normalization_inside(
    shared_store: Path, tmp_path: Path, example: Example, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    assert example("export", shared_store, tmp_path / "exported") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["ONNX", "TorchScript", "torch.export", "TensorRT"]
    assert all("scores of 5 images differ" in line for line in lines[:3])
    session = onnxruntime.InferenceSession(tmp_path / "exported" / "model.onnx")
    assert [(value.type, value.shape[1:]) for value in session.get_inputs()] == [("tensor(uint8)", [3, 32, 32])]


def test_export_fails_where_what_comes_back_gives_other_scores(
    shared_store: Path, tmp_path: Path, example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    module = importlib.import_module("export")
    monkeypatch.setattr(module, "NEEDS", {"ONNX": ["no_such_package"], "TensorRT": ["no_such_package"]})
    monkeypatch.setattr(module, "torchscript", lambda model, example, folder: lambda images: model[1:](images.float()))
    assert example("export", shared_store, tmp_path) == 1


@pytest.fixture(scope="session")
def uncropped_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store as the README packs it: 45 rows with sizes of their own in 3 classes."""

    root = tmp_path_factory.mktemp("full")
    pack(make_tree(root / "images", each=15), root / "out", fit="none", max_size=512, workers=1)
    return root / "out"


@pytest.mark.parametrize("name", ["train", "ddp", "lightning_datamodule", "export"])
def test_an_example_runs_on_what_the_readme_packs(
    name: str, uncropped_images: Path, tmp_path: Path, example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = {"lightning_datamodule": "lightning", "ddp": "torch.distributed"}
    pytest.importorskip(needed.get(name, "torch"))
    words: dict[str, list[object]] = {
        "train": ["--epochs", 1, "--device", "cpu", "--batch-size", 3, "--trace", tmp_path / "trace.json"],
        "ddp": ["--epochs", 1, "--checkpoint", tmp_path / "run.pt"],
        "lightning_datamodule": ["--epochs", 1, "--checkpoints", tmp_path, "--profile"],
        "export": [tmp_path],
    }
    if name == "ddp":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for variable, value in ranks.items():
            monkeypatch.setenv(variable, str(value))
    assert example(name, uncropped_images, *words[name]) == 0
    assert name != "train" or "Optimizer.step" in (tmp_path / "trace.json").read_text(encoding="utf-8")


def numpy_jax(store: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run numpy_jax.py where torch and our packages cannot be imported."""
    for name in ("torch", "tensordict", "reader", "packer"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('must do without')")
    return run(sys.executable, ROOT / "examples" / "numpy_jax.py", store, PYTHONPATH=str(tmp_path))


@pytest.mark.parametrize("library", ["numpy", "jax"])
def test_numpy_and_jax_read_a_store_without_torch_and_without_us(
    shared_store: Path, tmp_path: Path, library: str
) -> None:
    if library == "jax":
        pytest.importorskip("jax")
    else:
        (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['jax'] = None")
    done = numpy_jax(shared_store, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"90 rows of uint8[32, 32, 3], normalized by {library}: mean 0.000, std 1.000\n"


@pytest.mark.parametrize("file", ["manifest.json", "_tensordict/pixels.memmap"])
def test_numpy_refuses_a_store_that_is_damaged(store: Path, tmp_path: Path, file: str) -> None:
    path = store / file
    path.write_bytes(path.read_bytes()[1:])
    done = numpy_jax(store, tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"numpy_jax.py: {path} is")
    assert done.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 20 pictures of up to three bright rectangles (1) and dark ellipses (2), with boxes of YOLO and masks."""

    root, draw = tmp_path_factory.mktemp("shapes"), random.Random(0)
    for folder in ("images", "labels", "masks"):
        (root / folder).mkdir()
    (root / "labels" / "classes.txt").write_text("rectangle\nellipse\n")
    for n in range(20):
        image, mask = Image.effect_noise((64, 64), 20).convert("RGB"), Image.new("L", (64, 64))
        lines = []
        for corner in draw.sample([(2, 2), (34, 2), (2, 34), (34, 34)], draw.randint(1, 3)):
            width, height, kind = draw.randint(12, 28), draw.randint(12, 28), draw.randint(0, 1)
            box = (*corner, corner[0] + width, corner[1] + height)
            for picture, color in ((image, "navy" if kind else "gold"), (mask, kind + 1)):
                pen = ImageDraw.Draw(picture)
                (pen.ellipse if kind else pen.rectangle)(box, fill=color)
            lines.append(f"{kind} {(box[0] + width / 2) / 64} {(box[1] + height / 2) / 64} {width / 64} {height / 64}")
        image.save(root / "images" / f"{n:03}.png")
        mask.save(root / "masks" / f"{n:03}.png")
        (root / "labels" / f"{n:03}.txt").write_text("\n".join(lines))
    pack(root / "images", root / "out", boxes=root / "labels", masks=root / "masks", workers=1)
    return root / "out"


def test_train_takes_a_network_of_torchvision(
    shared_store: Path, example: Example, capsys: pytest.CaptureFixture[str]
) -> None:
    torchvision_or_skip()
    words = ["--model", "resnet18", "--epochs", 1, "--device", "cpu"]
    assert example("train", shared_store, *words) == 0
    assert len(epochs(capsys.readouterr().out)) == 1
    assert example("train", shared_store, "--model", "resnet1", "--device", "cpu") == 1
    assert "Unknown model resnet1" in capsys.readouterr().err


def test_detect_trains_by_torchvisions_loss(
    shapes: Path, tmp_path: Path, example: Example, capsys: pytest.CaptureFixture[str]
) -> None:
    torchvision_or_skip()
    words = ["--scratch", "--epochs", 2, "--batch-size", 6, "--lr", 0.003, "--device", "cpu"]
    example("detect", shapes, *words, "--weights", tmp_path / "detector.pt")
    lines = re.findall(r"epoch \d: loss (\d+\.\d+), held out (\d+\.\d+)", capsys.readouterr().out)
    assert len(lines) == 2
    assert float(lines[1][0]) < float(lines[0][0])
    assert "head.classification_head.cls_logits.weight" in torch.load(tmp_path / "detector.pt")


def test_segment_trains_and_measures_iou(shapes: Path, example: Example, capsys: pytest.CaptureFixture[str]) -> None:
    torchvision_or_skip()
    words = ["--model", "lraspp_mobilenet_v3_large", "--scratch", "--classes", 3, "--epochs", 2, "--batch-size", 6]
    example("segment", shapes, *words, "--device", "cpu")
    lines = re.findall(r"epoch \d: loss (\d+\.\d+), IoU (\d\.\d+)", capsys.readouterr().out)
    assert len(lines) == 2
    assert float(lines[1][0]) < float(lines[0][0])


def test_segment_trains_on_rows_of_their_own_sizes_and_refuses_masks_that_would_train_one_class(
    shapes: Path, tmp_path: Path, example: Example, capsys: pytest.CaptureFixture[str]
) -> None:

    torchvision_or_skip()
    given = {"fit": "none", "masks": shapes.parent / "masks", "workers": 1}
    pack(shapes.parent / "images", tmp_path / "own", **given)
    words = ["--model", "lraspp_mobilenet_v3_large", "--scratch", "--epochs", 1, "--batch-size", 6, "--device", "cpu"]
    example("segment", tmp_path / "own", *words, "--classes", 3, "--crop", 32)
    assert re.search(r"epoch 1: loss \d+\.\d+, IoU \d\.\d+", capsys.readouterr().out)
    with pytest.raises(SystemExit, match=r"have the values \[0, 1, 2\], expected two or more of 0 to 1, and 255"):
        example("segment", tmp_path / "own", *words, "--classes", 2)
    for path in (shapes.parent / "masks").glob("*.png"):
        (tmp_path / "masks").mkdir(exist_ok=True)
        with Image.open(path) as mask:
            mask.point(lambda value: 255 * (value > 0)).save(tmp_path / "masks" / path.name)
    pack(shapes.parent / "images", tmp_path / "binary", **given | {"masks": tmp_path / "masks"})
    with pytest.raises(SystemExit, match=r"have the values \[0, 255\], .* Pack with --mask-values, or give --classes."):
        example("segment", tmp_path / "binary", *words)


def test_the_iou_of_segment_is_the_mean_over_classes_without_what_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    module = importlib.import_module("segment")
    true = torch.tensor([[0, 0, 1, 1, 255, 2]], dtype=torch.uint8)[None]
    scores = torch.nn.functional.one_hot(torch.tensor([[0, 1, 1, 1, 0, 2]]), 4).permute(2, 0, 1)[None].float()
    batches = type("Batches", (list,), {"device": torch.device("cpu")})([(scores, {"masks": true})])
    model = torch.nn.Module()
    model.forward = lambda images: {"out": images}  # type: ignore[method-assign]
    assert module.mean_iou(model, batches, 4) == pytest.approx((1 / 2 + 2 / 3 + 1) / 3)
