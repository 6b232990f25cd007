"""Workers on the nodes of a Ray cluster: Ray starts them, and each connects back to this process as a pipe would.

So the engine keeps blocks in order and replaces workers as it does on one machine, and rows go from a worker to their offset
in the file. The only module that imports ray.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection, Listener
from types import ModuleType
from typing import Any

from packer.errors import EngineError
from packer.option_names import Option
from packer.workers.contracts import Job
from packer.workers.ray_node import Host, keep_alive
from reader.tuning import tuning

_CONNECT_SECONDS = 5.0
# Ray's client waits for minutes for one who accepts the connection and is no Ray, and cannot be configured otherwise.
_PING = """
import sys
from ray._raylet import GcsClient
try:
    GcsClient(address=sys.argv[1])
except Exception as e:
    print(type(e).__name__)
"""
# How Ray is made to show its token (RAY_AUTH_TOKEN, ~/.ray/auth_token), since 2.52; read as ray is imported.
_MODE = "RAY_AUTH_MODE"
# Ray starts a process and it imports numpy and Pillow; a node may be busy meanwhile.
_START_SECONDS = 120.0
_LOST_AT_MOST = 5


def check_ray(address: str | None) -> None:
    """Refuse where ray is not installed, or no Ray that lets us in answers at address (host:port): Ray itself waits minutes.

    Raises:
        EngineError: says which.
    """
    if (sys.modules["ray"] if "ray" in sys.modules else importlib.util.find_spec("ray")) is None:
        raise EngineError(f"{Option('engine', 'ray')} needs ray, which is not installed: pip install 'pixpack[ray]'.")
    if address is not None and not _is_host_port(address):
        raise EngineError(f"{Option('address')} is {address!r}, expected host:port, as `ray start --head` prints it.")
    asked = address or os.environ.get("RAY_ADDRESS", "")
    if _is_host_port(asked):  # else "auto" and the like: Ray looks around by itself
        _check_answers(asked)


def _is_host_port(address: str) -> bool:
    host, _, port = address.rpartition(":")
    return host != "" and "/" not in host and port.isdecimal() and int(port) < 1 << 16


def _check_answers(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError as e:
        what = e.strerror or str(e)
        raise EngineError(f"no Ray cluster answers at {address}: {what}. Start one with: ray start --head") from None
    if not _is_let_in(address):
        # an explicit address does not make Ray show its token, a cluster that it finds itself does: here either does
        if _MODE not in os.environ and "ray" not in sys.modules and _is_let_in(address, **{_MODE: "token"}):
            os.environ[_MODE] = "token"
            return
        raise EngineError(
            f"the Ray cluster at {address} asks for a token, and was not shown the right one. Set {_MODE}=token, and"
            " RAY_AUTH_TOKEN to what `ray get-auth-token` says on its head node."
        )


def _is_let_in(address: str, **environment: str) -> bool:
    """Ask Ray at an address; False where it wants another token. What else fails says nothing: joining says what is wrong."""
    # in a process of its own, which can be ended
    ping, seconds = [sys.executable, "-c", _PING, address], tuning().ray_answer_seconds
    try:
        done = subprocess.run(
            ping,
            timeout=seconds,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | environment,
        )
    except subprocess.TimeoutExpired:
        raise EngineError(
            f"{address} accepts connections, but no Ray cluster answers there within {seconds:g} seconds."
            " Give the address that `ray start --head` prints."
        ) from None
    return b"AuthenticationError" not in done.stdout


class RayWorkers:
    """Starts workers on a cluster.

    Args:
        address: of the cluster, host:port; None: RAY_ADDRESS, a cluster that runs on this machine, or a new one on it.
        witness: a file of OUT and what it holds: a node that reads something else does not share the folder.
        decoders: the decoders of this process, and what finds them elsewhere; a node with others is refused.

    Raises:
        EngineError: the cluster cannot be joined.
    """

    def __init__(
        self, address: str | None, witness: tuple[str, bytes], decoders: object, find_decoders: Callable[[], object]
    ) -> None:
        import ray

        self._ray, self._witness = ray, witness
        self._decoders, self._find_decoders = decoders, find_decoders
        self._ends = not ray.is_initialized()
        if self._ends:
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, RuntimeError, ValueError, TimeoutError, ray.exceptions.RayError) as e:
                raise EngineError(f"Ray cannot be reached: {' '.join(str(e).split())[:200]}") from None
        self._key = secrets.token_bytes(32)
        self._listener = Listener((ray.util.get_node_ip_address(), 0), backlog=1024, authkey=self._key)
        # a node that cannot start a worker would be waited for forever
        self._listener._listener._socket.settimeout(tuning().ray_poll_seconds)  # type: ignore[attr-defined]
        # actor, the number that it will send, what it will return
        self._starting: list[tuple[Any, str, object]] = []

    @property
    def cpus(self) -> int:
        """How many workers the cluster has room for."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def prepare(self, job: Job, count: int) -> None:
        """Ask Ray for so many workers at once; `start` takes one after the other as they connect."""
        for _ in range(count):
            self._ask(job, num_cpus=1)

    def start(self, job: Job) -> tuple[RayProcess, Connection]:
        """Return a worker that is ready, and the connection to it; beyond those prepared, one without a CPU of its own.

        Raises:
            EngineError: no worker can be started, its node has other decoders, or does not share OUT.
        """
        if not self._starting:
            # what a lost node had must fit on those that are left
            self._ask(job, num_cpus=0)
        connection = self._accept(job)
        number, node, sees, decoders = connection.recv()
        actor = next(actor for actor, asked, _ in self._starting if asked == number)
        self._starting = [entry for entry in self._starting if entry[1] != number]
        if not sees:
            folder = os.path.dirname(os.path.dirname(self._witness[0]))
            raise EngineError(f"node {node} does not see {folder}. OUT must be on a file system that all nodes share.")
        if decoders != self._decoders:
            raise EngineError(f"node {node} has other decoders ({decoders}) than this one ({self._decoders}).")
        return RayProcess(self._ray, actor, node), connection

    def close(self) -> None:
        """End what has not connected yet, and leave the cluster if this object joined it."""
        self._listener.close()
        for actor, _, _ in self._starting:
            self._ray.kill(actor)
        if self._ends:
            self._ray.shutdown()

    def _ask(self, job: Job, *, num_cpus: int) -> None:
        remote: Any = self._ray.remote(num_cpus=num_cpus, max_restarts=0)(Host)
        actor = remote.options(scheduling_strategy="SPREAD").remote()
        number = secrets.token_hex(8)
        done = actor.work.remote(job, number, self._listener.address, self._key, self._witness, self._find_decoders)
        self._starting.append((actor, number, done))

    def _accept(self, job: Job) -> Connection:
        lost = 0
        # by counting, not by the clock: it runs on while this process is stopped
        for _ in range(math.ceil(_START_SECONDS / tuning().ray_poll_seconds)):
            try:
                connection = self._listener.accept()
            except TimeoutError:
                lost += self._ask_again(job, is_last=lost >= _LOST_AT_MOST)
                continue
            keep_alive(connection)
            return connection
        raise EngineError(f"Ray started no worker within {_START_SECONDS:g} seconds. Look at: ray status")

    def _ask_again(self, job: Job, *, is_last: bool) -> int:
        """Ask for another instead of each worker that ended before it could connect; returns how many did.

        Ray may start one on a node that is just leaving.
        """
        ended, _ = self._ray.wait([done for _, _, done in self._starting], timeout=0)
        for done in ended:
            self._starting = [entry for entry in self._starting if entry[2] is not done]
            try:
                self._ray.get(done)
            except Exception as e:  # Ray wraps what a node raises
                last = (str(e).strip().splitlines() or [type(e).__name__])[-1].rstrip(".")
                if is_last:
                    raise EngineError(
                        f"a worker cannot start on its node: {last}. Is pixpack installed there?"
                    ) from None
            self._ask(job, num_cpus=0)
        return len(ended)


class RayProcess:
    """What the engine asks of a process, for one that Ray has placed on a node."""

    exitcode: int | None = None

    def __init__(self, ray: ModuleType, actor: object, node: str) -> None:
        self._ray, self._actor, self.node = ray, actor, node

    def kill(self) -> None:
        """End it, wherever it is; leaving the cluster has ended it already."""
        if self._ray.is_initialized():
            self._ray.kill(self._actor)

    def join(self, seconds: float) -> None:
        """Do not wait: Ray ends it, and its connection is closed."""
