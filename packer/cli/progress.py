"""How far the command is: a line redrawn on a terminal, plain lines in a log. Alone knows tqdm."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from packer.cli.output import say
from packer.cli.terminal import columns_of, width
from reader.tuning import tuning

if TYPE_CHECKING:
    from packer.report import Progress

# In a log: a line after so many seconds at the latest.
_MOST_SECONDS = 10.0
# Stages of which bytes are counted.
_BYTES = ("allocate", "digest", "verify", "push", "pull")
# In so few columns tqdm's figures leave no room for the bar: only the time left and a short postfix are shown.
_NARROW_COLUMNS = 98
# Left free at the end of a line, for the ^C that a terminal shows: on the next line it would keep the bar from being cleared.
_FREE_COLUMNS = 2
_NARROW_BAR = "{desc}: {percentage:3.0f}%|{bar}| {remaining} left{postfix}"
_DONE_BAR = "{desc}: {percentage:3.0f}%|{bar}|"
# In fewer the word "left" is what the bar needs.
_WORD_COLUMNS = 70
# of what cannot be read; a narrower terminal cuts it
_LEAST_COLUMNS = 20


class _Bar(Protocol):
    """What is used of a tqdm."""

    n: int
    initial: int
    total: int | None
    ncols: int
    bar_format: str | None
    postfix: str | None
    format_dict: dict[str, float]

    def update(self, n: int) -> object:
        """Count n more."""

    def set_postfix_str(self, s: str, refresh: bool = True) -> None:
        """Show s after the rate."""

    def close(self) -> None:
        """End the line."""


class ProgressBar:
    """Progress of a command on stderr: a tqdm line where that is a terminal, a new one for each stage; else plain lines.

    Args:
        hidden: says nothing.
        unit: of what is counted; "B": bytes.
        clock: seconds that pass.
    """

    def __init__(self, *, hidden: bool, unit: str = " images", clock: Callable[[], float] = time.monotonic) -> None:
        # sys.stderr is None where the caller closed it
        self._hidden = hidden or sys.stderr is None
        self._unit = unit
        self._lines = None if self._hidden or columns_of(sys.stderr) else _Lines(clock)
        self._bar: _Bar | None = None
        self._stage, self._is_waiting = "", False
        self.has_said_found = False

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def update(self, progress: Progress) -> None:
        """Show where a pack is."""
        stage = f"{progress.split} {progress.stage}".strip()
        if self._lines is not None:
            self._lines.show(stage, progress.done, progress.total, self._unit_of(stage), progress)
            self.has_said_found = self._lines.has_said_found
        elif progress.found and not self._hidden:
            self.__exit__()
            self._bar, self.has_said_found = None, True
            say(f"found {progress.found}", err=True)
        elif not self._hidden:
            bar = self._stage_bar(stage, progress.total, progress.done)
            if progress.waits_for:
                self._show_waiting(bar, progress.waits_for)
                return
            if self._is_waiting:
                self._is_waiting, bar.bar_format = False, _format(bar.ncols, bar.total)
                bar.set_postfix_str("")
            if progress.stage == "pack":
                is_narrow, elapsed = bar.bar_format is not None, bar.format_dict["elapsed"]
                done, unit = (
                    (progress.done - bar.initial, "images/s") if is_narrow else (progress.source_bytes / 1e6, "MB/s")
                )
                speed = f"{done / elapsed if elapsed else 0:,.0f} {unit}, "
                bar.set_postfix_str(f"{speed}{progress.rejected:,} rejected", refresh=progress.done == progress.total)
            self._move(bar, progress.done)

    def bytes_done(self, done: int, total: int, stage: str = "verify") -> None:
        """Show bytes read."""
        if self._lines is not None:
            self._lines.show(stage, done, total, "B")
        elif not self._hidden:
            self._move(self._stage_bar(stage, total), done)

    def share_done(self, stage: str, share: float) -> None:
        """Show the share of a stage that is done, 0..1."""
        if self._lines is not None:
            self._lines.show(stage, round(100 * share), 100, "%")
        elif not self._hidden:
            bar = self._stage_bar(stage, 100)
            bar.bar_format = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}"
            self._move(bar, round(100 * share))

    def _show_waiting(self, bar: _Bar, what: str) -> None:
        """Show instead of the bar what is waited for; of a long path its end."""
        room = max(_LEAST_COLUMNS, bar.ncols - len(f"{self._stage}, ") - 1)
        if width(what) > room:
            what = f"...{next(what[n:] for n in range(len(what)) if width(what[n:]) <= room - 3)}"
        self._is_waiting, bar.bar_format = True, "{desc}{postfix}"
        if bar.postfix != what:
            bar.set_postfix_str(what)

    def _unit_of(self, stage: str) -> str:
        return "B" if stage.endswith(_BYTES) else self._unit

    def _move(self, bar: _Bar, done: int) -> None:
        bar.update(done - bar.n)

    def _stage_bar(self, stage: str, total: int, done: int = 0) -> _Bar:
        """Return the bar of a stage; done: what an earlier run had done, which is no speed of this one."""
        if self._bar is None or stage != self._stage:
            from tqdm import tqdm

            # tqdm's monitor is a thread: workers could not be forked beside it
            tqdm.monitor_interval = 0
            if self._bar is not None:
                self._bar.close()
            unit = self._unit_of(stage)
            self._is_waiting = False
            # a terminal that does not know its size says 0 x 0, and tqdm would draw nothing
            columns, lines = os.get_terminal_size(sys.stderr.fileno())
            size = {"ncols": max(1, (columns or 80) - _FREE_COLUMNS), "nrows": lines or 24}
            look = {
                "initial": done,
                # the time left follows from the mean speed of the stage: that of the last seconds, as blocks come in bursts, is
                # off by half
                "smoothing": 0,
                "unit": unit,
                "unit_scale": unit == "B",
                # of a stage that is over at once no speed is known
                "bar_format": _DONE_BAR if total and done == total else _format(size["ncols"], total),
            }
            self._bar = tqdm(total=total or None, desc=stage, file=sys.stderr, leave=False, **look, **size)
            self._stage = stage
        return self._bar


def clear_bars() -> None:
    """Clear what bars there are from the terminal, for an end of the process that leaves no block of `with`."""
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)  # None: not imported, or not yet all of it
    for bar in list(getattr(tqdm, "_instances", ())):
        bar.close()


class _Lines:
    """Plain lines for a log: of Slurm, of Docker, of a CI."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._shown_at, self._sizes = clock, clock(), tuning()
        # of the stage in progress: its name, when it began and with what done, and what was done at its last line
        self._stage, self._started, self._first, self._shown = "", 0.0, 0, 0
        self._is_waiting, self._found, self.has_said_found = False, "", False

    def show(self, stage: str, done: int, total: int, unit: str, progress: Progress | None = None) -> None:
        """Write a line where one is due, what was found before the first."""
        now = self._clock()
        if progress is not None and progress.found:
            self._found = progress.found
            return
        if stage != self._stage:
            self._stage, self._started, self._first, self._shown = stage, now, done, done
        is_tenth = total > 0 and done - self._shown >= self._sizes.log_line_share * total
        waits_for = "" if progress is None else progress.waits_for
        is_new = bool(waits_for) and not self._is_waiting
        self._is_waiting &= bool(waits_for)
        if now - self._shown_at < (self._sizes.log_line_seconds if is_tenth or is_new else _MOST_SECONDS):
            return
        self._shown_at, self._shown, self._is_waiting = now, done, bool(waits_for)
        seconds = now - self._started
        speed = (done - self._first) / seconds if seconds else 0.0
        if progress is not None and progress.stage == "wait":
            line = [stage]
        elif unit == "%":
            line = [f"{stage}: {done}%"]
        else:
            of_all = (
                f"{_amount(done, unit if unit == 'B' else '')} of {_amount(total, unit)}, {done / max(1, total):.0%}"
            )
            line = [f"{stage}: {of_all if total else _amount(done, unit)}"]
            line += [f"{_amount(round(speed), unit)}/s"] if speed else []
        if progress is not None and progress.stage == "pack":
            line += [f"{progress.source_bytes / 1e6 / seconds:.0f} MB/s"] if progress.source_bytes and seconds else []
            line.append(f"{progress.rejected:,} rejected")
        if waits_for:
            line.append(waits_for)
        elif speed and total > done:
            minutes, left = divmod(round((total - done) / speed), 60)
            line.append(f"{minutes // 60}:{minutes % 60:02}:{left:02} left")
        if self._found:
            say(f"found {self._found}", err=True)
            self._found, self.has_said_found = "", True
        print(", ".join(line), file=sys.stderr, flush=True)


def _format(columns: int, total: int | None) -> str | None:
    """Return tqdm's format of a bar with as many figures as leave it room; None: all of them."""
    if not total or columns >= _NARROW_COLUMNS:
        return None
    return _NARROW_BAR if columns >= _WORD_COLUMNS else _NARROW_BAR.replace(" left", "")


def _amount(count: int, unit: str) -> str:
    """Say a number of things: 1,200 images, 3.4 GB, 40%."""
    if unit == "B":
        from reader.format.filesystem import size_text

        return size_text(count)
    return f"{count:,}{unit}"
