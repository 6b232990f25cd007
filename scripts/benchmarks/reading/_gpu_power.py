"""What a GPU did while something ran, by NVML: how busy it was, and the energy that it took. Knows nvidia-ml-py alone."""

from __future__ import annotations

import statistics
import threading
from types import ModuleType
from typing import Any

import torch

# The driver's own figure is of the last 20 to 200 ms.
_SAMPLE_SECONDS = 0.05


class Meter:
    """Measures a CUDA device between `with` and its end; of the CPU, or without NVML, it knows nothing.

    joules: float, None where it is not known. percent_busy: share of time in which a kernel ran, None likewise. missing: why.
    """

    def __init__(self, device: torch.device) -> None:
        self.joules: float | None = None
        self.percent_busy: float | None = None
        self.missing = ""
        self._nvml: ModuleType | None = None
        self._gpu: Any = None
        if device.type != "cuda":
            self.missing = "no GPU"
            return
        try:
            import pynvml

            pynvml.nvmlInit()
            self._gpu = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
            pynvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu)
            self._nvml = pynvml
        except Exception as e:  # of a module that may be missing, old, or refused its library
            self.missing = f"NVML: {type(e).__name__}: {e}"

    def __enter__(self) -> Meter:
        if self._nvml is not None:
            self._samples: list[int] = []
            self._stop = threading.Event()
            self._thread = threading.Thread(target=self._sample, args=(self._nvml,), daemon=True)
            self._began = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._nvml is not None:
            self.joules = (self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu) - self._began) / 1e3
            self._stop.set()
            self._thread.join()
            self.percent_busy = statistics.fmean(self._samples) if self._samples else None

    def _sample(self, nvml: ModuleType) -> None:
        while not self._stop.wait(_SAMPLE_SECONDS):
            self._samples.append(nvml.nvmlDeviceGetUtilizationRates(self._gpu).gpu)
