"""to_device moves each tensor of a nest as its own `to` does, and nothing else."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any, NamedTuple

import pytest
import torch
from augmenting import labelled
from conftest import devices
from tensordict import TensorDict, TensorDictParams, lazy_stack
from torch.nn.utils.rnn import pack_sequence
from torch.utils import _pytree as pytree

from reader import to_device

# meta stands in for another device: a move to it makes other tensors
OTHERS = ["meta", *devices()[1:]]


class Pair(NamedTuple):
    images: torch.Tensor
    name: str = "given"


class Marked(torch.Tensor):
    """A kind of tensor of its own."""


@dataclasses.dataclass(frozen=True)
class Known:
    images: torch.Tensor
    count: int


torch.export.register_dataclass(Known, serialized_type_name="pixpack.tests.Known")


@pytest.mark.parametrize("device", ["cpu", *OTHERS])
def test_every_tensor_of_a_nest_is_moved(device: str) -> None:
    images, module = torch.zeros(2, 3), torch.nn.Linear(2, 2)
    nest = {
        "list": [images, (images, "text", None)],
        "named": Pair(images, "name"),
        "known": Known(images, 3),
        "tensordict": TensorDict({"a": images, "b": TensorDict({"c": images}, batch_size=[2])}, batch_size=[2]),
        "batch": labelled(2),
        "module": module,
    }
    moved = to_device(nest, device)
    found = [moved["list"][0], moved["list"][1][0], moved["named"].images, moved["known"].images]
    found += [moved["tensordict"]["a"], moved["tensordict"]["b", "c"], moved["batch"].pixels, moved["batch"].rows]
    found += [moved["batch"].content, *moved["batch"].extras.values()]
    assert {tensor.device.type for tensor in found} == {device}
    assert [type(moved[name]) for name in nest] == [type(value) for value in nest.values()]
    assert moved["list"][1][1:] == ("text", None)
    assert (moved["named"].name, moved["known"].count) == ("name", 3)
    # the tensors' own, its index included
    of_nodes = {moved["tensordict"].device, moved["batch"].device, moved["tensordict"]["b"].device}
    assert of_nodes == {moved["tensordict"]["a"].device}
    # not a tensor: moving it would change the caller's own
    assert moved["module"] is module
    assert nest["batch"].pixels.device.type == "cpu"


def test_nothing_that_is_there_already_is_copied() -> None:
    parameter = torch.nn.Parameter(torch.zeros(3))
    images, batch, there = torch.zeros(3), labelled(1), TensorDict({"a": torch.zeros(1)}, device="cpu")
    moved = to_device([images, batch, there, parameter], "cpu")
    assert (moved[0] is images, moved[2] is there, moved[3] is parameter) == (True, True, True)
    assert moved[1].pixels.data_ptr() == batch.pixels.data_ptr()


@pytest.mark.parametrize("device", OTHERS)
def test_kinds_of_tensors_and_of_containers_are_those_that_their_own_to_gives(device: str) -> None:
    one = torch.ones(2)
    dicts = [
        TensorDict({"a": one, "n": TensorDict({"a": one}, batch_size=[2])}, batch_size=[2]).lock_(),
        TensorDictParams(TensorDict({"a": one}, batch_size=[2])),
        lazy_stack([TensorDict({"a": one}, batch_size=[2])] * 2).lock_(),
        labelled(2).lock_(),
    ]
    for sent, moved in zip(dicts, to_device(dicts, device), strict=True):
        own = sent.to(device)
        assert (type(moved), moved.is_locked, moved.device) == (type(own), own.is_locked, own.device)
        leaves = [[(key, type(v), v.device) for key, v in nodes.items(True, True)] for nodes in (moved, own)]
        assert leaves[0] == leaves[1]
    tensors = [torch.eye(3).to_sparse(), torch.nested.nested_tensor([one, torch.ones(3)], layout=torch.jagged)]
    tensors += [one.as_subclass(Marked), torch.nn.Parameter(one), torch.nn.Buffer(one), one.clone().requires_grad_()]
    for sent, moved in zip(tensors, to_device(tensors, device), strict=True):
        own = sent.to(device)
        assert (type(moved), moved.layout, moved.device) == (type(own), own.layout, own.device)
        assert (moved.requires_grad, moved.is_leaf) == (own.requires_grad, own.is_leaf)
    containers = [OrderedDict(b=one, a=one), defaultdict(list, a=one), deque([one], maxlen=3), Pair(one), one.max(0)]
    for sent, moved in zip(containers, to_device(containers, device), strict=True):
        assert type(moved) is type(sent)
        assert {leaf.device.type for leaf in pytree.tree_leaves(moved) if isinstance(leaf, torch.Tensor)} == {device}
    others: list[Any] = [Counter(a=1), torch.Size([2]), None, {1, 2}, "text", 3]
    assert to_device(others, device) == others
    assert [type(value) for value in to_device(others, device)] == [type(value) for value in others]


@pytest.mark.parametrize("device", ["cpu", *OTHERS])
@pytest.mark.parametrize("enforce_sorted", [True, False])
def test_a_packed_sequences_batch_sizes_stay_on_the_host(device: str, enforce_sorted: bool) -> None:
    packed = pack_sequence([torch.ones(3, 2), torch.ones(2, 2)], enforce_sorted=enforce_sorted)
    moved = to_device({"words": packed}, device)["words"]
    assert type(moved) is type(packed)
    assert (moved.data.device.type, moved.batch_sizes.device.type) == (device, "cpu")
    assert moved.batch_sizes.tolist() == [2, 2, 1]
    assert {index.device.type for index in moved[2:] if index is not None} == (set() if enforce_sorted else {device})
    assert (moved is packed) is (device == "cpu")


@pytest.mark.cuda
def test_what_torch_cannot_pin_and_any_strides_are_taken() -> None:
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    assert torch.equal(to_device(quantized, "cuda").cpu().int_repr(), quantized.int_repr())
    assert [part.tolist() for part in to_device(nested, "cuda").unbind()] == [[1, 1], [1, 1, 1]]
    tensors = [torch.arange(3).expand(4, 3), torch.arange(6).view(2, 3).t(), torch.arange(8)[::2], torch.empty(3, 0)]
    for tensor, moved in zip(tensors, to_device(tensors, "cuda"), strict=True):
        assert torch.equal(moved.cpu(), tensor)


@pytest.mark.cuda
def test_no_context_is_left_on_another_device() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device")
    code = (
        "import torch, reader; reader.to_device([torch.ones(3)], 'cuda:1'); print(torch._C._cuda_hasPrimaryContext(0))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
