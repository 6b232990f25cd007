"""Says where the rows of a dataset are on this host: in a copy in memory, in the page cache, or on the disk.

Asked once for a loader how much is read, and when an epoch begins whether that is read ahead; reads no row.
"""

from __future__ import annotations

from reader.dataset.dataset import MemmapDataset
from reader.loading.shared_residency import HostCopies, host_copies, reads_of
from reader.memory.residency import Residency


class HostRows:
    """Knows where the rows of a dataset are read from, for all passes of a loader.

    reads: how much is read, and by how many processes.
    copy: in memory, of residency "ram"; other loaders of the same rows share it, and the last one frees it.
    past_cache: rows are read from the disk, and leave nothing in the page cache.
    """

    def __init__(self, dataset: MemmapDataset, processes: int) -> None:
        self.dataset, self.reads = dataset, reads_of(dataset, processes)
        self.copy: HostCopies | None = None
        self.past_cache = self._is_warm = False

    def bring(self, chosen: Residency) -> None:
        """Bring the rows to where they are read from.

        Raises:
            StoreError, OSError: as `RawFile.read`.
        """
        self._is_warm, self.past_cache = chosen.is_warm, chosen.host == "disk"
        if chosen.name == "ram":
            self.copy = host_copies(self.dataset)

    def are_on_disk(self) -> bool:
        """Say whether an epoch that begins now has to read them ahead; of a store at a URL, once it is here."""
        if self.copy is not None or self.past_cache or self._is_warm:
            return self.past_cache
        return self.reads.are_cold(self.dataset.opened_store.pixel_paths())
