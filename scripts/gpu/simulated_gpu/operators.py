"""torch's operators on the GPU that cudart.cpp simulates: each is the CPU's, launched as a kernel on the current stream.

The memory of a simulated device is the host's, so a kernel works on CPU tensors laid over it. It is launched by address, as a
real one: it keeps no memory alive, and runs when its stream comes to it. What an operator returns is allocated by torch's own
allocator before it runs, in the shape that its meta kernel gives. Copies from and to the host are torch's own.
"""

from __future__ import annotations

import atexit
import ctypes
import inspect
import itertools
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

# They move nothing, or ask for nothing but memory: torch's own work as they are.
OWN = {
    *("as_strided", "view", "_reshape_alias", "view_as_real", "view_as_complex", "unfold", "alias", "set_"),
    *("set_data", "resize_", "_resize_output_", "empty", "empty_strided", "_pin_memory", "is_pinned"),
    *("record_stream", "_to_copy", "_assert_async", "cudnn_is_acceptable", "_efficientzerotensor"),
}
OWN_FAMILIES = ("_cudnn_rnn", "_nested", "_sparse", "_fft", "_weight", "_cslt")
# Made of others, some of which the CPU has not, or fit for any device only by way of kernels.
FULL_OPERATORS = {
    *("clone", "convolution", "convolution_backward", "linear_backward", "ones_like", "zeros_like", "full_like"),
    *("rand_like", "randn_like", "full", "ones", "zeros", "rand", "randn", "randint", "randperm", "arange"),
    *("scalar_tensor", "stack", "repeat", "embedding", "fill", "flip", "constant_pad_nd", "new_full", "new_zeros"),
    *("new_ones", "eye", "linspace", "isin"),
}
# What they return, or its shape, depends on the data: the stream is waited for, as CUDA's do.
WAITING = {
    *("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "equal"),
    *("bincount",),
}
# Take an index from the CPU; torch copies it from ordinary memory, and waits for that.
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "copy_"}
LAUNCH_FAILED = 719  # cudaErrorLaunchFailure

# preloaded into this process already
runtime = ctypes.CDLL("libcudart.so.13")
runtime.simulated_launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
runtime.simulated_synchronize.argtypes = runtime.simulated_is_captured.argtypes = [ctypes.c_void_p]
runtime.simulated_used.restype = runtime.simulated_pinned.restype = ctypes.c_size_t

_numbers, _launched = itertools.count(), dict[int, Callable[[], Any]]()
_captured: set[int] = set()  # every replay of their graph calls them
_generators: dict[int, tuple[int, torch.Generator]] = {}
_libraries: list[Any] = []


def install() -> None:
    """Take the place of every operator that torch has for CUDA and the CPU can do."""
    warnings.filterwarnings(
        "ignore", message=r"(?s).*overriding a previously registered kernel.*", category=UserWarning
    )
    library = torch.library.Library("aten", "IMPL", "CUDA")
    _libraries.append(library)
    options = {"allow_override": True} if "allow_override" in inspect.signature(library.impl).parameters else {}
    for full in torch._C._dispatch_get_all_op_names():
        namespace, _, signature = full.partition("::")
        name, _, overload = signature.partition(".")
        if namespace != "aten" or name in OWN or name.startswith(OWN_FAMILIES):
            continue
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(full, "CUDA")
        operator = getattr(getattr(torch.ops.aten, name, None), overload or "default", None)
        if operator is None or not (has_kernel or name == "copy_" or (name in FULL_OPERATORS and overload != "out")):
            continue
        library.impl(signature, _copying(operator) if name == "copy_" else Kernel(operator), **options)
    torch.backends.cudnn.enabled = False
    atexit.register(runtime.simulated_end)


