"""`MemmapLoader`: batches of a store in a given order, gathered ahead by one background thread, on the CPU or a CUDA device.

The feeder thread, one an iterator, computes rows, gathers them into leased buffers, runs our transforms on the CPU, and begins
copies to a device on a side stream. The caller's thread takes batches from the queue in `Feed`, makes its own stream wait for
the copy, and runs what is left: the program's functions, and on CUDA all steps but a crop that reads levels. Worker processes
run transforms of single samples. With prefetch=0 the caller's thread does it all.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import Dataset

from reader.dataset.samples import Transform
from reader.device.transfer import entered
from reader.loading.finish import Finish
from reader.loading.gathering import gathering_of
from reader.loading.iteration import Iteration, Pass
from reader.loading.options import Options, Weights, checked_device
from reader.loading.prefetch import Feed, LoopItem
from reader.planning.epochs import Epochs
from reader.planning.given_sampler import Item
from reader.planning.orders import Orders
from reader.planning.plan import EpochPlan
from reader.planning.ranks import Ranks, ranks_expected, ranks_here, share_of_cpus
from reader.tuning import tuning


class MemmapLoader:
    """Iterate over a MemmapDataset in batches.

    Args:
        dataset: a MemmapDataset, a subset of one or what `concat` joined; also torch's Subset or ConcatDataset.
        batch_size: rows a batch and rank; with size= also a function of its height and width, such as `ConstantPixels`.
        shuffle: False or None (store order), "full" (a permutation of all rows), "block" (blocks in random order, mixed in a
            window), True ("full" where the store fits in the memory of the machine or its cgroup, else, and of a store
            at a URL, "block"; `repr` and the log say which).
        seed: with the epoch, fixes the order. None: chosen when the first epoch begins, and kept: that of torch.manual_seed (
            torch.initial_seed() % 2**31) in one process, 0 under several ranks, or that of a state which was loaded.
        drop_last: leave out the last, short batch. Without it ranks share that batch evenly, and where it does not divide,
            wrap around to the epoch's first rows, so that all have the same number of steps.
        weights: float[N]; rows are drawn with replacement in proportion. Or of the datasets that `concat` joined, by name:
            {"a": 0.7, "b": 0.3} gives those shares, exact over any 10,000 rows, each dataset in passes over all its rows.
        sampler: any torch Sampler of rows, or BatchSampler of lists, arrays or tensors of rows, or a list of either; it then
            decides order and ranks. Batches that it gives are taken as they are, whatever batch_size says.
        epoch_rows: rows of an epoch, of all ranks; None: as many as there are. The order continues in the next epoch.
        pad: False gives each row of the last step to one rank alone, for evaluation: some ranks then have one row less there, or
            one step less.
        canonical_nodes: with shuffle="block", parts of the rows, each read by one node in all epochs: nodes fetch a store at a
            URL once together. The number of nodes divides it and does not change the order; it divides batch_size * world_size.
        device: where batches are put; "cuda" copies from pinned memory on a side stream.
        transform: without one the dataset's: one of `reader.transforms` is called with batches; any other, target_transform,
            transforms and as_pil for each row, in worker processes, seeded for it; samples are joined as a DataLoader's.
            Called with each ImageBatch on the device, whatever as_tuple says; an ImageBatch that it returns becomes
            the tuple, anything else is what the loop gets. On the CPU its first steps run in the background thread, as far as
            they are of `reader.transforms`; from a function of the program's on, and on CUDA, in the caller's, on its stream.
            Either way under the autocast, no_grad and inference_mode of the thread that began the epoch.
        size: of what RandomResizedCrop and ResizeCenterCrop in the transform give: pixels, (height, width), or a function of
            epoch. One that comes first reads, on the CPU, the smallest level (`pack --levels`) that its box needs.
        prefetch: batches gathered ahead, 1024 at most, small ones in groups of up to 64 and 8 MiB (1 MiB where they are
            transformed or sent to a device); 0 gathers in the caller's thread.
        num_workers: processes that call transforms of single samples, the dataset's own, and read their rows;
            others need none. 0: they are called in the caller's thread. None: the CPUs that this process may use, shared by
            the ranks of this host. `iter` starts them, by fork unless this process uses CUDA or
            multiprocessing.set_start_method says otherwise. There are none where this process alone has the rows: residency
            "ram", "disk" or "gpu", levels, device="cuda".
        threads: that transforms of `reader.transforms` run on, on the CPU, each with some rows of a batch at a time. None: the
            CPUs that this process may use (affinity and cgroup), shared by the ranks of this host. 1: whole batches.
        rank, world_size: default to those of torch.distributed, or of Ray Train, or of a launcher's variables RANK and
            WORLD_SIZE, else 0 and 1. They are resolved when an epoch begins, so that a loader may be created before
            init_process_group; `len` before that takes WORLD_SIZE where it is set.
        residency: where rows are read from. "cache": the mapped file; an epoch that begins with most of it not in the page
            cache reads it as "disk" does. "ram": a copy in this process, in huge pages; pinned where batches go to CUDA.
            "disk": large reads ahead in the epoch's order, for stores larger than memory; shuffle "block" makes them
            sequential. "gpu": the dataset's rows in the device's memory, gathered there. Loaders of the same rows share one
            copy. "auto" chooses by free memory (cgroup and the host's other ranks included), what is cached and the
            file system, and never takes a device's memory; the log says which and why.
        as_tuple: the loop gets (images uint8[B, C, H, W], targets), of rows with sizes of their own a list of images; with
            boxes, masks or several target columns (images, dict by name). False: an ImageBatch. The dataset's own as_tuple is
            that of indexing, and says nothing here.
        collate_fn: makes a batch of a list of samples; where the dataset has no transform of samples, of the rows of a batch,
            after the transform. MixUp and CutMix of torchvision's v2 are called with (images, targets).
        as_dict: names of images and targets, such as ("pixel_values", "labels"): the loop gets a dict of both.
        others: prefetch_factor, timeout, multiprocessing_context and worker_init_fn of the workers, as of a DataLoader's. Its
            arguments that change nothing here are ignored (pin_memory, in_order, ...); those that would are refused with what
            to write instead.

    It has what programs ask of a DataLoader: `sampler`, `batch_sampler`, `collate_fn`, `num_workers` and so on, `reset()`.

    A batch is a copy that belongs to the caller: kept, it is never overwritten, nor is its group's memory freed; dropped, its
    memory is reused. Each `iter` starts the next epoch, unless `set_epoch` or `load_state_dict` said otherwise. Not for several
    threads at once.

    Raises:
        ValueError: arguments that contradict each other or the dataset, one sentence each.
        TypeError: an argument that it does not have, or that of a DataLoader which would change something.

    Examples:
        >>> from pixpack import MemmapDataset
        >>> loader = MemmapLoader(MemmapDataset(store_path), batch_size=8, shuffle=True)
        >>> for images, targets in loader:
        ...     shape = images.shape  # uint8[8, 3, 32, 32]
    """

    def __init__(  # noqa: PLR0913 (its options, by keyword)
        self,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        shuffle: bool | str | None = False,
        seed: int | None = None,
        drop_last: bool = False,
        weights: Weights | None = None,
        sampler: Iterable[Item] | None = None,
        pad: bool = True,
        device: str | torch.device = "cpu",
        transform: Transform | None = None,
        prefetch: int = 2,
        threads: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        residency: str = "auto",
        as_tuple: bool = True,
        **ignored: object,
    ) -> None:
        options = Options.checked(
            ignored=ignored,
            dataset=dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            weights=weights,
            sampler=sampler,
            pad=pad,
            device=device,
            transform=transform,
            prefetch=prefetch,
            threads=threads,
            given_ranks=(rank, world_size),
            residency=residency,
            as_tuple=as_tuple,
        )
        self.dataset = rows = options.dataset
        self.prefetch, self.device, self.as_tuple = options.prefetch, options.device, options.as_tuple
        if self.as_tuple:
            rows.check_labels()
        ranks = ranks_expected(options.given_ranks)
        cpus = share_of_cpus(ranks_here(ranks))
        self.threads = options.threads or cpus
        self.transform = options.transform if options.transform is not None else rows.transform
        if rows.changes_samples and not rows.takes_batches:
            raise ValueError(
                "the dataset's transform takes single images: loop over torch's DataLoader(dataset, ...), or give this loader a"
                " transform of batches."
            )
        orders = Orders(
            rows,
            options.shuffle,
            weights=options.weights,
            sampler=options.sampler,
            drop_last=options.drop_last,
            pad=options.pad,
        )
        self.epochs = Epochs(orders, options.batch_size, given=options.given_ranks, seed=options.seed)
        plan = self.epochs.plan
        self.gathering = gathering_of(
            plan,
            self.device,
            options.residency,
            ranks,
            prefetch=self.prefetch,
        )
        self.residency, self.resident = self.gathering.residency, self.gathering.resident
        self._feeds: set[Feed[LoopItem]] = set()

    @property
    def ranks(self) -> Ranks:
        """The rank and world size that the loader uses: resolved when an epoch begins, an estimate before that."""
        return self.epochs.plan.ranks

    @property
    def batch_size(self) -> int:
        """Rows per batch and rank."""
        return self.epochs.plan.cut.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether the last, short batch is left out."""
        return self.epochs.orders.drop_last

    @property
    def order(self) -> str:
        """The order of rows: "sequential", "full", "block", "weighted", "mixture" or "sampler"."""
        return self.epochs.orders.name

    @property
    def seed(self) -> int | None:
        """The seed, which with the epoch determines the order; None until it is chosen, when the first epoch begins."""
        return self.epochs.seed.value

    def __len__(self) -> int:
        return self.epochs.steps()

    def __repr__(self) -> str:
        m, plan = self.dataset.manifest, self.epochs.plan
        return (
            f"MemmapLoader({plan.length} steps of {m.kind.up_to}uint8[{self.batch_size}, {m.height}, {m.width}, {m.channels}]"
            f" on {self.device}, order {plan.orders.text}, {self.epochs.seed}, {plan.ranks}, residency {self.residency})"
        )

    def __iter__(self) -> Iteration:
        return self.begin(self.epochs.upcoming())

    def begin(self, plan: EpochPlan, items: Iterator[Item] | None = None) -> Iteration:
        """Begin a pass; items: the sampler's items, if they were drawn already."""
        return Iteration(self._pass(plan, items), prefetch=self.prefetch, feeds=self._feeds)

    def _pass(self, plan: EpochPlan, items: Iterator[Item] | None = None) -> Pass:
        """Begin a pass: decide which thread or processes make its batches, and where their rows are read from."""
        is_sent = self.device.type == "cuda"
        if is_sent:
            # this may be a process that was forked since
            checked_device("device", self.device)
        progress = self.epochs.begin(plan)
        items = plan.items() if items is None else items
        transform = self.transform
        is_worked_on = transform is not None or is_sent
        group_bytes = tuning().transformed_group_bytes if is_worked_on else tuning().batch_group_bytes
        finish = Finish(plan, transform, as_tuple=self.as_tuple, on_device=is_sent, threads=self.threads)
        source = functools.partial(self.gathering.groups, plan, plan.steps(items, group_bytes), finish)
        # with prefetch=0 it runs in the caller's thread, whose device and mode of captures are not ours to change
        return Pass(progress, entered(self.device, source) if is_sent and self.prefetch else source, finish)

    def __enter__(self) -> MemmapLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the background threads of all iterators and release idle buffers."""
        for feed in list(self._feeds):
            feed.stop(wait=True)
        self.gathering.let_go()

    def set_epoch(self, epoch: int) -> None:
        """Start this epoch, 0 or more, at the next `iter`, also in a sampler; a loaded state in this epoch is resumed.

        Raises:
            ValueError: epoch is not 0 or more.
        """
        self.epochs.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the loop, after the last batch that the caller got, as a few integers."""
        return self.epochs.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state at the next `iter`, with its seed; batch_size and world size may differ from those that it has.

        Raises:
            ValueError: the state is of another store, subset or order, or of another seed than the loader was given.
        """
        self.epochs.load_state_dict(state)
