"""to_device moves each tensor of a nest as its own `to` does, and nothing else."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import pytest
import torch
from augmenting import labelled
from conftest import devices
from tensordict import TensorDict
from torch.nn.utils.rnn import pack_sequence

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
