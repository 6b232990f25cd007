"""What scripts/gpu/on_gpu does: collect wheels; or lay them beside a Python that has torch, run each part, gather one JSON.

Imports the standard library alone. A part that fails, or takes too long, is reported as such, and the others run all the same.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
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
BENCHES = ("loading", "training", "resident", "waiting", "pinned")
# Of scripts/studies/claims, those that a GPU decides.
CLAIMS = (
    *("bus_bytes", "seven_loaders", "folder_or_memmap", "augmentation"),
    *("kernels", "compiled_training", "nested_moves", "data_parallel"),
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
# Of pytest's processes, where pytest-xdist is installed.
TESTS_AT_ONCE = 8
# Of those that compile a network, or run it beside eight loaders, and of the tests: they took 95 s on a simulated device.
MORE_SECONDS = 400
# Of libjpeg-turbo, which the other machine may lack: what the compiled part is built and linked with, and what jpeg4py loads.
HEADERS = ("jpeglib.h", "jconfig.h", "jmorecfg.h", "jerror.h")
SHARED_LIBRARIES = ("libjpeg.so", "libjpeg.so.62", "libturbojpeg.so.0")


@dataclass(frozen=True)
class GpuCommand:
    """A command; needs_cuda: it is left out with --no-cuda. result: a JSON file that it writes, picture: a PNG or a trace.

    needs_store: it reads what the part "store" makes, which is run before it, also where nobody asked for that.
    seconds: it is stopped then.
    """

    name: str
    command: list[str]
    needs_cuda: bool = True
    result: str = ""
    picture: str = ""
    needs_store: bool = False
    seconds: float = SECONDS


def main() -> int:
    options = parse()
    if options.collect:
        return collect(options.collect, options.python, options.there)
    empty = [str(folder) for folder in options.wheels or ["--wheels"] if not wheels_in([folder])]
    if empty:
        print(f"on_gpu: {empty[0]} holds no wheel. First: scripts/gpu/on_gpu --collect DIR", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        return run(options, Path(folder))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/gpu/on_gpu", description=__doc__.partition("\n")[0] if __doc__ else None
    )
    parser.add_argument("--collect", type=Path, metavar="DIR", help="download the wheels, and do nothing else")
    parser.add_argument("--python", default="3.12", metavar="VERSION", help="the version of Python that they are for")
    parser.add_argument(
        "--there",
        nargs="+",
        default=[],
        metavar="PACKAGE",
        help="packages that the machine has: they are not collected",
    )
    parser.add_argument("--wheels", type=Path, nargs="+", metavar="DIR", help="what was collected, and other wheels")
    parser.add_argument(
        "--images", type=Path, metavar="DIR", help="photographs for peers and recipe; default: drawn there"
    )
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "on_gpu-results")))
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="PART",
        help="of tests, bench, transforms, peers, recipe, pack, timeline, claims, logic, 'bench NAME', 'claims NAME'",
    )
    parser.add_argument("--within", type=float, default=1e9, metavar="SECONDS", help="for all parts together")
    parser.add_argument("--no-cuda", action="store_true", help="what runs without a GPU, in little; the rest is named")
    options = parser.parse_args()
    for name in options.only or []:
        if not asked_for(parts(Path(), no_cuda=True, images=None), [name]):
            parser.error(f"there is no part {name!r}. One of two words is written in quotes: 'claims kernels'.")
    return options


# -- with a network


def collect(folder: Path, version: str, there: list[str]) -> int:
    """Download wheels for a version of Python, and build those that are not published; refuses more than may be carried."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("*.whl"), *folder.glob("*.so*")):
        old.unlink()
    pip = [sys.executable, "-m", "pip"]
    where = [word for name in PLATFORMS for word in ("--platform", name)]
    abis = [word for abi in (f"cp{version.replace('.', '')}", "abi3", "none") for word in ("--abi", abi)]
    words = ["download", "-q", "--no-deps", "-c", str(CONSTRAINTS), "-d", str(folder), "--python-version", version]
    names = [name for name in (*PACKAGES, *LIBRARIES) if name.partition("==")[0] not in there]
    subprocess.run([*pip, *words, "--only-binary=:all:", "--implementation", "cp", *abis, *where, *names], check=True)
    with tempfile.TemporaryDirectory() as copy:
        # a copy, since a build leaves its folders in the source
        source = Path(copy, "pixpack")
        keep = shutil.ignore_patterns(
            ".git", ".venv", "tests", "scripts", "docs", "*.egg-info", "build", "sample", "*.so"
        )
        shutil.copytree(ROOT, source, ignore=keep)
        # a wheel of Python alone: the compiled part is built there; without setup.py nothing gives the readme
        (source / "setup.py").unlink()
        project = source / "pyproject.toml"
        project.write_text(project.read_text(encoding="utf-8").replace('dynamic = ["readme"]\n', ""), encoding="utf-8")
        words = ["wheel", "-q", "--no-deps", "-c", str(CONSTRAINTS), "-w", str(folder), *BUILT, str(source)]
        subprocess.run([*pip, *words], check=True)
    collect_jpeg(folder)
    size = sum(path.stat().st_size for path in folder.rglob("*"))
    print(f"on_gpu: {len(wheels_in([folder]))} wheels, {size / 2**20:.1f} MiB, for Python {version} in {folder}")
    if size > MOST_BYTES:
        print(f"on_gpu: that is more than the {MOST_BYTES >> 20} MiB that may be carried.", file=sys.stderr)
        return 1
    return 0


