"""What scripts/gpu/on_gpu does: collect wheels; or lay them beside a Python that has torch, run each part, gather one JSON.

Imports the standard library alone. A part that fails, or takes too long, is reported as such, and the others run all the same.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "scripts" / "constraints.txt"
# torch and what it needs, numpy among it, stay that machine's own.
PACKAGES = (
    *("tensordict", "pyvers", "cloudpickle", "click", "tqdm", "pillow", "cffi", "pycparser", "zstandard"),
    *("pytest", "pluggy", "iniconfig", "packaging", "pygments", "hypothesis", "sortedcontainers"),
    *("matplotlib", "contourpy", "cycler", "fonttools", "kiwisolver", "pyparsing", "python-dateutil", "six"),
)
# What the claim nested_moves installs for itself, out of the same folder.
LIBRARIES = ("optree==0.20.0", "dm-tree==0.1.10", "absl-py==2.3.1", "attrs==26.1.0", "wrapt==1.17.3")
# Published as source alone; pure Python.
BUILT = ("jpeg4py",)
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "any")
# Of scripts/benchmarks/reading/bench_gpu.py.
BENCHES = ("loading", "training", "waiting", "resident", "pinned", "others")
# Of scripts/studies/claims, those that a GPU decides.
CLAIMS = (
    *("bus_bytes", "pinned_copies", "seven_loaders", "folder_or_memmap", "augmentation"),
    *("group_shuffle", "kernels", "compiled_training", "nested_moves", "data_parallel"),
)
# All pictures come back in it.
PICTURES = "pictures.zip"
MOST_BYTES = 60 << 20
MOST_FILES = 8
MOST_FILE_BYTES = 16 << 20
# Characters that are kept of a part's output: all that many failed tests have to say.
TAIL = 60_000
# Of a part: a few minutes each, so that none takes the others' time.
SECONDS = 280


@dataclass(frozen=True)
class GpuCommand:
    """A command; needs_cuda: it is left out with --no-cuda. result: a JSON file that it writes, picture: a PNG.

    needs_store: it reads what the part "store" makes, which is run before it, also where nobody asked for that.
    """

    name: str
    command: list[str]
    needs_cuda: bool = True
    result: str = ""
    picture: str = ""
    needs_store: bool = False


def main() -> int:
    options = parse()
    if options.collect:
        return collect(options.collect, options.python)
    if not options.wheels or not list(options.wheels.glob("*.whl")):
        print(
            f"on_gpu: {options.wheels or '--wheels'} holds no wheel. First: scripts/gpu/on_gpu --collect DIR",
            file=sys.stderr,
        )
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        return run(options, Path(folder))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/gpu/on_gpu", description=__doc__.partition("\n")[0] if __doc__ else None
    )
    parser.add_argument("--collect", type=Path, metavar="DIR", help="download the wheels, and do nothing else")
    parser.add_argument("--python", default="3.12", help="the version that they are for")
    parser.add_argument("--wheels", type=Path, metavar="DIR")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "on_gpu-results")))
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="PART",
        help="of logic, tests, bench, pack, timeline, claims, 'bench NAME', 'claims NAME'",
    )
    parser.add_argument("--within", type=float, default=1e9, metavar="SECONDS", help="for all parts together")
    parser.add_argument("--no-cuda", action="store_true", help="what runs without a GPU, in little; the rest is named")
    options = parser.parse_args()
    for name in options.only or []:
        if not asked_for(parts(Path(), no_cuda=True), [name]):
            parser.error(f"there is no part {name!r}. One of two words is written in quotes: 'claims kernels'.")
    return options


# -- with a network


def collect(folder: Path, python: str) -> int:
    """Download wheels for a Python, and build those that are not published; refuses more than may be carried."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    pip = [sys.executable, "-m", "pip"]
    short = python.replace(".", "")
    where = [word for name in PLATFORMS for word in ("--platform", name)]
    kind = ["--only-binary=:all:", "--implementation", "cp", "--abi", f"cp{short}", "--abi", "abi3", "--abi", "none"]
    words = [
        "download",
        "-q",
        "--no-deps",
        "-c",
        str(CONSTRAINTS),
        "-d",
        str(folder),
        "--python-version",
        python,
        *kind,
    ]
    subprocess.run([*pip, *words, *where, *PACKAGES, *LIBRARIES], check=True)
    with tempfile.TemporaryDirectory() as copy:
        # a copy, since a build leaves its folders in the source
        source = Path(copy, "pixpack")
        keep = shutil.ignore_patterns(".git", ".venv", "tests", "scripts", "docs", "*.egg-info", "build", "sample")
        shutil.copytree(ROOT, source, ignore=keep)
        words = ["wheel", "-q", "--no-deps", "-c", str(CONSTRAINTS), "-w", str(folder), *BUILT, str(source)]
        subprocess.run([*pip, *words], check=True)
    found = sorted(folder.glob("*.whl"))
    size = sum(path.stat().st_size for path in found)
    print(f"on_gpu: {len(found)} wheels, {size / 2**20:.1f} MiB, for Python {python} in {folder}")
    if size > MOST_BYTES:
        print(f"on_gpu: that is more than the {MOST_BYTES >> 20} MiB that may be carried.", file=sys.stderr)
        return 1
    return 0


