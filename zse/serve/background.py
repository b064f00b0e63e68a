"""What a server does beside its answers: it watches its engines, and imports what comes later."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from zse import start_patterns

if TYPE_CHECKING:
    from zse.serve.state import AppState
    from zse.settings import Settings

_LOOK_SECONDS = 0.25
WARM_SECONDS = 1.0
"""After the model is ready; a request that waited for it is answered by then."""


async def warm(state: AppState) -> None:
    """Import what comes later once the first answer is likely to be out."""
    from zse.serve.http.server import warm as warm_server

    while not state.is_ready:
        await asyncio.sleep(_LOOK_SECONDS)
    await asyncio.sleep(WARM_SECONDS)
    # By a start and a first answer, which more is no part of.
    imported, patterns = dict(sys.modules), start_patterns.asked_for()
    await asyncio.to_thread(state.metrics.warm)
    await asyncio.to_thread(warm_server)
    from zse.serve.packing import refresh_pack

    await asyncio.to_thread(refresh_pack, imported, patterns)
    if state.options.server_tools.mcp:
        from zse.serve.toolbox import Toolbox

        state.one_of(Toolbox)  # starts the programs, which nothing of a start waits for


async def crashed(state: AppState, settings: Settings) -> BaseException:
    """Wait until an engine has crashed and does not come back; return what it failed with."""
    failure, loop = None, asyncio.get_running_loop()
    while failure is None:
        # As a second begins, when connections are looked at, too: who streams waits for neither
        # of them, and a loop that nothing wakes costs an engine of few streams nothing.
        await asyncio.sleep(1 - loop.time() % 1)
        failure = state.models.failure
        if failure is not None and state.options.restart_ranks:
            from zse.serve.restarting import RankRestarts

            failure = await state.one_of(RankRestarts).restart(settings, failure)
    return failure
