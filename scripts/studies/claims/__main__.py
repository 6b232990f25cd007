"""Try on this machine what the documents that the project began from claim: one module below this folder for each claim.

    python -m scripts.studies.claims                      all of them, into ./claims-results
    python -m scripts.studies.claims --only loops faults  these
    python -m scripts.studies.claims --quick              on tiny data: shows that all runs, its figures mean nothing
    python -m scripts.studies.claims --redraw --out DIR   table and pictures again from the figures in DIR

Each claim becomes NAME.json and NAME.png; README.md has the table of all that are in the folder. A module has the constants
CLAIM and SOURCE and three functions: measure(quick, work) returns the figures, conclude(figures) a Finding, and
draw(panel maker, figures) a picture. Each is measured in a process of its own, forked before any thread is started, so
that memory, threads and workers of one are not those of another. Needs Linux and matplotlib: pip install 'pixpack[test]'.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import json
import multiprocessing
import re
import sys
import tempfile
import textwrap
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

_HERE = Path(__file__).resolve().parent

try:
    from scripts.common import plot
except ModuleNotFoundError as e:
    sys.exit(f"scripts.studies.claims needs {e.name}: pip install 'pixpack[test]'")
from scripts.common.figures import machine  # noqa: E402
from scripts.studies.claims._claim import MissingRequirement  # noqa: E402

# name -> module
CLAIMS = {path.stem: f"{__package__}.{path.parent.name}.{path.stem}" for path in sorted(_HERE.glob("*/[a-z]*.py"))}
NAMES = sorted(CLAIMS)
VERDICTS = {True: "holds", False: "does not hold", None: "not measured"}
COLUMNS = {"claim": 44, "source": 24, "measured here": 56, "": 13}


def main() -> int:
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    options.work.mkdir(parents=True, exist_ok=True)
    names = [] if options.redraw else options.only or NAMES
    broken = [name for name in names if not record(name, options)]
    results = [show(path) for path in sorted(options.out.glob("*.json")) if path.stem in NAMES]
    print(table(results))
    (options.out / "README.md").write_text(page(results), encoding="utf-8")
    if broken:
        print(f"claims: failed, for the reasons above: {', '.join(broken)}", file=sys.stderr)
    return 1 if broken else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts.studies.claims", description=(__doc__ or "").partition("\n")[0])
    work = Path(tempfile.gettempdir()) / "pixpack-claims"
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="tiny data: shows that it runs, measures nothing")
    parser.add_argument("--redraw", action="store_true", help="measure nothing; draw what is in --out again")
    parser.add_argument("--out", type=Path, default=Path("claims-results"), help="default: ./claims-results")
    parser.add_argument(
        "--work", type=Path, default=work, help=f"7 GB of stores and libraries are kept there (default: {work})"
    )
    return parser.parse_args()


# -- measuring


def record(name: str, options: argparse.Namespace) -> bool:
    """Measure in a child process, which writes NAME.json; says whether it did."""
    print(f"claims: {name}", file=sys.stderr, flush=True)
    # here, so that torch is imported once, and not by each child
    module = importlib.import_module(CLAIMS[name])
    path = options.out / f"{name}.json"
    path.unlink(missing_ok=True)
    child = multiprocessing.get_context("fork").Process(target=measure, args=(module, options, path))
    child.start()
    child.join()
    if child.exitcode is not None and child.exitcode < 0:
        print(f"claims: {name} was ended by signal {-child.exitcode}", file=sys.stderr)
    return child.exitcode == 0 and path.exists()


def measure(module: ModuleType, options: argparse.Namespace, path: Path) -> None:
    """Write what was found, or why nothing could be."""
    report: dict[str, Any] = {"claim": module.CLAIM, "source": module.SOURCE, "quick": options.quick}
    report["machine"] = machine(options.work)
    try:
        report["figures"] = module.measure(options.quick, options.work)
    except MissingRequirement as e:
        report["reason"] = str(e)
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    path.write_text(json.dumps(report) + "\n", encoding="ascii")


# -- showing


def show(path: Path) -> dict[str, Any]:
    """Conclude from one file of figures and draw it; returns what the table needs."""
    report, module = json.loads(path.read_text()), importlib.import_module(CLAIMS[path.stem])
    shown = {"name": path.stem, "claim": module.CLAIM, "source": module.SOURCE, "holds": None}
    shown |= {"footer": footer(report), "quick": report["quick"]}
    if "figures" not in report:
        return shown | {"measured": report["reason"]}
    finding = module.conclude(report["figures"])
    claim = f"Claim ({module.SOURCE}): {module.CLAIM}"
    # the module chooses how many panels side by side
    make = functools.partial(plot.new_figure, finding.title, claim, footer(report))
    plot.save(module.draw(make, report["figures"]), path.with_suffix(".png"))
    return shown | dataclasses.asdict(finding)


def footer(report: dict[str, Any]) -> str:
    found = report["machine"]
    versions = ", ".join(f"{name} {found['versions'][name]}" for name in ("torch", "numpy", "tensordict"))
    quick = "QUICK RUN: NO FIGURE COUNTS.  " if report["quick"] else ""
    load = f"load {found['load_average'][0]} when it began"
    where = f"{found['cores']} cores of {found['cpu']}, {load}, Python {found['python']}, {versions}"
    return f"{quick}{where}, {found['date'][:10]}"


def verdict(result: dict[str, Any]) -> str:
    """Say whether a claim holds here, which tiny data cannot show."""
    return "quick run" if result["quick"] else VERDICTS[result["holds"]]


def table(results: list[dict[str, Any]]) -> str:
    """Draw the table for a terminal, long cells wrapped."""
    lines = [cells_in_lines(list(COLUMNS)), ["-" * (sum(COLUMNS.values()) + 2 * len(COLUMNS))]]
    lines += [cells_in_lines([r["claim"], r["source"], r["measured"], verdict(r)]) for r in results]
    return "\n".join(line for block in lines for line in block)


def cells_in_lines(cells: list[str]) -> list[str]:
    """Wrap each cell to its column: ["a long claim", ...] -> lines of one row of the table, and an empty one."""
    wrapped = [textwrap.wrap(cell, width) for cell, width in zip(cells, COLUMNS.values(), strict=True)]
    height = max(map(len, wrapped))
    padded = [
        [line.ljust(width) for line in column + [""] * (height - len(column))]
        for column, width in zip(wrapped, COLUMNS.values(), strict=True)
    ]
    return ["  ".join(parts).rstrip() for parts in zip(*padded, strict=True)] + [""]


def page(results: list[dict[str, Any]]) -> str:
    """Write the table and the pictures as a page."""
    rows = [
        f"| [{as_text(r['claim'])}]({link(r)}) | {r['source']} | {as_text(r['measured'])} | {verdict(r)} |"
        for r in results
    ]
    pictures = [f"## {r['name']}\n\n![{r['title']}]({r['name']}.png)\n\n{r['footer']}" for r in results if "title" in r]
    head = "| claim | source | measured here | |\n|---|---|---|---|"
    return "# Claims, tried\n\nWritten by `python -m scripts.studies.claims`.\n\n" + "\n\n".join(
        ["\n".join([head, *rows]), *pictures, ""]
    )


def link(result: dict[str, Any]) -> str:
    """Return where a claim's row leads: its picture on the page, or its figures where there is none."""
    return f"#{result['name']}" if "title" in result else f"{result['name']}.json"


def as_text(words: str) -> str:
    """Keep Markdown from taking __getitem__ for bold type."""
    return re.sub(r"__\w+__", r"`\g<0>`", words)


if __name__ == "__main__":
    sys.exit(main())
