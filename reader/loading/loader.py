"""`MemmapLoader`: batches of a store in a given order, gathered ahead by one background thread, on the CPU or a CUDA device.

The feeder thread, one per iterator, computes rows and gathers them into leased buffers. It runs `reader.transforms` on the
CPU, and begins copies to a device on a side stream. The caller's thread takes batches from the queue in `Iteration`, and
makes its own stream wait for the copy. It runs the remaining steps: the program's functions, and on CUDA all steps. With
prefetch=0 the caller's thread does everything.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Generic, Literal, overload

import torch
from torch.utils.data import Dataset, Subset

from reader.dataset.dataset import MemmapDataset, Transform
from reader.device.transfer import entered
from reader.loading.batch_transform import BatchTransform
from reader.loading.gathering import Gathering
from reader.loading.iteration import Given, Group, Iteration
from reader.planning.epochs import Epochs
from reader.planning.given_sampler import Item
from reader.planning.orders import Orders, Weights
from reader.planning.ranks import given_ranks, ranks_here
from reader.rows import Rows
from reader.system import available_cpus
from reader.transforms.random import integer

# Smaller batches are gathered and queued in groups of this size. The overhead of a batch, Python and thread switching, is
# more than the copy of 8 rows of 224 x 224. In groups of 1, 4, 8 and 16 MiB, batches of 8 such rows reach 26, 47, 51 and 63
# thousand images/s. Their first batch comes after 2, 6, 8 and 11 ms (medians of 3 runs in turns).
BATCH_GROUP_BYTES = 8 << 20
# A group is queued when all of it is ready. So it is smaller if batches are transformed on the CPU or sent to a device.
TRANSFORMED_GROUP_BYTES = 1 << 20

# The most batches gathered ahead, each with its own memory: enough to hide any pause. A typo would take all memory.
_MOST_AHEAD = 1024


class MemmapLoader(Generic[Given]):
    """Iterate over a MemmapDataset in batches.

    Args:
        dataset: a MemmapDataset, or a subset of one; also torch's Subset.
        batch_size: rows per batch and rank.
        shuffle: False (store order), "full" (a permutation of all rows), "block" (blocks in random order, mixed in a window),
            True ("full" for a local store of up to 64 GiB of pixels, else "block"; `repr` shows the choice).
        seed: determines the order, with the epoch. None: drawn from torch's global generator when the loader is created, as
            in DataLoader; 0 with several ranks.
        drop_last: leave out the last, short batch. Else ranks share that batch evenly, filled up with the epoch's first rows,
            so that all have the same number of steps.
        pad: False gives each row of the last step to one rank only, for evaluation. Some ranks then have one row or one step
            less.
        weights: float[N]; rows are drawn with replacement in proportion.
        sampler: any torch Sampler of rows, or BatchSampler of lists, arrays or tensors of rows, or a list of either; it
            decides order and ranks, like DistributedSampler. Its batches are not changed.
        transform: called with each ImageBatch on the device, for any as_tuple. A returned ImageBatch becomes the tuple; any
            other result goes to the loop. None: the dataset's. On the CPU, leading `reader.transforms` steps run in the
            background thread. Later steps, and all steps on CUDA, run in the caller's thread, on its stream. May be replaced
            between epochs.
        device: device of batches; "cuda" copies from pinned memory on a side stream.
        prefetch: batches gathered ahead, 1024 at most, small ones in groups; 0 gathers in the caller's thread.
        rank, world_size: default to those of torch.distributed, or of the variables RANK and WORLD_SIZE, else 0 and 1. They
            are read again when an epoch begins, so that a loader may be created before init_process_group.
        residency: the source of rows. "cache": the mapped file; an epoch that begins with most of it not in the page
            cache reads it as "disk" does. "disk": large reads ahead in the epoch's order, for stores larger than memory;
            shuffle "block" makes them sequential. "gpu": the dataset's rows in the device's memory, gathered there. "auto":
            "cache" if the rows fit in free memory, else "disk".
        as_tuple: the loop gets (images uint8[B, C, H, W], targets), and with boxes or masks (images, dict by name). If rows
            have sizes of their own, images is a list. False: an ImageBatch, or for such rows a RaggedBatch.

    A batch is a copy that belongs to the caller. While it is kept, it is never overwritten, nor is its group's memory freed;
    once dropped, its memory is reused. Each `iter` starts the next epoch, unless `set_epoch` or `load_state_dict` was called.
    Not for several threads at once.

    Raises:
        ValueError: arguments contradict each other or the dataset; rows without a label in a loop over tuples; there is no
            such rank, or no rows are left for it.

    Examples:
        >>> from pixpack import MemmapDataset
        >>> loader = MemmapLoader(MemmapDataset(store_path), batch_size=8, shuffle=True)
        >>> for images, targets in loader:
        ...     shape = images.shape  # uint8[8, 3, 32, 32]
    """

    @overload
    def __init__(
        self: MemmapLoader[tuple[torch.Tensor, torch.Tensor]],
        dataset: Dataset[Any],
        batch_size: int,
        *,
        shuffle: bool | str = False,
        seed: int | None = None,
        drop_last: bool = False,
        pad: bool = True,
        weights: Weights | None = None,
        sampler: Iterable[Item] | None = None,
        transform: Transform | None = None,
        device: str | torch.device = "cpu",
        prefetch: int = 2,
        rank: int | None = None,
        world_size: int | None = None,
        residency: str = "auto",
        as_tuple: Literal[True] = True,
    ) -> None: ...

    @overload
    def __init__(
        self: MemmapLoader[Any], dataset: Dataset[Any], batch_size: int, *, as_tuple: bool, **options: Any
    ) -> None: ...

    def __init__(  # type: ignore[misc]  # noqa: PLR0913 (the types of the other options are those above)
        self,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        shuffle: bool | str = False,
        seed: int | None = None,
        drop_last: bool = False,
        pad: bool = True,
        weights: Weights | None = None,
        sampler: Iterable[Item] | None = None,
        transform: Transform | None = None,
        device: str | torch.device = "cpu",
        prefetch: int = 2,
        rank: int | None = None,
        world_size: int | None = None,
        residency: str = "auto",
        as_tuple: bool = True,
    ) -> None:
        self.dataset = _mapped(dataset)
        if as_tuple:
            self.dataset._check_labels()
        self.transform = _batch_transform(self.dataset, transform)
        if shuffle not in (False, True, "full", "block"):
            raise ValueError(f"shuffle is {shuffle!r}, expected False, True, 'full' or 'block'.")
        self.as_tuple, self.prefetch = as_tuple, _checked("prefetch", prefetch, 0, _MOST_AHEAD)
        self.device = _cuda_or_cpu(device)
        orders = Orders(self.dataset, shuffle, weights=weights, sampler=sampler, drop_last=drop_last, pad=pad)
        self._epochs = Epochs(
            orders,
            _checked("batch_size", batch_size, 1),
            given=given_ranks(rank, world_size),
            seed=None if seed is None else integer("seed", seed),
        )
        self._threads = max(1, available_cpus() // ranks_here())
        self._gathering = Gathering(self.dataset, self.device, residency, prefetch=self.prefetch)
        self.residency = self._gathering.residency
        self._iterations = weakref.WeakSet[Iteration[Any]]()

    @property
    def batch_size(self) -> int:
        """Rows per batch and rank."""
        return self._epochs.plan.cut.batch_size

    @property
    def order(self) -> str:
        """The order of rows: "sequential", "full", "block", "weighted" or "sampler"."""
        return self._epochs.orders.name

    @property
    def seed(self) -> int:
        """The seed, which with the epoch determines the order."""
        return self._epochs.seed

    def __len__(self) -> int:
        return self._epochs.steps()

    def __repr__(self) -> str:
        m, plan = self.dataset.manifest, self._epochs.plan
        up_to = "up to " if m.has_own_sizes else ""
        return (
            f"MemmapLoader({up_to}uint8[{self.batch_size}, {m.height}, {m.width}, {m.channels}]"
            f" on {self.device}, order {self.order}, seed {self.seed}, {plan.ranks}, residency {self.residency})"
        )

    def __iter__(self) -> Iteration[Given]:
        plan, is_sent = self._epochs.begin(), self.device.type == "cuda"
        is_worked_on = self.transform is not None or is_sent
        group_bytes = TRANSFORMED_GROUP_BYTES if is_worked_on else BATCH_GROUP_BYTES
        transform = BatchTransform(
            plan, self.transform, as_tuple=self.as_tuple, on_device=is_sent, threads=self._threads
        )
        source: Callable[[], Generator[Group, None, None]] = functools.partial(
            self._gathering.groups, plan, plan.steps(plan.items(), group_bytes), transform
        )
        # with prefetch=0 it runs in the caller's thread, whose current device must not change
        source = entered(self.device, source) if is_sent and self.prefetch else source
        iteration: Iteration[Given] = Iteration(self._epochs.progress, source(), transform, prefetch=self.prefetch)
        self._iterations.add(iteration)
        return iteration

    def __enter__(self) -> MemmapLoader[Given]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the background threads of all iterators and release idle buffers."""
        for iteration in list(self._iterations):
            iteration.close()
        self._gathering.clear()

    def rows(self, epoch: int, step: int) -> Rows:
        """Return the rows of `dataset` for this rank in a step of an epoch, int64[B]; both count from 0. Reads no row.

        Raises:
            IndexError: the epoch has no such step.
            ValueError: rows come from a sampler.

        Example:
            >>> from pixpack import MemmapDataset
            >>> MemmapLoader(MemmapDataset(store_path), batch_size=4).rows(epoch=0, step=1).tolist()
            [4, 5, 6, 7]
        """
        plan = self._epochs.step(epoch, step)
        return next(plan.batches(plan.items())).positions

    def set_epoch(self, epoch: int) -> None:
        """Start this epoch, 0 or more, at the next `iter`, even of a sampler; a loaded state in this epoch is resumed.

        Raises:
            ValueError: epoch is not 0 or more.
        """
        self._epochs.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the loop's position, after the caller's last batch, as a few integers."""
        return self._epochs.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state at the next `iter`, with its seed; batch_size and world size may differ from the state's.

        Raises:
            ValueError: the state is from another store, subset or order, or from another seed than the loader's.
        """
        self._epochs.load_state_dict(state)


