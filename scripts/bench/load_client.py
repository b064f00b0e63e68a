"""Sends a planned load to an OpenAI server, each request at its time; notes when pieces come."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from load_plan import Planned

MAX_LINE_BYTES = 1 << 20


@dataclass(kw_only=True)
class Outcome:
    """What became of one request."""

    times: list[float] = field(default_factory=list)
    """Of its pieces, in seconds from when it was to be sent."""
    problem: str = ""
    """Why it has no whole answer; empty when it has."""

    @property
    def first_seconds(self) -> float:
        return self.times[0]

    @property
    def gaps(self) -> list[float]:
        """Times between pieces."""
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]

    def meets(self, first_seconds: float, gap_seconds: float) -> bool:
        """Whether it is whole, began in time and went on in time, in the mean."""
        if self.problem or self.first_seconds > first_seconds:
            return False
        gaps = self.gaps
        return not gaps or sum(gaps) / len(gaps) <= gap_seconds


async def send_load(base_url: str, planned: Sequence[Planned], *, patience: float) -> list[Outcome]:
    """Send every request at its time, whatever became of those before it."""
    began = time.perf_counter()

    async def one(plan: Planned) -> Outcome:
        await asyncio.sleep(began + plan.at_seconds - time.perf_counter())
        outcome = Outcome()
        try:
            async with asyncio.timeout_at(
                asyncio.get_running_loop().time() + patience + plan.at_seconds
            ):
                await _stream(base_url, plan, outcome, began + plan.at_seconds)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            outcome.problem = f"{type(error).__name__}: {error}"
        return outcome

    return await asyncio.gather(*(one(plan) for plan in planned))


async def _stream(base_url: str, plan: Planned, outcome: Outcome, due: float) -> None:
    place = urlsplit(base_url)
    body = {
        "model": "default",
        "prompt": plan.prompt,
        "max_tokens": plan.num_output,
        "temperature": 0,
        "stream": True,
    }
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(
        place.hostname, place.port or 80, limit=MAX_LINE_BYTES
    )
    try:
        head = f"POST {place.path.rstrip('/')}/completions HTTP/1.1\r\nHost: {place.netloc}\r\n"
        head += "Content-Type: application/json\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        status = await reader.readline()
        is_whole = False
        async for line in reader:
            if line.startswith(b"data: [DONE]"):
                is_whole = True
            elif line.startswith(b"data: ") and b'"text":' in line:
                outcome.times.append(time.perf_counter() - due)
        if b" 200" not in status:
            outcome.problem = status.decode("latin-1").strip()
        elif not (is_whole and outcome.times):
            outcome.problem = "the stream was cut"
    finally:
        writer.close()