def collect_jpeg(folder: Path) -> None:
    """Copy the headers and libraries of libjpeg-turbo that the C compiler finds here."""
    includes = "\n".join(f"#include <{name}>" for name in ("stdio.h", "jpeglib.h", "jerror.h"))
    made = subprocess.run(["cc", "-M", "-xc", "-"], input=includes, capture_output=True, text=True, check=True).stdout
    headers = [Path(word) for word in made.split() if Path(word).name in HEADERS]
    for source in (*headers, *map(library_path, SHARED_LIBRARIES)):
        shutil.copyfile(source, folder / source.name)


def library_path(name: str) -> Path:
    """Return where the C compiler finds a library."""
    return Path(subprocess.run(["cc", f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip())


def wheels_in(folders: list[Path]) -> list[Path]:
    return [wheel for folder in folders for wheel in sorted(Path(folder).glob("*.whl"))]


# -- without


def run(options: argparse.Namespace, folder: Path) -> int:
    ends = time.perf_counter() + options.within
    site, work, compiled = folder / "site", folder / "work", folder / "compiled"
    words = ["-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile", "--target", str(site)]
    subprocess.run([sys.executable, *words, *map(str, wheels_in(options.wheels))], check=True)
    work.mkdir()
    is_compiled = build_compiled_part(options.wheels, compiled)
    paths = [str(path) for path in (compiled, ROOT, site)]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(paths), PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    environment["PATH"] = f"{site / 'bin'}{os.pathsep}{environment['PATH']}"
    libraries = [str(compiled), *filter(None, [environment.get("LD_LIBRARY_PATH")])]
    environment["LD_LIBRARY_PATH"] = os.pathsep.join(libraries)
    # what a part said until it was ended, or crashed, is all that is known of it then
    environment |= {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    # a claim that installs a library would try for minutes where there is no network
    environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": " ".join(str(folder.resolve()) for folder in options.wheels)}
    if not options.no_cuda:
        environment["REQUIRE_CUDA"] = "1"
    (options.out / PICTURES).unlink(missing_ok=True)
    report: dict[str, Any] = {
        "machine": describe(environment),
        "compiled_part": is_compiled,
        "no_cuda": options.no_cuda,
    }
    report["parts"] = {}
    for part in asked_for(parts(work, no_cuda=options.no_cuda, images=options.images), options.only):
        seconds = min(part.seconds, ends - time.perf_counter())
        report["parts"][part.name] = done = outcome(part, environment, options, work, seconds)
        print(f"on_gpu: {part.name}: {summary(done)}", flush=True)
        # after each: what was measured is there, whatever happens to the next
        (options.out / "on_gpu.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    check_size(options.out)
    return int(any(done.get("exit_code", 0) for done in report["parts"].values()))


def build_compiled_part(folders: list[Path], compiled: Path) -> bool:
    """Build the compiled part of this checkout for this Python, with the collected headers and libraries; False: it cannot be."""
    # without pyproject.toml, which an older setuptools does not understand
    shutil.copytree(ROOT / "reader", compiled / "reader", ignore=shutil.ignore_patterns("*.so", "*.pyd"))
    shutil.copyfile(ROOT / "setup.py", compiled / "setup.py")
    for library in (path for folder in folders for path in folder.glob("*.so*")):
        shutil.copyfile(library, compiled / library.name)
    where = os.pathsep.join(str(Path(folder).resolve()) for folder in folders)
    command = [
        sys.executable,
        "setup.py",
        "-q",
        "build_ext",
        "--build-lib",
        str(compiled),
        "--parallel",
        str(os.cpu_count()),
    ]
    environment = dict(os.environ, CPATH=where, LIBRARY_PATH=where)
    done = subprocess.run(command, cwd=compiled, env=environment, capture_output=True, text=True)
    if any((compiled / "reader").glob("_native.*")):
        return True
    print(f"on_gpu: the compiled part is not built: torch does its work. {done.stderr[-1000:]}", file=sys.stderr)
    return False


def asked_for(parts: list[GpuCommand], only: list[str] | None) -> list[GpuCommand]:
    """Choose parts by name or first word, and the store with those that read it; all, where none is named."""
    names = {*(only or [part.name for part in parts])}
    chosen = {part.name for part in parts if {part.name, part.name.partition(" ")[0]} & names}
    if any(part.needs_store for part in parts if part.name in chosen):
        chosen.add("store")
    return [part for part in parts if part.name in chosen]


def parts(work: Path, *, no_cuda: bool, images: Path | None) -> list[GpuCommand]:
    """List the parts, those first whose figures matter most."""
    device = "cpu" if no_cuda else "cuda"
    python, store = sys.executable, str(work / ("random-48x48" if no_cuda else "random-16384x256"))
    pytest = [python, "-m", "pytest", "-q", "--tb=short", "-p", "_hypothesis_pytestplugin", "-p", "no:cacheprovider"]
    # of a test that hangs, where each thread is
    pytest += ["-o", "faulthandler_timeout=60"]
    together = ["-p", "xdist", "-n", str(TESTS_AT_ONCE)] if importlib.util.find_spec("xdist") else []
    full, *logic = (
        str(ROOT / "tests" / "device" / f"test_{name}.py") for name in ("full_device", "transfer", "resident")
    )
    given = ["--images", str(images.resolve())] if images else []
    claims = [python, "-m", "scripts.studies.claims", "--work", str(work / "claims"), "--out", str(work / "claims-out")]
    pack = [python, "-m", "packer", "bench", store, "--device", device]
    timeline = [*pack, "--residency", "cache", "--trace", str(work / "trace.json")]

    bench = functools.partial(benchmark, device, work)
    benches = {
        name: bench(
            "reading.bench_gpu",
            f"bench {name}",
            *("--work", str(work), "--only", name),
            needs_store=True,
            seconds=MORE_SECONDS if name == "training" else SECONDS,
        )
        for name in BENCHES
    }
    first = ("loading", "training", "resident")
    peers = ("--work", str(work / "peers"), *given)
    return [
        GpuCommand(
            "tests", [*pytest, *together, "-m", "cuda", str(ROOT / "tests"), "--ignore", full], seconds=MORE_SECONDS
        ),
        GpuCommand("tests full-device", [*pytest, "-m", "cuda", full]),
        bench("reading.bench_gpu", "store", "--work", str(work), "--only"),
        *(benches[name] for name in first),
        bench("transforms.bench_transforms", "transforms", "--first-table", needs_cuda=True),
        bench("reading.bench_gpu_peers", "peers", *peers, seconds=MORE_SECONDS),
        *(benches[name] for name in BENCHES if name not in first),
        GpuCommand(
            "pack", [*pack, "--json", "--seconds", "2" if no_cuda else "30"], needs_cuda=False, needs_store=True
        ),
        GpuCommand("timeline", timeline, needs_cuda=False, needs_store=True, picture="trace.json"),
        *(
            GpuCommand(
                f"claims {name}",
                [*claims, "--only", name],
                result=f"claims-out/{name}.json",
                picture=f"claims-out/{name}.png",
            )
            for name in CLAIMS
        ),
        GpuCommand("logic", [*pytest, *logic, "-m", "not cuda"], needs_cuda=False),
    ]


def benchmark(device: str, work: Path, module: str, name: str, *words: str, **how: Any) -> GpuCommand:
    """Make the part of a benchmark, which writes its report to a file; on the CPU it shows that it runs."""
    result = f"{name.replace(' ', '-')}.json"
    command = [sys.executable, "-m", f"scripts.benchmarks.{module}", "--device", device, *words]
    quick = ["--quick"] if device == "cpu" else []
    return GpuCommand(name, [*command, *quick, "-o", str(work / result)], result=result, **{"needs_cuda": False} | how)


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
    if ran.returncode:
        return {"error": ran.stderr[-2000:]}
    ask = [
        "nvidia-smi",
        "--query-gpu=name,driver_version,memory.total,pcie.link.gen.max,pcie.link.width.max",
        "--format=csv",
    ]
    smi = subprocess.run(ask, capture_output=True, text=True).stdout if shutil.which("nvidia-smi") else ""
    return json.loads(ran.stdout) | {"nvidia_smi": smi.splitlines(), "command": sys.argv[1:]}


def check_size(out: Path) -> None:
    """Name what could not be taken along."""
    files = [path for path in out.iterdir() if path.is_file()]
    large = [path.name for path in files if path.stat().st_size > MOST_FILE_BYTES]
    if large or len(files) > MOST_FILES:
        print(f"on_gpu: {out} has {len(files)} files, too large: {large or 'none'}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
