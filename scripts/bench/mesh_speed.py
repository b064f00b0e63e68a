"""How fast a mesh is with nothing broken: streams, a long prompt, and how soon nodes are found."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

from mesh_asking import Asking, Run, requests, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable


def measure_streams(asking: Asking, tokens: int) -> dict:
    rates = {}
    for streams in (1, 16):
        run = Run()
        for prompt, params in requests(streams, tokens):
            asking.ask(run, prompt, **params)
        begun = time.monotonic()
        asking.finish(run)
        rates[streams] = sum(map(len, run.texts.values())) / (time.monotonic() - begun)
    return {
        "one_stream_tokens_per_s": round(rates[1], 1),
        "sixteen_streams_tokens_per_s": round(rates[16], 1),
        "times": round(rates[16] / rates[1], 2),
    }


def measure_prefill(front, nodes: Any, asking: Asking, tokens: int, rounds: int) -> dict:
    """Time a long prompt's first token with each form of rows on the wires, in turn.

    The least of all rounds is what counts on a host that does other work; the CPU time of the nodes
    says what a form costs there, whatever else runs.
    """
    from zse.mesh.codecs import Codec

    taken: dict[Codec, list[float]] = {codec: [] for codec in (Codec.RAW, Codec.BF16, Codec.INT4)}
    used: dict[Codec, list[float]] = {codec: [] for codec in taken}
    for number in range(rounds):
        for codec in taken:
            # Else the order would have rows of the last prompt sent again, in this one's time.
            for _ in range(2):  # a step behind the one that is settled: logs are cut with steps
                wait_until(lambda: min(front._settled()) >= front._flight.answered, 60.0)
                rest = Run()
                asking.ask(rest, [5], max_tokens=1)
                asking.finish(rest)
            with front._lock:
                front._codecs = [Codec.RAW, *[codec] * (len(front.duties) - 1)]
                front._give_order()
            run = Run()
            prompt = [3 + (number + place) % 1500 for place in range(tokens)]
            asking.ask(run, prompt, max_tokens=1)
            begun, before = time.monotonic(), nodes.cpu_seconds()
            asking.finish(run)
            taken[codec].append(time.monotonic() - begun)
            used[codec].append(nodes.cpu_seconds() - before)
    found: dict = {f"{codec.word}_ms": round(min(taken[codec]) * 1e3, 1) for codec in taken}
    found |= {f"{codec.word}_cpu_ms": round(min(used[codec]) * 1e3) for codec in used}
    found["median_ms"] = {
        codec.word: round(statistics.median(taken[codec]) * 1e3, 1) for codec in taken
    }
    return found


def measure_discovery(
    nodes: Any, secret: bytes, *, count: int, rounds: int, is_listening: Callable[[int], bool]
) -> dict:
    """Time until a front that comes, and one that is there, have found nodes by multicast.

    Args:
        nodes: Processes that can be started, of which none runs.
        secret: Of the mesh.
        count: How many nodes there are to be.
        rounds: How often.
        is_listening: Whether a node has said that it listens.
    """
    from zse.mesh.finding import Discovery

    there, comes, back = [], [], []
    for _ in range(rounds):
        with Discovery(secret) as waiting:
            for number in range(1, count + 1):
                nodes.start(number)
            wait_until(lambda: all(map(is_listening, range(1, count + 1))), 60.0)
            there.append(wait_until(lambda: len(waiting.addresses()) == count))
            begun = time.monotonic()
            with Discovery(secret) as fresh:
                wait_until(lambda: len(fresh.addresses()) == count)
                comes.append(time.monotonic() - begun)
            nodes.stop(1)
            wait_until(lambda: len(waiting.addresses()) == count - 1)
            nodes.start(1)
            wait_until(lambda: is_listening(1), 60.0)
            back.append(wait_until(lambda: len(waiting.addresses()) == count))
        for number in range(1, count + 1):
            nodes.stop(number)
    found = {"found_ms": there, "front_comes_ms": comes, "one_comes_back_ms": back}
    return {
        "nodes": count,
        "rounds": rounds,
        **{key: {"worst": round(max(each) * 1e3, 1),
                 "median": round(statistics.median(each) * 1e3, 1)}
           for key, each in found.items()},
    }  # fmt: skip