# -- without


def run(options: argparse.Namespace, folder: Path) -> int:
    ends = time.perf_counter() + options.within
    site, work = folder / "site", folder / "work"
    words = ["-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile", "--target", str(site)]
    subprocess.run([sys.executable, *words, *map(str, sorted(options.wheels.glob("*.whl")))], check=True)
    work.mkdir()
    environment = dict(os.environ, PYTHONPATH=f"{ROOT}{os.pathsep}{site}", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    environment["PATH"] = f"{site / 'bin'}{os.pathsep}{environment['PATH']}"
    # what a part said until it was ended, or crashed, is all that is known of it then
    environment |= {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    # a claim that installs a library would try for minutes where there is no network
    environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(options.wheels.resolve())}
    if not options.no_cuda:
        environment["REQUIRE_CUDA"] = "1"
    (options.out / PICTURES).unlink(missing_ok=True)
    report: dict[str, Any] = {"machine": describe(environment), "no_cuda": options.no_cuda, "parts": {}}
    for part in asked_for(parts(work, no_cuda=options.no_cuda), options.only):
        seconds = min(SECONDS, ends - time.perf_counter())
        report["parts"][part.name] = done = outcome(part, environment, options, work, seconds)
        print(f"on_gpu: {part.name}: {summary(done)}", flush=True)
        # after each: what was measured is there, whatever happens to the next
        (options.out / "on_gpu.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    check_size(options.out)
    return int(any(done.get("exit_code", 0) for done in report["parts"].values()))


def asked_for(parts: list[GpuCommand], only: list[str] | None) -> list[GpuCommand]:
    """Choose parts by name or first word, and the store with those that read it; all, where none is named."""
    names = {*(only or [part.name for part in parts])}
    chosen = {part.name for part in parts if {part.name, part.name.partition(" ")[0]} & names}
    if any(part.needs_store for part in parts if part.name in chosen):
        chosen.add("store")
    return [part for part in parts if part.name in chosen]


def parts(work: Path, *, no_cuda: bool) -> list[GpuCommand]:
    """List the parts."""
    device = "cpu" if no_cuda else "cuda"
    python, store = sys.executable, str(work / ("random-48x48" if no_cuda else "random-16384x256"))
    pytest = [python, "-m", "pytest", "-q", "--tb=short", "-p", "_hypothesis_pytestplugin", "-p", "no:cacheprovider"]
    # of a test that hangs, where each thread is
    pytest += ["-o", "faulthandler_timeout=60"]
    logic = [str(ROOT / "tests" / name) for name in ("device/test_transfer.py", "device/test_resident.py")]
    bench = [python, "-m", "scripts.benchmarks.reading.bench_gpu", "--device", device, "--work", str(work)]
    bench += ["--quick"] * no_cuda
    claims = [python, "-m", "scripts.studies.claims", "--work", str(work / "claims"), "--out", str(work / "claims-out")]
    pack = [python, "-m", "packer", "bench", store, "--device", device]
    timeline = [*pack, "--residency", "cache", "--timeline", str(work / "timeline.png")]
    return [
        GpuCommand("logic", [*pytest, *logic, "-m", "not cuda"], needs_cuda=False),
        GpuCommand("tests", [*pytest, str(ROOT / "tests"), "-m", "cuda"]),
        GpuCommand("store", [*bench, "--only"], needs_cuda=False),
        *(
            GpuCommand(
                f"bench {name}",
                [*bench, "--only", name, "-o", str(work / f"{name}.json")],
                needs_cuda=False,
                needs_store=True,
                result=f"{name}.json",
            )
            for name in BENCHES
        ),
        GpuCommand("pack", [*pack, "--json", "--seconds", "2" if no_cuda else "30"], needs_cuda=False, needs_store=True),
        GpuCommand("timeline", timeline, needs_cuda=False, needs_store=True, picture="timeline.png"),
        *(
            GpuCommand(
                f"claims {name}",
                [*claims, "--only", name],
                result=f"claims-out/{name}.json",
                picture=f"claims-out/{name}.png",
            )
            for name in CLAIMS
        ),
    ]


def outcome(
    part: GpuCommand, environment: dict[str, str], options: argparse.Namespace, work: Path, seconds: float
) -> dict[str, Any]:
    """Run a part for so many seconds at most, and report how it went."""
    if part.needs_cuda and options.no_cuda:
        return {"left_out": "needs a CUDA device"}
    if seconds <= 0:
        return {"left_out": f"{options.within:.0f} s have passed"}
    started = time.perf_counter()
    code, output = ran(part.command, environment, work, seconds)
    done: dict[str, Any] = {
        "exit_code": code,
        "seconds": round(time.perf_counter() - started, 1),
        "tail": output[-TAIL:],
    }
    if part.result and (work / part.result).exists():
        text = (work / part.result).read_text(encoding="utf-8")
        try:
            done["result"] = json.loads(text)
        except ValueError:  # it was stopped while it wrote
            done["result"] = text
    if part.picture and (work / part.picture).exists():
        with zipfile.ZipFile(options.out / PICTURES, "a") as pictures:
            pictures.write(work / part.picture, Path(part.picture).name)
    return done


def ran(command: list[str], environment: dict[str, str], work: Path, seconds: float) -> tuple[int, str]:
    """Run a command; returns its exit code and what it said. One that takes too long is ended with all that it started."""
    process = subprocess.Popen(
        command,
        cwd=work,
        env=environment,
        text=True,
        errors="replace",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # a group of its own, not a session: what ends this script from outside still reaches it
        preexec_fn=os.setpgrp,
    )
    try:
        output = process.communicate(timeout=seconds)[0]
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return 124, f"{process.communicate()[0]}\nstopped after {seconds:.0f} s"


def summary(done: dict[str, Any]) -> str:
    if "left_out" in done:
        return f"left out: {done['left_out']}"
    last = next((line for line in reversed(done["tail"].splitlines()) if line.strip()), "")
    return f"exit code {done['exit_code']} after {done['seconds']} s: {last[:150]}"


def describe(environment: dict[str, str]) -> dict[str, Any]:
    """Ask that Python what it has."""
    code = (
        "import json, sys, torch; from importlib.metadata import version as v; c = torch.cuda.is_available();"
        "print(json.dumps({'python': sys.version, 'torch': torch.__version__, 'cuda': torch.version.cuda,"
        " 'gpu': torch.cuda.get_device_name() if c else None, 'tensordict': v('tensordict'), 'numpy': v('numpy')}))"
    )
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    return json.loads(ran.stdout) if ran.returncode == 0 else {"error": ran.stderr[-2000:]}


def check_size(out: Path) -> None:
    """Name what could not be taken along."""
    files = [path for path in out.iterdir() if path.is_file()]
    large = [path.name for path in files if path.stat().st_size > MOST_FILE_BYTES]
    if large or len(files) > MOST_FILES:
        print(f"on_gpu: {out} has {len(files)} files, too large: {large or 'none'}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
