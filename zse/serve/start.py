"""The first steps of a server, in the order in which they wait for the hardware.

The socket is bound before anything else is imported, so that a load balancer's first probe waits
in its backlog instead of being refused. Then the GPU is opened and the model sent on its way;
Python imports the rest meanwhile.
"""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import TYPE_CHECKING

from zse.device.early import open_early
from zse.device.open import keep_code
from zse.options import RankOptions
from zse.serve import garbage_collection
from zse.serve.ledger import Ledger
from zse.serve.sockets import bind_socket
from zse.server_options import MeshOptions
from zse.unread_variables import refuse_lost_guards

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.serve.handover import Predecessor
    from zse.serve.head_start import HeadStart
    from zse.serve.state import AppState, LoadedModel
    from zse.settings import Settings


def start(settings: Settings, load: Callable[[AppState], LoadedModel] | None = None) -> int:
    """Serve until told to stop; return the exit code.

    A thread calls ``load`` for the model, whose weights may still be on their way; by default it is
    the one that the options name.

    Raises:
        ZSEError: The address cannot be bound, or taken over, or a variable that was to guard the
            server has a name that nothing reads.
    """
    garbage_collection.hold_off()
    refuse_lost_guards()
    for number in (signal.SIGTERM, signal.SIGINT):
        # Until the loop runs there is no work to drain. As process 1 of a container, a signal
        # without a handler would be ignored.
        signal.signal(number, _leave)
    if settings.serve.fleet.models or settings.serve.fleet.pins:
        from zse.serve.fleet.roster import with_start_model

        settings = with_start_model(settings)
    if settings.serve.mesh.mesh:
        from zse.serve.meshed import with_mesh

        settings = with_mesh(settings)
    if settings.serve.server_tools.tools:
        from zse.tools.builtin import builtin_tools

        named = settings.serve.server_tools
        builtin_tools(named.tools, hosts=named.hosts)  # says at the start what is no tool
    if settings.serve.fleet.models:
        keep_code(settings.serve.load.device.name)
    options = settings.serve
    predecessor = _predecessor(options.handover)
    bound = predecessor.listener if predecessor else bind_socket(options.host, options.port)
    with bound as listener:
        ledger = Ledger(options.start_time_ns, options.container_start_time_ns)
        load = load or _begin_to_load(settings, ledger)
        from zse.serve.boot import serve

        return serve(listener, settings, load, ledger, predecessor)


def _predecessor(path: str) -> Predecessor | None:
    """Return the server that the port is taken over from; None where there is none."""
    if not path:
        return None
    from zse.serve.handover import take_over

    return take_over(path)


def _leave(number: int, frame: object) -> None:  # noqa: ARG001
    # Nothing is flushed: a log line may be half written.
    os._exit(0)


def _begin_to_load(settings: Settings, ledger: Ledger) -> Callable[[AppState], LoadedModel]:
    load = settings.serve.load
    first = load.ranks.gpus.partition(",")[0].strip()
    named = f"cuda:{first}" if first.isdecimal() else load.device.name
    open_early(named, is_only=_uses_one_gpu(settings))
    from zse.serve.head_start import HeadStart

    return partial(_load, settings, HeadStart(settings, ledger.phase, ledger.report))


def _uses_one_gpu(settings: Settings) -> bool:
    """Whether nothing in this process can come to use a second GPU.

    Ranks that divide each layer have a process each. Stages are cut by the memory of all GPUs.
    """
    ranks = settings.serve.load.ranks
    if settings.serve.mesh != MeshOptions() or ranks.pipeline_parallel > 1:
        return False
    if ranks.num_devices == 1:
        return ranks == RankOptions()
    from zse.engine.ranks.devices import devices_of, have_one_each

    return have_one_each(devices_of(settings.serve.load))


def _load(settings: Settings, head_start: HeadStart, state: AppState) -> LoadedModel:
    from zse.serve.load import begin_served_model

    return begin_served_model(settings, state.progress, head_start)
