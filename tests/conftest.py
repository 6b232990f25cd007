"""Images for tests, a packed store of them, and the rule for CUDA tests."""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import json
import os
import signal
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import children  # noqa: F401 (sets the imports of the server of forked processes)
import no_syncs
import numpy as np
import pytest
import sizes
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from PIL import Image
from quick_forks import make_forks_quick

from packer.report import Progress

Feed = Callable[[bytes], None]
Tune = Callable[..., None]
# tests check behavior, not the speed of a busy machine
hypothesis_settings.register_profile("pixpack", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.load_profile("pixpack")


def examples(count: int) -> hypothesis_settings:
    """Have hypothesis draw this many examples: up to 100 are the same in each run, more are new each night."""
    return hypothesis_settings(max_examples=count, derandomize=count <= 100)


# Set before torch is imported: its threads then sleep between operations instead of spinning.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# fixtures of several folders
pytest_plugins = ["row_forms", "kinds", "rows", "expected_skips", "tests.hostile.watched"]

SHARED = Path(__file__).resolve().parents[2] / "shared"
# the command, without syncs to the disk
PACK = [sys.executable, str(Path(__file__).parent / "support" / "no_syncs.py")]


def photo(width: int, height: int, seed: int) -> Image.Image:
    """Make a picture with smooth colors, edges and some noise, which reveals a wrong crop or resize."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / rng.uniform(5, 40) + y / rng.uniform(5, 40) + rng.uniform(0, 6)) for _ in range(3)]
    pixels = np.stack(waves, axis=-1) * 90 + 128
    pixels[height // 4 : height // 2, width // 3 : width // 2] += 60
    pixels += rng.normal(0, 6, pixels.shape)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def make_tree(root: Path, *, classes: int = 3, each: int = 8, size: tuple[int, int] = (64, 48)) -> Path:
    """Write classes x each JPEGs of about `size` as root/<class>/<n>.jpg."""
    for c in range(classes):
        folder = root / f"class{c}"
        folder.mkdir(parents=True)
        for n in range(each):
            width, height = (size[0] + 7 * n, size[1]) if n % 2 else (size[1], size[0] + 5 * n)
            (folder / f"{n:03}.jpg").write_bytes(_jpeg(width, height, 100 * c + n))
    return root


def make_splits(root: Path, splits: Iterable[str], **shape: Any) -> None:
    """Write such a tree as root/<split> for each."""
    for split in splits:
        make_tree(root / split, **shape)


@functools.cache
def _jpeg(width: int, height: int, seed: int) -> bytes:
    """Encode a picture once: many tests use the same ones, and drawing 24 takes as long as packing them."""
    stream = io.BytesIO()
    photo(width, height, seed).save(stream, "JPEG", quality=90)
    return stream.getvalue()


def store_bytes(out: Path) -> dict[str, bytes]:
    """Read every file of a store: relative path -> content."""
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}


def unparted_bytes(out: Path) -> dict[str, bytes]:
    """Read every file of a store, except the table of blocks: parts have their own blocks."""
    found = store_bytes(out)
    for name in [name for name in found if name.endswith("manifest.json")]:
        head = json.loads(found[name])
        found[name] = json.dumps({key: v for key, v in head.items() if key not in ("blocks", "digest")}).encode()
    return found


def content_bytes(out: Path) -> dict[str, bytes]:
    """Read every file of a store, without the facts about its sources: equal images in other files give the same."""
    found = store_bytes(out)
    for name in [name for name in found if name.endswith("manifest.json")]:
        head = json.loads(found[name])
        del head["digest"]
        head["labels"] = {key: v for key, v in head.get("labels", {}).items() if key not in ("inputs", "sources")}
        found[name] = json.dumps(head, sort_keys=True).encode()
    return found


def interrupt_after(inputs: int) -> Callable[[Progress], None]:
    """Make a progress callback that interrupts a pack like Ctrl-C, once this many inputs are done."""

    def stop(progress: Progress) -> None:
        if progress.stage == "pack" and progress.done >= inputs:
            raise KeyboardInterrupt

    return stop


def interrupted(call: Callable[..., Any], images: Any, out: Path, *, inputs: int = 8, **options: Any) -> None:
    """Interrupt a call of pack or update like Ctrl-C, once this many inputs are done."""
    with pytest.raises(KeyboardInterrupt):
        call(images, out, progress=interrupt_after(inputs), **options)


def touch(root: Path, *names: str) -> Path:
    """Make files of one byte below a folder."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    return root


def check_golden_bytes(golden: Path) -> None:
    """Check that the current writer makes the bytes of a golden store."""
    from packer.store.manifest_file import encode_manifest
    from reader.format.blocks import read_blocks
    from reader.format.check import metadata_files
    from reader.format.manifest import PIXELS, read_manifest

    head = read_manifest(golden)
    assert encode_manifest(head, read_blocks(golden)) == (golden / "manifest.json").read_bytes()
    for name, content in metadata_files(head).items():
        assert (golden / name).read_bytes() == content
    assert head.files[PIXELS].digest == f"crc32:{zlib.crc32((golden / PIXELS).read_bytes()):08x}"


@contextlib.contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[Path]:
    """Make a memory cgroup; skips if this user may not."""
    group = Path("/sys/fs/cgroup") / f"pixpack-test-{os.getpid()}"
    try:
        group.mkdir()
        with open(group / "memory.max", "r+") as file:  # exists already in a cgroup of version 2
            file.write(str(limit_bytes))
    except OSError:
        if group.is_dir():
            group.rmdir()
        pytest.skip("this user may make no memory cgroup")
    yield group
    deadline = time.monotonic() + 60
    while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    group.rmdir()


def harm_at(image: Path, harm: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Call harm in a forked worker that decodes an image with the same bytes as this one."""
    from packer.pixels.decode import Decoder

    original, deadly = Decoder.row, image.read_bytes()

    def row(decoder: Decoder, data: bytes, *memory: Any) -> Any:
        if data == deadly:
            harm()
        return original(decoder, data, *memory)

    monkeypatch.setattr(Decoder, "row", row)


@pytest.fixture(autouse=True)
def _no_accelerator_of_another_test() -> Iterator[None]:
    """Reset accelerate's state after a test: a loader of several ranks looks for it among all objects of this process."""
    yield
    if (state := sys.modules.get("accelerate.state")) is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()


@pytest.fixture
def feed(tmp_path: Path) -> Any:
    """Feed bytes to standard input, like a pipe."""
    saved = os.dup(0)

    def give(data: bytes) -> None:
        (tmp_path / ".stdin").write_bytes(data)
        descriptor = os.open(tmp_path / ".stdin", os.O_RDONLY)
        os.dup2(descriptor, 0)
        os.close(descriptor)

    yield give
    os.dup2(saved, 0)
    os.close(saved)


@pytest.fixture
def delivered_signals() -> Iterator[None]:
    """Let a test's processes receive SIGINT and SIGTERM, which they would ignore if the suite does: under nohup, or with &."""
    # exec resets a handled signal to its default, but not an ignored one
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@contextlib.contextmanager
def tuned(**values: object) -> Iterator[None]:
    """Change constants of the product, also in child processes; earlier changes stay."""
    with pytest.MonkeyPatch.context() as patch:
        _set_sizes(patch, values)
        yield


def _set_sizes(patch: pytest.MonkeyPatch, values: dict[str, object]) -> None:
    words = [os.environ.get(sizes.VARIABLE, ""), *(f"{name}={value}" for name, value in values.items())]
    patch.setenv(sizes.VARIABLE, " ".join(words))
    sizes.set_sizes(patch.setattr)


@pytest.fixture
def tune(monkeypatch: pytest.MonkeyPatch) -> Tune:
    """Change constants of the product for the rest of a test, in child processes too: tune(least_block_inputs=2)."""
    return lambda **values: _set_sizes(monkeypatch, values)


@pytest.fixture
def small_blocks(tune: Tune) -> None:
    """Cut 24 inputs into 12 blocks, so that order, workers and commits matter."""
    tune(least_block_inputs=2)


@pytest.fixture(autouse=True)
def _forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork workers although the process has threads, such as that of pytest-xdist: spawning takes a second each.

    Tests of another start method set it themselves.
    """
    monkeypatch.setattr("packer.workers.processes.MOST_FORKING_THREADS", 1000)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Begin each test with the same seed of torch's generator, which seeds a loader without a seed."""
    # tests of the packer do not import torch
    if (torch := sys.modules.get("torch")) is not None:
        # torch.manual_seed would also store its caller's stack for each unused kind of device, which takes 2 ms
        torch.default_generator.manual_seed(0)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(0)


@pytest.fixture
def real_syncs() -> None:
    """Sync a test's files to the disk, for tests that drop pages or fill a disk."""


@pytest.fixture(autouse=True)
def _no_syncs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn off syncs: a pack waits 80 ms for the disk, and tests/crash covers power losses, with syncs."""
    monkeypatch.setenv(no_syncs.VARIABLE, "1" if "real_syncs" in request.fixturenames else "0")
    no_syncs.sync_nothing(monkeypatch.setattr)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """24 small JPEGs of 24 sizes in 3 class folders."""
    return make_tree(tmp_path / "images")


@pytest.fixture(scope="session")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 90 rows of 32 x 32 in 3 classes that no test may change."""
    from packer import pack

    root = tmp_path_factory.mktemp("shared")
    make_tree(root / "images", each=30)
    pack(root / "images", root / "out", size=32, workers=2)
    return root / "out"


@pytest.fixture(scope="session")
def _inductor_cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("inductor"))


@pytest.fixture
def inductor(_inductor_cache: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let torch.compile generate code, in one folder for all tests; skips without a C++ compiler.

    The code has no vector instructions, and no precompiled headers: detecting instructions and compiling all headers takes
    longer than a test's kernels.
    """
    import shutil

    if not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("no C++ compiler")
    import torch._inductor.config as config

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", _inductor_cache)
    with config.patch({"cpp.vec_isa_ok": False, "cpp_cache_precompile_headers": False}):
        yield


@pytest.fixture
def train(shared_store: Path) -> Any:
    """The MemmapDataset of `shared_store`, whose items are (image, target)."""
    from reader import MemmapDataset

    return MemmapDataset(shared_store)


@pytest.fixture
def store(shared_store: Path, tmp_path: Path) -> Path:
    """A copy of `shared_store` for one test."""
    import shutil

    return Path(shutil.copytree(shared_store, tmp_path / "store"))


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict[str, Any], request: pytest.FixtureRequest) -> None:
    """Give docstring examples a store, a folder of 6 images and a free path."""
    if type(request.node).__name__ == "DoctestItem":
        tmp_path = request.getfixturevalue("tmp_path")
        doctest_namespace["store_path"] = request.getfixturevalue("shared_store")
        doctest_namespace["images_path"] = make_tree(tmp_path / "six", each=2)
        doctest_namespace["out_path"] = tmp_path / "six-out"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the modules with long trials, so that the test processes end together on short ones."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


def pytest_collection_finish() -> None:
    make_forks_quick()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    # while their servers still answer: a feeder without one asks for minutes
    _end_feeders()
    yield
    if nextitem is not None and nextitem.path != item.path:
        make_forks_quick()


def _end_feeders() -> None:
    """End the threads of iterators that a test has dropped."""
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "pixpack-feeder":
            thread.join(20)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda"):
        import torch

        if not torch.cuda.is_available():
            if os.environ.get("REQUIRE_CUDA") == "1":
                pytest.fail("REQUIRE_CUDA=1, but torch sees no CUDA device")
            pytest.skip("no CUDA device")


def torchvision_or_skip() -> Any:
    """Return torchvision, from the folder of scripts/setup.sh; skips if it cannot be imported."""
    from scripts.bench.data import torchvision
    from scripts.bench.harness import Skip

    try:
        return torchvision()
    except Skip as e:
        pytest.skip(f"torchvision cannot be imported here: {e}")


def devices() -> list[Any]:
    """Parametrize one body for both: "cpu", and "cuda" with its mark."""
    return ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


def ffmpeg_or_skip() -> Any:
    """Return FFmpeg from `packer.pixels.ffmpeg`; skips if PyAV is missing."""
    from packer.errors import FfmpegError
    from packer.pixels.ffmpeg import Ffmpeg

    try:
        return Ffmpeg()
    except FfmpegError as e:
        pytest.skip(str(e))


@pytest.fixture(scope="session")
def many_blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 400 rows of 16 x 16 x 3 in 50 blocks of 6 kB, for tests of the remote reader."""
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'pixpack[remote]'")
    from packer import pack_dataset

    images = np.random.default_rng(0).integers(0, 256, (400, 16, 16, 3), dtype=np.uint8)
    out = tmp_path_factory.mktemp("remote") / "out"
    pack_dataset([(image, n % 3) for n, image in enumerate(images)], out, size=16)
    return out


@pytest.fixture
def range_server(many_blocks: Path) -> Iterator[Any]:
    """The store of `many_blocks`, served on loopback by ranges.

    Requests are retried as by default: on a busy machine, a client with less patience sends a request twice.
    """
    from range_server import serving

    with serving(many_blocks) as running:
        yield running
