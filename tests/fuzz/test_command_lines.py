"""Commands with any options and arguments end in a result or one sentence, and change nothing but the store that they name."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import click
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from kinds import MakeInputs, MakeStore

from packer import pack
from packer.cli.app import cli
from tests.hostile.watched import Watched

_INPUTS = [
    "crop/images",
    "table/images/table.csv",
    "tar/samples.tar",
    "zip/images.zip",
    "splits/images",
    "boxes/boxes.json",
    "-",
]
_STORES = ["pad", "jpeg", "own-sizes", "splits", "part", "nothing"]
_VALUES = ("", "0", "1", "2", "8", "24x40", "short:30", "0.5", "1e3", "nan", "-1", "9" * 30, "100%", "1/2", "::2", "0,1",
           "path", "label", "label,weight", "none", "=", "--", "..", "a\nb", "\x1b[31mred", "\udcff", "a" * 5000)  # fmt: skip
# each worker is a process, and a cluster is none of ours
_FEW = {"workers": ["0", "1", "2", "x"], "engine": ["local", "x"], "seconds": ["0.1", "x"], "size": ["8", "24x40", "x"]}


@pytest.fixture(scope="module")
def given_files(inputs_of: MakeInputs, store_of: MakeStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of inputs and stores."""
    root = tmp_path_factory.mktemp("given")
    for name in _INPUTS[:-1]:
        kind = name.partition("/")[0]
        shutil.copytree(inputs_of(kind).folder, root / kind)
    for kind in _STORES[:-2]:
        shutil.copytree(store_of(kind), root / "stores" / kind)
    pack(root / "crop/images", root / "stores/part", size=16, part="1/2", max_rejects=1)
    return root


@st.composite
def commands(draw: st.DrawFn, own: Path) -> list[str]:
    """Draw a command with its arguments and some of its options."""
    name = draw(st.sampled_from(sorted(cli.commands)))
    inputs, new = st.sampled_from(_INPUTS), st.just("out")
    stores = st.sampled_from([f"stores/{one}" for one in _STORES])
    urls = (stores | new).map(lambda place: f"file://{own}/{place}")
    places = {"images": inputs, "path": inputs, "url": urls, "dest": new}
    places["out"] = new if name in ("build", "subset", "merge", "pull") else stores
    words, options = [name], list[str]()
    for parameter in cli.commands[name].params:
        called = str(parameter.name)
        usual = places.get(called, stores)
        if isinstance(parameter, click.Argument):
            words.append(draw(usual if draw(st.integers(0, 9)) else inputs | stores | st.sampled_from(_VALUES)))
        elif parameter.required or called == "size" or draw(st.integers(0, 14)) == 7:
            choices = parameter.type.choices if isinstance(parameter.type, click.Choice) else _VALUES
            value = draw(st.sampled_from(_FEW[called]) if called in _FEW else st.sampled_from(choices) | usual)
            options += [parameter.opts[-1]] if parameter.is_flag else [parameter.opts[-1], value]
    return words + options


@pytest.mark.parametrize("count", [30, pytest.param(500, marks=pytest.mark.nightly)])
def test_any_options_end_in_a_result_or_a_sentence(count: int, given_files: Path, watched: Watched) -> None:
    ended = Counter[int]()
    lists = st.sampled_from([b"", b"\xff\xfe\n", b"crop/images/ant/0.jpg\ncrop/images/bee/1.jpg\n"])

    @examples(count)
    @given(commands(watched.own), lists)
    def check(words: list[str], stdin: bytes) -> None:
        shutil.copytree(given_files, watched.clear(), dirs_exist_ok=True)
        ended[watched.run(words, stdin)[0]] += 1

    check()
    assert ended[0] > count / 20 < ended[2]
