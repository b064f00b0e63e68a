"""The options of a router of replicas: who they are, how they are watched, what may wait.

As in ``zse.options``, each once. Where the router itself listens is said by the options of a
server.
"""

from __future__ import annotations

from typing import ClassVar

from zse.option import Checked, described
from zse.records import record

_DAY_SECONDS = 86_400.0


@record
class RouteOptions(Checked):
    """How requests are dealt out to replicas."""

    PREFIX: ClassVar = "ZSE_ROUTE_"

    replicas: tuple[str, ...] = described(
        (), "A replica that requests go to, http://HOST:PORT", key="replica"
    )
    replicas_file: str = described(
        "", "A file of replicas, one on a line; read again when it changes", unset="none"
    )
    replicas_from: str = described(
        "",
        "A name whose addresses are replicas, NAME:PORT, such as a headless service of Kubernetes",
        unset="none",
    )
    replica_key: str = described(
        "",
        "What replicas that ask for keys are shown for their load; one with the scope metrics does",
        is_secret=True,
    )
    route_key: str = described(
        "",
        "Key to the router's own /metrics and /route/replicas",
        unset="this machine alone may read them",
        env="ZSE_ROUTE_KEY",
        is_secret=True,
    )
    look_seconds: float = described(
        1.0,
        "How often each replica is asked how it is",
        unit="seconds",
        least=0.05,
        most=_DAY_SECONDS,
    )
    dead_after: int = described(
        3, "Looks without an answer, one after the other, after which a replica is down", least=1
    )
    connect_seconds: float = described(
        2.0, "How long a replica may take to accept a connection", unit="seconds", least=0.01
    )
    max_retries: int = described(
        2, "Other replicas that are tried where a request has not begun", most=16
    )
    repeat: bool = described(
        False,
        "Ask another replica again when one is lost before the first byte of its answer; else only "
        "what cannot have begun is asked again",
    )
    max_in_flight: int = described(1024, "Requests at once; others get 429", least=1)
    max_per_replica: int = described(
        0, "Requests at one replica at once; others wait", unset="as many as come"
    )
    max_held_mib: int = described(
        512, "Most that bodies of requests take together; others get 429", unit="MiB", least=1
    )
    max_waiting: int = described(
        256, "Requests that wait while no replica is there; others get 503"
    )
    route_wait: float = described(
        60.0,
        "How long they wait",
        unit="seconds",
        least=0.1,
        most=_DAY_SECONDS,
        env="ZSE_ROUTE_WAIT",
    )
    wake_url: str = described(
        "",
        "Address that gets a POST each second while requests wait and no replica is there",
        unset="nobody is told",
    )
    eject_after: int = described(
        5,
        "Failures of a replica, one after the other, after which it rests",
        unset="never",
    )
    eject_seconds: float = described(
        10.0, "How long it rests the first time; each time more", unit="seconds", least=0.1
    )
    prefix_blocks: int = described(
        262_144,
        "Beginnings of prompts that are remembered with who has them, in blocks of 128 bytes",
        unset="none",
        most=1 << 24,
    )
