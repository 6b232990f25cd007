"""An environment as a newcomer has it: an empty home, a new virtual environment, and a clock for each stage of what follows.

What says where packages come from stays (pip's settings, proxies, certificates), and so do the system's own packages.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

# Of programs, without an environment.
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
_KEPT = ("LANG", "LC_ALL", "TMPDIR", "TERM", "PIXPACK_APT")
_KEPT_STARTS = ("PIP_", "SSL_", "REQUESTS_", "HTTP_", "HTTPS_", "NO_PROXY", "http_", "https_", "no_proxy")


class Failed(RuntimeError):
    """A command of a stage ended with another exit code than 0; says which, and the end of its talk."""


class Fresh:
    """A home and a working folder below `folder`, and the seconds of each stage so far."""

    def __init__(self, folder: Path) -> None:
        self.home, self.work = folder / "home", folder / "work"
        self.home.mkdir(parents=True)
        self.work.mkdir()
        self.seconds: dict[str, float] = {}
        self._variables = {k: v for k, v in os.environ.items() if k in _KEPT or k.startswith(_KEPT_STARTS)}
        settings = Path.home() / ".config" / "pip" / "pip.conf"
        if settings.exists():
            self._variables.setdefault("PIP_CONFIG_FILE", str(settings))
        # nothing that an earlier install has left
        self._variables |= {"HOME": str(self.home), "PIP_NO_CACHE_DIR": "1", "PATH": SYSTEM_PATH}

    def venv(self, name: str) -> None:
        """Make a virtual environment with this program's kind of Python; its commands come first on PATH from now on."""
        python = Path(sys.base_prefix) / "bin" / "python3"
        self.run([python, "-m", "venv", self.work / name])
        self.use(self.work / name)

    def use(self, venv: Path) -> None:
        """Put the commands of a virtual environment first on PATH."""
        self._variables["PATH"] = f"{venv / 'bin'}:{SYSTEM_PATH}"

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage, and say on stderr that it began."""
        print(f"{name} ...", file=sys.stderr, flush=True)
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start

    def run(self, command: Sequence[str | Path], *, cwd: Path | None = None, **variables: str) -> str:
        """Run a command in here and return its stdout.

        Raises:
            Failed: it did not end with exit code 0, or is not there.
        """
        words = [str(word) for word in command]
        try:
            done = subprocess.run(
                words,
                cwd=cwd or self.work,
                env=self._variables | variables,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
        except FileNotFoundError as e:
            raise Failed(f"{words[0]} is not there: {e}") from None
        if done.returncode:
            raise Failed(f"{' '.join(words)[:200]} ended with {done.returncode}: {(done.stderr or done.stdout)[-600:]}")
        return done.stdout

    def follow(self, command: Sequence[str | Path], stages: Mapping[str, str], *, cwd: Path) -> None:
        """Run a command and time its parts: a line that starts with a key of `stages` begins the stage of that name.

        Raises:
            Failed: it did not end with exit code 0.
        """
        started, name, talk = time.perf_counter(), "before its first word", []
        merged = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        with subprocess.Popen([str(word) for word in command], cwd=cwd, env=self._variables, **merged) as process:
            for line in process.stdout or ():
                talk.append(line)
                found = next((stage for start, stage in stages.items() if line.startswith(start)), None)
                if found:
                    now = time.perf_counter()
                    self.seconds[name] = now - started
                    started, name = now, found
                    print(f"{name} ...", file=sys.stderr, flush=True)
        self.seconds[name] = time.perf_counter() - started
        if process.returncode:
            raise Failed(f"{command[0]} ended with {process.returncode}: {''.join(talk)[-600:]}")

    def rounded(self) -> dict[str, float]:
        """Return the seconds of each stage, for JSON."""
        return {name: round(seconds, 2) for name, seconds in self.seconds.items()}

    def table(self) -> str:
        """Write the stages with their seconds and shares."""
        total = sum(self.seconds.values())
        lines = [f"{name:<44}{seconds:>8.1f} s{seconds / total:>7.0%}" for name, seconds in self.seconds.items()]
        return "\n".join([*lines, f"{'all':<44}{total:>8.1f} s"])
