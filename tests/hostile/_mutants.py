"""Mutants of valid stores, each a function of a seed and a number: some values changed, at any depth, then sealed again."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from reader.format.manifest import REJECTED, SAMPLES
from tests.hostile._faults import EVIL
from tests.hostile._stores import COMPRESSED, JPEG, KINDS, Draft, valid_store

_MOST_CHANGES = 3
_MOST_FLIPPED_BYTES = 1 << 20
_NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    8,
    9,
    14,
    15,
    127,
    255,
    256,
    -(1 << 31),
    (1 << 31) - 1,
    1 << 32,
    (1 << 63) - 1,
    1 << 63,
    1 << 80,
)
_VALUES: tuple[Any, ...] = (
    *_NUMBERS,
    None,
    True,
    False,
    0.5,
    -1e308,
    float("nan"),
    float("inf"),
    "",
    "class",
    "multi-hot",
    "own-sizes",
    "uint8",
    "int64",
    "sha256:" + "0" * 64,
    EVIL,
    "\udcff",
    "../../x",
    "x" * 5000,
    [],
    {},
    [[]],
    [1, 2],
    ["a", "b"],
    {"a": 1},
)
_CODES = {"targets": "q", "frames": "q", "offsets": "q", "mask_offsets": "q", "shapes": "i", "content": "i"}
_EXTRA_CODES = {"box_targets": "q", "box_count": "i", "boxes": "f", "breed": "q", "caption": "q", "weight": "f"}


def make_mutant(valid: Path, out: Path, seed: int, number: int) -> Path:
    """Write a mutant of one of the stores in `valid`, which `make_valid` has made."""
    draw = Random(f"{seed}-{number}")
    kind = draw.choice(KINDS)
    draft = Draft.copy(valid / kind, out)
    after: list[Callable[[], None]] = []
    for _ in range(draw.randint(1, _MOST_CHANGES)):
        changes = (_head, _blocks, _tensor, _lines, _file, _raw, _frames)
        has_frames = kind.startswith((COMPRESSED, JPEG))
        change = draw.choices(changes, (6, 3, 6, 6, 1, 1, 8 * has_frames))[0]
        change(draft, draw, after)
    if draw.random() < 0.5:
        _try(draft.seal_blocks)
    draft.seal(has_metadata=draw.random() < 0.9)
    for step in after:
        _try(step)
    return out


def make_valid(folder: Path) -> Path:
    """Write a valid store of each kind."""
    for kind in KINDS:
        valid_store(folder / kind, kind)
    return folder


def _try(step: Callable[[], object]) -> None:
    """Do what makes no sense of every mutant."""
    with contextlib.suppress(Exception):
        step()


def _entries(value: Any) -> list[tuple[Any, Any]]:
    """List every (container, key) of a JSON value, at any depth."""
    found: list[tuple[Any, Any]] = []
    keys = list(value) if type(value) is dict else range(len(value)) if type(value) is list else ()
    for key in keys:
        found += [(value, key), *_entries(value[key])]
    return found


def _mutate(value: Any, draw: Random) -> None:
    """Change one place of a JSON value: another value, a number near, one of its neighbors; or remove or repeat it."""
    entries = _entries(value)
    if not entries:
        return
    container, key = draw.choice(entries)
    kind = draw.randrange(6)
    if kind == 0 and type(container[key]) is int:
        container[key] += draw.choice((-1, 1, 2, -2, 7))
    elif kind == 1:
        del container[key]
    elif kind == 2 and type(container) is list:
        container.insert(key, container[key])
    elif kind == 3:
        other, key_of_other = draw.choice(entries)
        container[key] = json.loads(json.dumps(other[key_of_other]))
    else:
        container[key] = draw.choice(_VALUES)


def _head(draft: Draft, draw: Random, after: list[Callable[[], None]]) -> None:
    _mutate(draft.head, draw)
    if draw.random() < 0.3 and type(draft.head.get("files")) is dict:
        draft.kept.update(draft.head["files"])


def _blocks(draft: Draft, draw: Random, after: list[Callable[[], None]]) -> None:
    _mutate(draft.blocks, draw)


def _tensor(draft: Draft, draw: Random, after: list[Callable[[], None]]) -> None:
    paths = sorted(draft.out.glob("_tensordict/**/*.memmap"))
    path = draw.choice(paths)
    name, code = str(path.relative_to(draft.out)), (_CODES | _EXTRA_CODES).get(path.stem, "B")
    size = path.stat().st_size
    for _ in range(draw.randint(1, 3)):
        width = {"q": 8, "i": 4, "f": 4, "B": 1}[code]
        value = draw.choice((float("nan"), 1e30, -1.0)) if code == "f" else draw.choice(_NUMBERS)
        _try(lambda: draft.patch(name, code, draw.randrange(max(1, size // width)), value))  # noqa: B023 (called at once)
    if draw.random() < 0.15:
        os.truncate(path, max(0, size + draw.choice((-1, 1, -8, 8, 4096, -size, 1 << 20))))


def _frames(draft: Draft, draw: Random, after: list[Callable[[], None]]) -> None:
    """Put something else in place of a frame; the table, the blocks and their checksums are made right again."""
    # another change may have left no frames, or no blocks
    _try(lambda: _reframe(draft, draw))


def _reframe(draft: Draft, draw: Random) -> None:
    from tests.hostile import _frames as frames

    made = frames.frames_of(draft)
    row, other = draw.randrange(len(made)), draw.randrange(len(made))
    old, key_of_other = made[row], draw.randrange(max(1, len(made[row])))
    # the header is where a frame says what it needs
    near = min(key_of_other, draw.choice((5, 12, 1 << 30)))
    kinds: tuple[Callable[[bytes], bytes], ...] = (
        lambda frame: frame[:key_of_other],
        lambda frame: frame[:near] + bytes([draw.randrange(256)]) + frame[near + 1 :],
        lambda frame: frame[:near] + bytes([frame[near] ^ 1 << draw.randrange(8)]) + frame[near + 1 :],
        lambda frame: frame[:near] + draw.randbytes(draw.randint(1, 9)) + frame[near:],
        lambda frame: frame + made[other],
        lambda frame: made[other],
        lambda frame: frames.skipped(draw.choice((0, 8, len(frame)))) + frame,
        lambda frame: frame + frames.skipped(draw.choice((0, 8, len(frame)))),
        frames.without_checksum,
        frames.without_size,
        frames.with_window,
        frames.shorter,
        frames.in_two,
        frames.of_size(draw.choice((0, 1, 192, 1 << 20, 1 << 31, (1 << 63) - 1, (1 << 64) - 2))),
    )
    if old.startswith(b"\xff\xd8"):
        from tests.hostile._jpegs import resigned

        change = draw.choice(kinds[:6])
        made[row] = draw.choice((change, resigned(change)))(old)
    else:
        made[row] = draw.choice(kinds)(old)
    frames.put_frames(draft, made)


def _lines(draft: Draft, draw: Random, after: list[Callable[[], None]]) -> None:
    name = draw.choice((SAMPLES, SAMPLES, REJECTED))
    lines = (draft.out / name).read_bytes().splitlines(keepends=True)
    if not lines:
        return
    number, kind = draw.randrange(len(lines)), draw.randrange(8)
    if kind == 0:
        lines.pop(number)
    elif kind == 1:
        lines.insert(number, lines[draw.randrange(len(lines))])
    elif kind == 2:
        data = bytearray(lines[number])
        data[draw.randrange(len(data))] = draw.randrange(256)
        lines[number] = bytes(data)
    else:
        try:
            line = json.loads(lines[number])
        except ValueError:
            return
        _mutate(line, draw)
        lines[number] = json.dumps(line, separators=(",", ":")).encode() + b"\n"
    draft.write(name, b"".join(lines))


def _file(draft: Draft, draw: Random, after: list[Callable[[], None]]) -> None:
    """Put something else in place of a file, or beside it, once all is sealed."""
    files = [path for path in sorted(draft.out.rglob("*")) if path.is_file()]
    path, kind = draw.choice(files), draw.randrange(7)
    beside = path.with_name(draw.choice(("other.pickle", "x.memmap", ".hidden", "y.pkl", "sheet.png", ".packing")))
    steps: tuple[Callable[[], object], ...] = (
        lambda: (path.unlink(), path.symlink_to(os.devnull)),
        lambda: (path.unlink(), os.mkfifo(path)),
        lambda: (path.unlink(), path.mkdir()),
        lambda: path.unlink(),
        lambda: os.truncate(path, path.stat().st_size + (1 << draw.randrange(40))),
        lambda: beside.write_bytes(b"cos\nsystem\n(S'true'\ntR."),
        lambda: (
            beside.mkdir(),
            (beside / "journal").write_text("x"),
        ),
    )
    after.append(lambda: _try(steps[kind]))


def _raw(draft: Draft, draw: Random, after: list[Callable[[], None]]) -> None:
    """Flip a bit of any file once all is sealed, so that a digest is wrong."""
    path = draw.choice([path for path in sorted(draft.out.rglob("*")) if path.is_file() and path.stat().st_size])

    def flip() -> None:
        # another change may have put a pipe here, or holes
        if path.is_symlink() or not path.is_file() or not 0 < path.stat().st_size < _MOST_FLIPPED_BYTES:
            return
        data = bytearray(path.read_bytes())
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(bytes(data))

    after.append(flip)


def remove(store: Path) -> None:
    """Remove a mutant."""
    shutil.rmtree(store, ignore_errors=True)
