"""The one place for sizes and waits that tests shrink: blocks, windows, buffers, clocks. The product always uses the defaults.

Tests set PIXPACK_TESTING=1 and PIXPACK_TUNING="least_block_inputs=2 ..."; child processes inherit both. Without PIXPACK_TESTING=1
the environment is not read.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass

_SWITCH = "PIXPACK_TESTING"
_VALUES = "PIXPACK_TUNING"


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Sizes, counts and times, named with their units. Each default carries its reason."""

    # -- packing: blocks, workers, pixels

    # A block: few enough bytes that a worker holds several, many enough that a journal line is nothing beside it, and small
    # against the pack, so that workers end together.
    block_bytes: int = 8 << 20
    least_block_inputs: int = 8
    # A worker that holds so many bytes is given nothing more: blocks of images of very different sizes hold far more than 8 MiB.
    worker_held_bytes: int = 32 << 20
    # Between two looks after the workers.
    engine_poll_seconds: float = 0.25
    # Where more than this is between two looks, this process was stopped, or the machine slept, or the disk was slow; and no
    # worker is to blame.
    longest_look_seconds: float = 1.0
    # Longest that a worker may take for one image, or between two, where it only writes or begins: a disk under load or a slow
    # start must not cost it its work.
    worker_seconds: float = 60.0
    # Inputs of a part that is a task of Ray: a few seconds of packing.
    ray_part_inputs: int = 512
    # Bytes of one part that are copied at a time to where its rows belong.
    part_copy_bytes: int = 16 << 20

    # -- sources of a pack

    # Objects that a worker asks for ahead, or that wait in its memory; a photograph has 0.1 to 5 MB.
    source_objects_ahead: int = 64
    # A worker decodes some 600 photographs a second, and an object takes 20 to 100 ms: of 30 ms, so many requests give 800 a
    # second.
    source_requests: int = 32

    # -- loading

    # Smaller batches are gathered and queued in groups of this size: what each costs besides its copy, Python and thread
    # switching, is more than the copy of 8 rows of 224 x 224. Epochs in batches of 8 such rows reach 26, 47, 51 and 63 thousand
    # images/s in groups of 1, 4, 8 and 16 MiB, and their first batch comes after 2, 6, 8 and 11 ms (medians of 3 runs in turns
    # of bench_read.py).
    batch_group_bytes: int = 8 << 20
    # A group is queued when all of it is ready: smaller if batches are first transformed on the CPU or sent to a device.
    transformed_group_bytes: int = 1 << 20
    # shuffle="block": 8 MiB in a row are sequential to any disk; 32 of them mixed together are 1,700 rows of 224 x 224.
    shuffle_block_bytes: int = 8 << 20
    shuffle_window_blocks: int = 32
    # Read ahead from a disk at a time in shuffle="block", twice in memory: a whole window; less where memory is short.
    window_ahead_bytes: int = shuffle_window_blocks * shuffle_block_bytes
    # In other orders, where as much as keeps the disk busy is enough, three batches of 256 rows of 224 x 224: slices in order
    # had 0.92 of its rate, 0.86 with one (6 epochs in turns on a busy machine, 2026-11-23). Memory that is read into the first
    # time costs 0.1 to 2 s a GB.
    stream_ahead_bytes: int = 128 << 20

    # -- memory

    # A batch, or a group of small ones, is copied by who asks up to so many bytes: batches of 16 rows of 224 x 224 take 0.87 of
    # the CPU time that they take where threads copy them (24 epochs in turns on 2 busy cores, 2026-11-29).
    own_copy_bytes: int = 8 << 20
    # Of more, a thread is given this much at least: handing it over costs some 20 us, in which 200 kB are copied.
    copy_thread_bytes: int = 2 << 20
    # The most bytes of one memcpy: glibc's writes past the caches from about 768 kB on, which takes 1.07 times as long, 1.5 times
    # beside other programs (rows of 1280 x 960 x 3, 2 cores, 2026-11-21).
    memcpy_bytes: int = 512 << 10
    # From so many on a batch is more than the caches hold, and is written past them: epochs of batches of 38 MB had 1.07 times
    # the rate, of 19 MB 1.0, of 10 MB 0.96, rows of 1280 x 960 x 3 1.5 times. Into fresh memory, whose zeros the kernel has just
    # written to the caches, 0.95 (medians of 40 to 100 turns beside other programs, 2 cores of an AMD EPYC, 2026-11-24).
    streamed_batch_bytes: int = 24 << 20
    # Read from a disk and copied at a time: little enough to be in the caches still when it is copied, and a huge page. With 1
    # MiB, in small pages, block order had half of the rate (2026-11-28; its program is not kept). Each thread that reads keeps so
    # much.
    staged_read_bytes: int = 2 << 20
    # Smaller stores are warm after a few page faults.
    small_store_bytes: int = 32 << 20
    # Mapped memory is copied to a device so much at a time: page faults and copies then take turns.
    device_copy_bytes: int = 64 << 20

    # -- transforms

    # Pixels per pass on a CPU (four times as many as float32): what fits in its cache.
    cpu_pass_bytes: int = 150 << 10
    # Each mask's indices are int64, eight times the bytes: some masks at a time.
    masks_per_pass: int = 32
    # Bytes of pixels that are worth a thread of the compiled part.
    compiled_thread_bytes: int = 1 << 18
    # 1: the compiled part transforms, where it is built; 0: torch does, as where it is not.
    compiled_transforms: int = 1


_DEFAULTS = Tuning()


def tuning() -> Tuning:
    """Return the defaults, or, under PIXPACK_TESTING=1, what PIXPACK_TUNING changes of them.

    Raises:
        AttributeError, ValueError: PIXPACK_TUNING names a field that does not exist, or gives one no number.
    """
    if os.environ.get(_SWITCH) != "1":
        return _DEFAULTS
    return _parsed(os.environ.get(_VALUES, ""))


@functools.cache
def _parsed(text: str) -> Tuning:
    """Parse "least_block_inputs=2 worker_seconds=0.5"."""
    words = [word.partition("=") for word in text.split()]
    return Tuning(**{name: type(getattr(_DEFAULTS, name))(value) for name, _, value in words})