def _checked(name: str, value: int, least: int, most: int | None = None) -> int:
    number = integer(name, value)
    if number < least or (most is not None and number > most):
        raise ValueError(f"{name} is {value!r}, expected {least}{' or more' if most is None else f' to {most}'}.")
    return number


def _mapped(dataset: object) -> MemmapDataset:
    """Return a MemmapDataset, also for torch's Subset, which random_split returns."""
    if isinstance(dataset, MemmapDataset):
        return dataset
    # a program's own class may change each sample
    if isinstance(dataset, Subset) and type(dataset).__getitem__ is Subset.__getitem__:
        return _mapped(dataset.dataset).subset(dataset.indices)
    raise ValueError(f"dataset is a {type(dataset).__name__}, expected a MemmapDataset or a subset of one.")


def _batch_transform(dataset: MemmapDataset, transform: Transform | None) -> Transform | None:
    """Return the given transform, else the dataset's; raises ValueError for a transform of single images."""
    if type(transform).__module__.startswith("torchvision.") or dataset._is_by_row:
        raise ValueError(
            "the transform takes single images, and this loader calls it with batches: give from_torchvision(transform), or loop"
            " over torch's DataLoader(MemmapDataset(..., transform=transform), num_workers=...)."
        )
    return dataset.transform if transform is None else transform


def _cuda_or_cpu(device: str | torch.device) -> torch.device:
    """Return the device of batches; "cuda" is the current one."""
    if str(device).partition(":")[0] not in ("cpu", "cuda"):
        raise ValueError(f"device is {device!r}, expected cpu or cuda.")
    chosen = torch.device(device)
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device is {device!r}, but this torch sees no CUDA device. Use device='cpu'.")
    is_current = chosen.type == "cuda" and chosen.index is None
    return torch.device("cuda", torch.cuda.current_device()) if is_current else chosen
