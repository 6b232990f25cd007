"""The line on a terminal that tells how far the command is. The only module that knows tqdm."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packer.report import Progress


class ProgressBar:
    """One tqdm line on stderr, only where that is a terminal; a new one for each stage."""

    def __init__(self, *, hidden: bool, unit: str = " images") -> None:
        # sys.stderr is None where the caller closed it
        self._hidden = hidden or sys.stderr is None or not sys.stderr.isatty()
        self._unit = unit
        self._bar: Any = None
        self._stage = ""

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def update(self, progress: Progress) -> None:
        """Show where a pack is."""
        if self._hidden:
            return
        bar = self._stage_bar(f"{progress.split} {progress.stage}".strip(), progress.total)
        if progress.stage == "pack":
            elapsed = bar.format_dict["elapsed"]
            megabytes = progress.source_bytes / 1e6 / elapsed if elapsed else 0
            bar.set_postfix_str(
                f"{megabytes:.0f} MB/s, {progress.rejected} rejected", refresh=progress.done == progress.total
            )
        self._move(bar, progress.done)

    def bytes_done(self, done: int, total: int, stage: str = "verify") -> None:
        """Show bytes read."""
        if not self._hidden:
            self._move(self._stage_bar(stage, total), done)

    def share_done(self, stage: str, share: float) -> None:
        """Show the share of a stage that is done, 0..1."""
        if not self._hidden:
            bar = self._stage_bar(stage, 100)
            bar.bar_format = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}"
            self._move(bar, round(100 * share))

    def _move(self, bar: Any, done: int) -> None:
        bar.update(done - bar.n)

    def _stage_bar(self, stage: str, total: int) -> Any:
        if self._bar is None or stage != self._stage:
            from tqdm import tqdm

            # tqdm's monitor is a thread: workers could not be forked beside it
            tqdm.monitor_interval = 0
            if self._bar is not None:
                self._bar.close()
            scale = self._unit == "B" or "allocate" in stage
            unit = "B" if scale else self._unit
            # a terminal that does not know its size says 0 x 0, and tqdm would draw nothing
            columns, lines = os.get_terminal_size(sys.stderr.fileno())
            size = {"ncols": columns or 80, "nrows": lines or 24}
            self._bar = tqdm(
                total=total or None, desc=stage, unit=unit, unit_scale=scale, file=sys.stderr, leave=False, **size
            )
            self._stage = stage
        return self._bar