class Kernel:
    """An operator that is launched."""

    def __init__(self, operator: Any) -> None:
        self._operator, schema = operator, operator._schema
        self._name = schema.name.split("::")[1]
        self._takes_tensor = {a.name: str(a.type) in ("Tensor", "Optional[Tensor]") for a in schema.arguments}
        written = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        self._written = [(schema.arguments.index(a), a.name) for a in written]
        self._outs = [a.name for a in written if a.kwarg_only]
        self._returns = len(schema.returns)
        self._is_in_place = bool(written) and all(r.alias_info is not None for r in schema.returns)
        self._must_wait = self._name in WAITING

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        operator, given = self._operator, [*zip(self._takes_tensor, arguments, strict=False), *named.items()]
        if any(self._takes_tensor[name] and isinstance(value, bool | int | float | complex) for name, value in given):
            operator = operator.overloadpacket  # a number that torch would wrap
        found = [value for value in flat([value for _, value in given]) if isinstance(value, torch.Tensor)]
        on_cuda = [tensor for tensor in found if tensor.is_cuda]
        device = on_cuda[0].device if on_cuda else torch.device(named.get("device") or "cuda")
        for tensor in found:
            is_there = tensor.device == device if tensor.is_cuda else not tensor.dim() or self._name in INDEXED
            if not is_there:
                raise RuntimeError(
                    f"Expected all tensors to be on the same device, but {self._name} found {tensor.device}"
                )
        if device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        # torch's own kernels find their device current: without that, 0 is another device's default stream
        with torch.cuda.device(device):
            if any(not tensor.is_cuda and tensor.dim() for tensor in found):
                runtime.simulated_synchronize(torch._C._cuda_getCurrentRawStream(device.index))
            return self._called(operator, arguments, named, device, is_made=not on_cuda)

    def _called(
        self, operator: Any, arguments: Any, named: dict[str, Any], device: torch.device, *, is_made: bool
    ) -> Any:
        """Launch it on the current stream; is_made: no argument names the device."""
        stream = torch._C._cuda_getCurrentRawStream(device.index)
        made = None if self._must_wait else self._shaped(operator, arguments, named)
        on_host = [on_cpu(value) for value in arguments], {name: on_cpu(value) for name, value in named.items()}
        if is_made:
            on_host[1]["device"] = torch.device("cpu")
        if self._must_wait:
            runtime.simulated_synchronize(stream)
            with torch.no_grad():
                return tree_map_only(
                    torch.Tensor, lambda value: sent(value, device), operator(*on_host[0], **on_host[1])
                )
        if self._is_in_place:
            launch(stream, lambda: operator(*on_host[0], **on_host[1]))
            back = [arguments[at] if at < len(arguments) else named[name] for at, name in self._written]
            return (back[0] if self._returns == 1 else tuple(back)) if self._returns else None
        made = tree_map_only(torch.Tensor, lambda like: empty_like(like, device), made)
        targets = tree_map_only(torch.Tensor, laid_over, made)
        launch(stream, lambda: put(targets, operator(*on_host[0], **on_host[1])))
        return made

    def _shaped(self, operator: Any, arguments: Any, named: dict[str, Any]) -> Any:
        """Return what comes out as tensors on "meta", and give `out=` its size; where nothing says so, wait from now on."""
        if self._is_in_place and not self._outs:
            return None
        shapes = {name: as_meta(value) for name, value in named.items() if name != "generator"}
        if not any(isinstance(value, torch.Tensor) for value in flat([*arguments, *named.values()])):
            shapes["device"] = torch.device("meta")
        try:
            with torch.no_grad():
                made = operator(*map(as_meta, arguments), **shapes)
        except (NotImplementedError, RuntimeError, TypeError, AttributeError):
            self._must_wait = not self._is_in_place
            return None
        for name in self._outs:
            if named[name].shape != shapes[name].shape:
                named[name].resize_(shapes[name].shape)
        return made


def _copying(operator: Any) -> Callable[..., Any]:
    """Return what copies: on a device a kernel, over the bus torch's own."""
    own, keys = torch.library.get_kernel("aten::copy_", "CUDA"), torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    kernel = Kernel(operator)

    def copy_(to: torch.Tensor, come: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        is_plain = (
            to.dtype == come.dtype and to.stride() == come.stride() and to.shape == come.shape and to.is_contiguous()
        )
        if to.device == come.device and not is_plain:
            return kernel(to, come, non_blocking)
        return own.call_boxed(keys, to, come, non_blocking)

    return copy_


# -- kernels


def launch(stream: int, kernel: Callable[[], Any]) -> None:
    """Have a kernel done by a stream, when it comes to it."""
    number = next(_numbers)
    _launched[number] = kernel
    if runtime.simulated_is_captured(stream):
        _captured.add(number)
    runtime.simulated_launch(stream, ctypes.cast(_run, ctypes.c_void_p), number)
    # torch asks for the last error after each launch, which may be that of an earlier call
    if error := runtime.cudaGetLastError():
        raise RuntimeError(f"CUDA error {error}, of this call or one before")


@ctypes.CFUNCTYPE(None, ctypes.c_int64)
def _run(number: int) -> None:
    try:
        with torch.inference_mode():
            (_launched[number] if number in _captured else _launched.pop(number))()
    except BaseException:
        print("simulated GPU: a kernel failed", file=sys.stderr)
        traceback.print_exc()
        runtime.simulated_lose(LAUNCH_FAILED)


# -- tensors


def laid_over(tensor: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor over a device tensor's memory, which it does not keep."""
    storage = tensor.untyped_storage()
    with torch.inference_mode(False):
        found = torch.empty(0, dtype=tensor.dtype)
        if storage.nbytes():
            memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
            raw = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
            found.set_(raw, tensor.storage_offset(), tensor.size(), tensor.stride())
        return found if storage.nbytes() else torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)


def empty_like(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)


def sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    there = empty_like(tensor, device)
    if tensor.numel():
        laid_over(there).copy_(tensor)
    return there


def put(target: Any, value: Any) -> None:
    """Write what an operator returned to where it was promised to be."""
    if isinstance(target, torch.Tensor):
        # batch_norm's statistics, where it evaluates: the CPU returns none
        if value.numel() or not target.numel():
            target.copy_(value)
    elif isinstance(target, list | tuple):
        for part, come in zip(target, value, strict=True):
            put(part, come)


def on_cpu(value: Any) -> Any:
    """Return an argument as a kernel takes it: an index from the CPU travels when it is launched."""
    if isinstance(value, torch.Tensor):
        return laid_over(value) if value.is_cuda else value.clone()
    if isinstance(value, torch.Generator) and value.device.type == "cuda":
        seed = value.initial_seed()
        if _generators.get(id(value), (None,))[0] != seed:
            _generators[id(value)] = seed, torch.Generator().manual_seed(seed)
        return _generators[id(value)][1]
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return type(value)(map(on_cpu, value)) if type(value) in (list, tuple) else value


def as_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return empty_like(value, torch.device("meta"))
    if isinstance(value, torch.device):
        return torch.device("meta")
    return type(value)(map(as_meta, value)) if type(value) in (list, tuple) else value


def flat(values: Any) -> list[Any]:
    if isinstance(values, list | tuple):
        return [leaf for value in values for leaf in flat(value)]
    return [values]
