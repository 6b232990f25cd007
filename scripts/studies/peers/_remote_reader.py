"""The process that reads two epochs from object storage: PYTHON -m scripts.studies.peers._remote_reader JOB URL CACHE

Prints one line of JSON on stdout: of each epoch images, seconds, and seconds until the first batch; what libraries print goes to
stderr. Every eighth batch is compared with the store, outside of the clock. Imports nothing of pixpack but what the peer's module
imports.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np

from scripts.studies.peers._reader import PeerJob, load

_EPOCHS = 2


def main() -> None:
    """Read, and print."""
    job, (url, cache) = PeerJob(**json.loads(sys.argv[1])), sys.argv[2:4]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    begin = load(job.module).remote_epochs(job, url, cache)
    print(json.dumps([_epoch(job, begin) for _ in range(_EPOCHS)]), file=answers, flush=True)
    # workers and threads of libraries that do not end by themselves
    os._exit(0)


def _epoch(job: PeerJob, begin: Any) -> dict[str, float]:
    raw, images, first, checking = job.rows(), 0, 0.0, 0.0
    started = time.perf_counter()
    for step, (pixels, rows) in enumerate(begin()):
        now = time.perf_counter()
        first, images = first or now - started, images + len(rows)
        if step % job.checked_every == 0 and not np.array_equal(np.asarray(pixels), raw[np.asarray(rows).reshape(-1)]):
            raise ValueError(f"the pixels of batch {step} are not those of the store.")
        checking += time.perf_counter() - now
    return {"images": images, "seconds": time.perf_counter() - started - checking, "first_batch": first}


if __name__ == "__main__":
    main()
