"""Run benchmarks: see `harness.main`."""

import sys

from scripts.bench import accuracy, device, order, packing, peers, reading, transforms  # noqa: F401 (each registers its own)
from scripts.bench.harness import main

if __name__ == "__main__":
    sys.exit(main())
