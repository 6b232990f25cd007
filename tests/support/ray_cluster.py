"""A Ray cluster of two nodes on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

_STORE_BYTES = 80 << 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster with a head node of one CPU; tests add others."""
    utilities = pytest.importorskip("ray.cluster_utils", reason="ray is not installed: pip install 'pixpack[ray]'")
    settings = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": _STORE_BYTES}
    with pytest.MonkeyPatch.context() as patch:
        # else its workers wait for all other tests on this machine
        patch.setenv("RAY_worker_niceness", "0")
        made = utilities.Cluster(initialize_head=True, head_node_args=settings)
        yield made
        made.shutdown()


@pytest.fixture
def node(cluster: Any) -> Iterator[Any]:
    """A second node of one CPU."""
    added = cluster.add_node(num_cpus=1, object_store_memory=_STORE_BYTES)
    yield added
    if added in cluster.list_all_nodes():
        cluster.remove_node(added, allow_graceful=False)


@pytest.fixture(scope="module")
def two_nodes(cluster: Any) -> Any:
    """The cluster with a second node of one CPU for all tests of a module."""
    cluster.add_node(num_cpus=1, object_store_memory=_STORE_BYTES)
    return cluster
