"""Mutants of valid stores, each a function of a seed and a number: some values changed, at any depth, then sealed again."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from reader.format.manifest import REJECTED, SAMPLES
from tests.hostile.drafts import Draft
from tests.hostile.faults import EVIL

# of tests/laws/kinds.py: those that differ in their files
KINDS = ("pad", "regression", "multi-hot", "boxes", "own-sizes", "labels-own-sizes", "jpeg", "jpeg-own-sizes")
_MOST_CHANGES = 3
_NUMBERS = (0, 1, -1, 2, 3, 8, 13, 14, 255, 256, -(1 << 31), (1 << 31) - 1, 1 << 32, (1 << 63) - 1, 1 << 80)
_TEXTS = ("", "class", "multi-hot", "own-sizes", "uint8", "sha256:" + "0" * 64, EVIL, "\udcff", "../../x", "x" * 5000)
_OTHERS = (None, True, 0.5, -1e308, float("nan"), float("inf"), [], {}, [[]], [1, 2], ["a", "b"], {"a": 1})
_CODES = dict.fromkeys(("targets", "frames", "offsets", "mask_offsets", "box_targets"), "q")
_CODES |= dict.fromkeys(("shapes", "content", "box_count"), "i")


def make_mutant(base: Path, out: Path, draw: Random) -> Path:
    """Write a mutant of a valid store; the same for the same random numbers."""
    draft, after = Draft(base, out), list[Callable[[], object]]()
    changes: list[Callable[[Draft, Random], object]] = [_head, _blocks, _tensor, _lines]
    if base.joinpath("_tensordict/frames.memmap").exists():
        changes.append(_jpeg)
    for _ in range(draw.randint(1, _MOST_CHANGES)):
        if draw.random() < 0.1:
            after.append(lambda: _file(out, draw))
        else:
            # what makes no sense of a store that another change has left
            with contextlib.suppress(Exception):
                draw.choice(changes)(draft, draw)
    if draw.random() < 0.5:
        with contextlib.suppress(Exception):
            draft.seal_blocks()
    draft.seal()
    for step in after:
        step()
    return out


def _mutate(value: Any, draw: Random) -> None:
    """Change one place of a JSON value: to another value, a number near, one of its others; or remove or repeat it."""
    entries = _entries(value)
    container, key = draw.choice(entries)
    other, key_of_other = draw.choice(entries)
    match draw.randrange(6):
        case 0 if type(container[key]) is int:
            container[key] += draw.choice((-1, 1, 2, -2, 7))
        case 1:
            del container[key]
        case 2 if type(container) is list:
            container.insert(key, container[key])
        case 3:
            container[key] = json.loads(json.dumps(other[key_of_other]))
        case _:
            container[key] = draw.choice(draw.choice((_NUMBERS, _TEXTS, _OTHERS)))


def _entries(value: Any) -> list[tuple[Any, Any]]:
    """List every (container, key) of a JSON value, at any depth."""
    keys = [*value] if type(value) is dict else range(len(value)) if type(value) is list else ()
    return [entry for key in keys for entry in ((value, key), *_entries(value[key]))]


def _head(draft: Draft, draw: Random) -> None:
    _mutate(draft.head, draw)
    if draw.random() < 0.3:
        draft.kept.update(draft.head["files"])


def _blocks(draft: Draft, draw: Random) -> None:
    _mutate(draft.blocks, draw)


def _tensor(draft: Draft, draw: Random) -> None:
    path = draw.choice(sorted(draft.out.glob("_tensordict/**/*.memmap")))
    name, code, size = str(path.relative_to(draft.out)), _CODES.get(path.stem, "B"), path.stat().st_size
    if draw.random() < 0.15:
        os.truncate(path, max(0, size + draw.choice((-1, 1, -8, 8, 4096, -size, 1 << 20))))
    else:
        draft.put_number(name, code, draw.randrange(size // {"q": 8, "i": 4, "B": 1}[code]), draw.choice(_NUMBERS))


def _lines(draft: Draft, draw: Random) -> None:
    name = draw.choice((SAMPLES, REJECTED))
    lines = draft.read(name).splitlines(keepends=True)
    number = draw.randrange(len(lines))
    match draw.randrange(4):
        case 0:
            lines.pop(number)
        case 1:
            lines.insert(number, draw.choice(lines))
        case _:
            line = json.loads(lines[number])
            _mutate(line, draw)
            lines[number] = json.dumps(line, separators=(",", ":")).encode() + b"\n"
    draft.put_lines(name, lines)


def _jpeg(draft: Draft, draw: Random) -> None:
    """Put something else in place of the JPEG of a row, mostly near its begin, where it says what it needs."""
    jpegs = draft.jpegs()
    row = draw.randrange(len(jpegs))
    old, at = jpegs[row], draw.randrange(draw.choice((40, len(jpegs[row]))))
    changed = (
        old[:at],
        old[:at] + draw.randbytes(1) + old[at + 1 :],
        old[:at] + draw.randbytes(draw.randint(1, 9)) + old[at:],
        old + draw.choice(jpegs),
        draw.choice(jpegs),
    )
    jpegs[row] = draw.choice(changed)
    draft.put_jpegs(jpegs)


def _file(out: Path, draw: Random) -> None:
    """Put something else in place of a file of a sealed store, or beside it, or flip one of its bits."""
    path = draw.choice([path for path in sorted(out.rglob("*")) if path.is_file() and path.stat().st_size])
    data = path.read_bytes()
    at = draw.randrange(len(data))
    match draw.randrange(6):
        case 0:
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :])
        case 1:
            os.truncate(path, len(data) + (1 << draw.randrange(40)))
        case 2:
            path.with_name(draw.choice(("other.pickle", "x.memmap", ".hidden", ".packing"))).write_bytes(data)
        case kind:
            path.unlink()
            if kind == 3:
                path.symlink_to(os.devnull)
            elif kind == 4:
                os.mkfifo(path)
