"""Packing on a Ray cluster of two nodes on this machine: the bytes of a local pack, also where a node is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Tune, make_tree, unparted_bytes

from packer import OptionsError, PackError, pack
from packer.cli.app import run

pytestmark = pytest.mark.slow
_STORE_BYTES = 80 << 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster of two nodes of one CPU each; this process is connected to it."""
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'pixpack[ray]'")
    utilities = pytest.importorskip("ray.cluster_utils")
    settings = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": _STORE_BYTES}
    made = utilities.Cluster(initialize_head=True, head_node_args=settings)
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def node(cluster: Any) -> Any:
    """A second node."""
    return cluster.add_node(num_cpus=1, object_store_memory=_STORE_BYTES)


@pytest.fixture(autouse=True)
def _small_parts(tune: Tune) -> None:
    tune(ray_part_inputs=4, least_block_inputs=2)


@pytest.mark.parametrize("options", [{"size": 32}, {"fit": "none"}], ids=str)
def test_parts_on_ray_are_sealed_to_the_bytes_of_a_local_pack(
    options: dict[str, Any], node: Any, cluster: Any, tmp_path: Path
) -> None:
    images = make_tree(tmp_path / "images", classes=3, each=16)
    (images / "class1/broken.jpg").write_bytes(b"no image")
    seen: list[Any] = []
    report = pack(images, tmp_path / "out", engine="ray", max_rejects=1, progress=seen.append, **options)
    assert (report.inputs, report.rows, report.rejected, report.too_many_rejects) == (49, 48, 1, False)
    assert [now.done for now in seen if now.stage == "pack"][-1] == 49
    pack(images, tmp_path / "local", max_rejects=1, **options)
    assert unparted_bytes(tmp_path / "out") == unparted_bytes(tmp_path / "local")
    cluster.remove_node(node, allow_graceful=False)


def test_a_node_that_is_killed_costs_time_alone(node: Any, cluster: Any, tmp_path: Path) -> None:
    images = make_tree(tmp_path / "images", classes=4, each=40)
    killed: list[int] = []

    def progress(now: Any) -> None:
        if now.stage == "pack" and not killed:
            killed.append(now.done)
            # it has parts in progress
            node.kill_raylet(check_alive=False)

    pack(images, tmp_path / "out", size=32, engine="ray", progress=progress)
    cluster.remove_node(node, allow_graceful=False)
    assert killed[0] < 160
    pack(images, tmp_path / "local", size=32)
    assert unparted_bytes(tmp_path / "out") == unparted_bytes(tmp_path / "local")


def test_a_part_that_cannot_be_packed_ends_the_pack_with_its_sentence(node: Any, cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images/broken.jpg").write_bytes(b"no image")
    with pytest.raises(PackError, match="nothing of .*out could be packed: every input was rejected"):
        pack(tmp_path / "images", tmp_path / "out", size=16, engine="ray")
    cluster.remove_node(node, allow_graceful=False)


def test_what_does_not_go_together_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OptionsError, match="engine='ray' needs size or fit='none'"):
        pack(tmp_path, tmp_path / "out", engine="ray")
    assert run([str(tmp_path), str(tmp_path / "out"), "--size", "16", "--engine", "spark"]) == 2
    assert "--engine is 'spark', expected local or ray" in capsys.readouterr().err
