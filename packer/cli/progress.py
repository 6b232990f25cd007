"""How far the command is: tqdm's bar on a terminal, a new one for each stage; elsewhere nothing. Alone knows tqdm."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any

from packer.cli.output import say

if TYPE_CHECKING:
    from packer.report import Progress

# Stages of which bytes are counted.
_BYTES = ("allocate", "digest", "verify", "push", "pull")


class ProgressBar:
    """Progress of a command on stderr.

    Args:
        hidden: says nothing.
        unit: of what is counted; "B": bytes.
    """

    def __init__(self, *, hidden: bool, unit: str = " images") -> None:
        # sys.stderr is None where the caller closed it
        self._hidden = hidden or sys.stderr is None or not sys.stderr.isatty()
        self._unit, self._stage = unit, ""
        self._bar: Any = None
        self.has_said_found = False

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def update(self, progress: Progress) -> None:
        """Show where a pack is."""
        if self._hidden:
            return
        if progress.found:
            self.__exit__()
            self.has_said_found = True
            say(f"found {progress.found}", err=True)
            return
        bar = self._stage_bar(f"{progress.split} {progress.stage}".strip(), progress.total, progress.done)
        waits = "" if progress.stage == "wait" or not progress.waits_for else "waiting for the source: "
        rejected = f"{progress.rejected:,} rejected" if progress.stage == "pack" else ""
        bar.update(progress.done - bar.n)
        is_due = bool(progress.waits_for) or progress.done == progress.total
        bar.set_postfix_str(f"{waits}{progress.waits_for}" if progress.waits_for else rejected, refresh=is_due)

    def bytes_done(self, done: int, total: int, stage: str = "verify") -> None:
        """Show bytes read."""
        if not self._hidden:
            bar = self._stage_bar(stage, total)
            bar.update(done - bar.n)

    def _stage_bar(self, stage: str, total: int, done: int = 0) -> Any:
        """Return the bar of a stage; done: what an earlier run had done, which is no speed of this one."""
        if self._bar is None or stage != self._stage:
            from tqdm import tqdm

            # tqdm's monitor is a thread: workers could not be forked beside it
            tqdm.monitor_interval = 0
            self.__exit__()
            size = shutil.get_terminal_size()
            unit = "B" if stage.endswith(_BYTES) else self._unit
            self._bar = tqdm(
                total=total or None,
                desc=stage,
                initial=done,
                unit=unit,
                unit_scale=unit == "B",
                # the time left follows from the mean speed of the stage: blocks come in bursts
                smoothing=0,
                # of a terminal that does not know its size 80 x 24, where tqdm would draw nothing; two columns are for a ^C
                ncols=size.columns - 2,
                nrows=size.lines,
                leave=False,
                file=sys.stderr,
            )
            self._stage = stage
        return self._bar


def clear_bars() -> None:
    """Clear what bars there are from the terminal, for an end of the process that leaves no block of `with`."""
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)  # None: not imported, or not yet all of it
    for bar in list(getattr(tqdm, "_instances", ())):
        bar.close()
