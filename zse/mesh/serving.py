"""A node as a process: it announces itself, says where it is, and stays until it is told to go."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from zse.errors import MeshError
from zse.mesh.finding import Discovery, checked_address, checked_name, secret_of
from zse.mesh.node import Node, NodeSetup
from zse.records import record
from zse.units import GIB

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.mesh.devices import NodeDevices
    from zse.mesh.messages import AskOpen, Facts
    from zse.mesh.opening import AnyStage
    from zse.settings import Settings

_ENDS = (signal.SIGTERM, signal.SIGINT)


@record
class NodeStart:
    """What ``zse mesh start`` was told."""

    listen: str = "127.0.0.1:0"
    name: str = ""
    advertised: str = ""
    join: tuple[str, ...] = ()
    scout: str = ""
    is_found: bool = True
    model: str = ""
    memory_gib: float = 0.0
    threads: int = 0
    device: str = "cpu"
    tensor_parallel: int = 0
    gpus: str = ""


def run_node(settings: Settings, start: NodeStart, tell: Callable[[str], None]) -> int:
    """Be a node until SIGTERM or Ctrl-C; return the exit code.

    Raises:
        UsageError: A name, an address or the secret is none.
        MeshError: The address is taken.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)  # of all threads: one waits for them
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    secret = secret_of(settings.serve.mesh)
    host, _, port = start.listen.rpartition(":")
    if start.advertised:
        checked_address(start.advertised)
    name = checked_name(start.name or f"{socket.gethostname()}-{os.getpid()}")
    machine = _Machine(settings, start, name)
    if start.device != "cpu" or start.gpus:
        machine.facts()  # a GPU that cannot be used is said at once
    setup = NodeSetup(
        name=name,
        secret=secret,
        host=host.strip("[]") or "127.0.0.1",
        port=int(port) if port.isdecimal() else 0,
        advertised=start.advertised,
    )
    try:
        node = Node(setup, machine.facts, machine.open_stage)
    except OSError as error:
        raise MeshError(
            f"{start.listen} cannot be listened at: {error.strerror}",
            hint="Choose another --listen.",
        ) from error
    with ExitStack() as open_things:
        open_things.callback(node.close)
        if start.is_found:
            own = name, node.address
            join = [checked_address(one) for one in start.join]
            open_things.enter_context(Discovery(secret, own, join=join, listen=start.scout))
        node.start()
        tell(f"{name} listens at {node.address}")
        leave = signal.sigwait(_ENDS)
        logging.getLogger("zse.mesh").info("leaving: %s", signal.Signals(leave).name)
    return 0


class _Machine:
    """What a node says of its machine, and how it opens stages; its code comes when it is asked."""

    def __init__(self, settings: Settings, start: NodeStart, name: str) -> None:
        self._settings, self._start, self._name = settings, start, name
        self._facts: Facts | None = None
        self._devices: NodeDevices | None = None
        self._lock = threading.RLock()

    def facts(self) -> Facts:
        """Return what was measured when somebody first asked, before anything was computed here."""
        from zse.mesh.probe import facts_of_machine

        with self._lock:
            if self._facts is None:
                start, memory_bytes = self._start, int(self._start.memory_gib * GIB)
                self._facts = facts_of_machine(
                    self._name, memory_bytes, self.devices(), threads=start.threads
                )
            return self._facts

    def devices(self) -> NodeDevices:
        """Return what computes here, as it was when somebody first asked."""
        from zse.mesh.devices import devices_of_node
        from zse.mesh.probe import count_gpus

        with self._lock:
            if self._devices is None:
                start = self._start
                self._devices = devices_of_node(
                    start.device, start.tensor_parallel, start.gpus, count_gpus
                )
            return self._devices

    def open_stage(self, ask: AskOpen) -> AnyStage:
        from zse.mesh.opening import opener

        start = self._start
        opens = opener(
            self._settings, model=start.model, threads=start.threads, devices=self.devices()
        )
        return opens(ask)
