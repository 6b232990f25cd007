"""Transforms of single images, torchvision's or albumentations', on the rows of a batch: each with generators seeded for it.

Knows how such transforms are called and what they draw from. Imports none of them.
"""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from reader.store import ImageBatch, RaggedBatch, replaced
from reader.system import available_cpus
from reader.transforms.random import PER_SAMPLE, check_batch, draw

# Held while the generators of Python's random and of numpy, which belong to the process, are seeded for one image.
_OF_THE_PROCESS = threading.Lock()


class PerSample:
    """Call a transform of single images for each image of a batch, on several threads, in order.

    torchvision's get uint8[C, H, W]; albumentations' `image=` uint8[H, W, C]. What a row becomes depends on seed, epoch and
    position alone, as with our own transforms: torch's, numpy's and Python's generators are seeded for each image, and restored.

    A transform that draws from Python's random or from numpy.random, as torchvision's do not, runs on one thread, as those belong
    to the process. PerSample notices it by itself. Boxes and masks would not move: rows that have them are refused.

    Args:
        transform: of one image, such as v2.Compose([...]).
        threads: how many images at once; None: the CPUs that this process may use (affinity and cgroup).
        seed: with the loader's seed, the epoch and the position in its order, fixes what is drawn for a row.

    Raises:
        TypeError: transform cannot be called.
        ValueError: threads is not 1 or more.

    Example:
        >>> from reader import MemmapDataset
        >>> batch = MemmapDataset(store_path, as_tuple=False)[[7, 8]]
        >>> torch.equal(PerSample(lambda image: image.flip(-1))(batch).images, batch.images.flip(-1))
        True
    """

    # a loader's own threads give it whole batches
    has_own_threads = True

    def __init__(self, transform: Callable[..., Any], *, threads: int | None = None, seed: int = 0) -> None:
        if not callable(transform):
            raise TypeError(f"transform is {transform!r}, expected a function of one image.")
        if threads is not None and (not isinstance(threads, int) or threads < 1):
            raise ValueError(f"threads is {threads!r}, expected 1 or more, or None.")
        self.transform, self.seed = transform, seed
        self.threads = threads or available_cpus()
        self._needs_one_thread = False

    def __call__(self, batch: ImageBatch | RaggedBatch) -> Any:
        """Return an ImageBatch where the transform gives uint8, else the tuple of its images stacked and the targets.

        Raises:
            ValueError: the rows have boxes or masks, or the results have several sizes.
        """
        check_batch(self, batch, takes_ragged=True)
        _check_labels(batch)
        images = batch.images if isinstance(batch, RaggedBatch) else batch.images.unbind(0)
        seeds = (draw(batch, self.seed, PER_SAMPLE)[0] * 2**53).long().tolist()
        made = self._called(images, seeds)
        shapes = {tuple(image.shape) for image in made}
        if len(shapes) > 1:
            raise ValueError(
                f"the transform gave images of the shapes {' and '.join(map(str, sorted(shapes)))}. Let it end in one size,"
                " such as RandomResizedCrop(224)."
            )
        stacked = torch.stack([image.movedim(0, -1) for image in made])
        if stacked.dtype != torch.uint8 or stacked.ndim != 4:
            return stacked.movedim(-1, 1), batch.targets
        return replaced(batch, pixels=stacked, content=None, extras=batch.extras)

    def _called(self, images: Sequence[torch.Tensor], seeds: list[int]) -> list[torch.Tensor]:
        """Call the transform for each image, in order."""
        if self.threads > 1 and len(images) > 1 and not self._needs_one_thread:
            before, copies = _states(), threading.local()
            with ThreadPoolExecutor(self.threads) as pool:
                made = list(pool.map(lambda image, seed: _one(self._of_thread(copies), image, seed), images, seeds))
            if before == _states():
                return made
            # what was drawn belongs to no image: again, one after the other
            self._needs_one_thread = True
            _restore(before)
        with _OF_THE_PROCESS:
            before = _states()
            try:
                return [
                    _one(self.transform, image, seed, of_process=True)
                    for image, seed in zip(images, seeds, strict=True)
                ]
            finally:
                _restore(before)

    def _of_thread(self, copies: threading.local) -> Callable[..., Any]:
        """Give each thread a copy of a transform that keeps its generators and parameters in itself, as albumentations' do."""
        if not _is_albumentations(self.transform):
            return self.transform
        if not hasattr(copies, "transform"):
            copies.transform = copy.deepcopy(self.transform)
        own: Callable[..., Any] = copies.transform
        return own


class _Seeded(TorchDispatchMode):
    """Lets what this thread draws from torch's generator of the process come from one of its own."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operator of torch, with a generator where it draws and has none."""
        given = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded in func.tags and given.get("generator") is None:
            tensor = next((value for value in args if isinstance(value, torch.Tensor)), None)
            device = torch.device(given.get("device") or "cpu") if tensor is None else tensor.device
            if device not in self._generators:
                self._generators[device] = torch.Generator(device).manual_seed(self._seed)
            func, given["generator"] = _with_generator(func), self._generators[device]
        return func(*args, **given)


def _with_generator(func: Any) -> Any:
    """Return the overload of an operator that takes a generator: aten.rand.default -> aten.rand.generator."""
    names = {argument.name for argument in func._schema.arguments}
    if "generator" in names:
        return func
    for name in func.overloadpacket.overloads():
        other = getattr(func.overloadpacket, name)
        if {argument.name for argument in other._schema.arguments} == names | {"generator"}:
            return other
    raise TypeError(f"PerSample cannot seed {func}, which takes no generator: leave it out of the transform.")


def _one(transform: Callable[..., Any], image: torch.Tensor, seed: int, *, of_process: bool = False) -> torch.Tensor:
    """Call a transform for uint8[C, H, W] with this seed; returns [C, H, W], or what else it gave, as a tensor.

    of_process: seed the generators of Python and numpy too.
    """
    if of_process:
        random.seed(seed)
        np.random.seed(seed % (1 << 32))
    # one that changes its image in place changes a copy: the batch is the caller's, and may be gone through again
    image = image.clone()
    if _is_albumentations(transform):
        transform.set_random_seed(seed % (1 << 32))  # type: ignore[attr-defined]
        with _Seeded(seed):
            found = transform(image=image.movedim(0, -1).numpy())["image"]
    else:
        with _Seeded(seed):
            found = transform(image)
    if isinstance(found, np.ndarray):
        array = torch.from_numpy(np.ascontiguousarray(found))
        return array.movedim(-1, 0) if array.ndim == 3 else array[None]
    if not isinstance(found, torch.Tensor):
        raise TypeError(f"the transform gave a {type(found).__name__}, expected a tensor or an array of one image.")
    # tv_tensors are tensors of a class of their own
    return found.as_subclass(torch.Tensor)


def _is_albumentations(transform: Any) -> bool:
    return type(transform).__module__.split(".")[0].startswith("albument") and hasattr(transform, "set_random_seed")


def _check_labels(batch: ImageBatch | RaggedBatch) -> None:
    named = set() if batch.extras is None else {*dict(batch.extras.items())}
    has_masks = isinstance(batch, RaggedBatch) and batch.mask_offsets is not None
    if has_masks or not named.isdisjoint({"boxes", "masks"}):
        raise ValueError(
            "PerSample changes images alone, and the rows have boxes or masks, which must move with them. Take our own"
            " transforms, such as RandomAffine."
        )


def _states() -> tuple[Any, ...]:
    of_numpy: Any = np.random.get_state(legacy=True)
    return of_numpy[0], of_numpy[1].tobytes(), of_numpy[2:], random.getstate()


def _restore(states: tuple[Any, ...]) -> None:
    name, key, further, of_python = states
    np.random.set_state((name, np.frombuffer(key, dtype=np.uint32), *further))
    random.setstate(of_python)
