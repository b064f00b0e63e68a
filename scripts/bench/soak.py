"""Mixed requests with random cancels; at the end none lost, none wrong, no block leaked.

    python scripts/bench/soak.py MODEL.zse --requests 2000 --concurrency 64 --cancel 0.2

The requests differ in length, sampling, priority and number of choices; many share a prefix; the KV
cache is too small for all, so some are preempted. Afterwards every greedy request is answered
again, alone and without shared prefixes. Its first answer must be the same, or leave it at a token
whose two likeliest candidates are within ``--tolerance`` (natural log of the probability ratio).
Prints what was counted, and one JSON object as the last line; exit code 1 when anything is amiss.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from typing import TYPE_CHECKING, Any

from machine import machine_facts
from soak_requests import Outcome, Plan, first_difference, make_plans

from zse.engine.async_engine import AsyncEngine
from zse.engine.loading import load_model
from zse.engine.request import Request, SamplingParams
from zse.options import load_options
from zse.settings import load_settings

if TYPE_CHECKING:
    from zse.engine.loading import LoadedModel

BLOCK_SIZE = 16
TIGHT = 0.4
"""The KV cache holds this share of what the concurrent requests could take."""
IDLE_SECONDS = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a .zse file, or tiny")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--cancel", type=float, default=0.2, help="share of requests, 0 to 1")
    parser.add_argument("--longest", type=int, default=512, help="tokens, prompt and answer")
    parser.add_argument("--tolerance", type=float, default=0.05)
    parser.add_argument("--patience", type=float, default=300.0, help="seconds for one answer")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--kv-dtype", default="auto")
    parser.add_argument("--exact-activations", action="store_true")
    parser.add_argument("--kernels", default=load_settings().serve.load.device.kernels)
    parser.add_argument("--block-size", type=int, default=0, help="0: 16, on a GPU 32")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    report = asyncio.run(soak(options))
    for name, value in report.items():
        print(f"{name:<24} {value}")
    amiss = [name for name in ("lost", "wrong", "leaked_blocks", "crashed") if report[name]]
    facts = {"subject": "soak", "model": options.model, "tolerance": options.tolerance}
    print(json.dumps({**facts, **machine_facts(), **report}))
    sys.exit(1 if amiss else 0)


def open_model(options: argparse.Namespace) -> LoadedModel:
    """Open the model with a KV cache too small for all concurrent requests."""
    block_size = options.block_size or (32 if options.device.startswith("cuda") else BLOCK_SIZE)
    blocks_each = -(-options.longest // block_size) + 1
    return load_model(
        options.model,
        load_options(
            device=options.device,
            kv_dtype=options.kv_dtype,
            exact_activations=options.exact_activations,
            kernels=options.kernels,
            num_blocks=max(int(blocks_each * options.concurrency * TIGHT), 2 * blocks_each),
            block_size=block_size,
            max_sequences=options.concurrency,
            max_context=options.longest,
            max_batch_tokens=max(512, options.concurrency),
        ),
        load_settings(),
    )


async def soak(options: argparse.Namespace) -> dict[str, Any]:
    """Run everything and count."""
    loaded = open_model(options)
    engine = AsyncEngine(loaded.core, loaded.tokenizer)
    try:
        vocab_size = loaded.core.runner.vocab_size
        plans = make_plans(options, vocab_size)
        started = time.monotonic()
        outcomes = await run_all(engine, plans, options)
        seconds = time.monotonic() - started
        stats = engine.stats()
        wrong, gaps = await compare_alone(engine, plans, outcomes, options)
        leaked = await count_leaked(loaded, engine)
        crashed = repr(engine.failure) if engine.failure is not None else ""
    finally:
        engine.close()
        loaded.reader.close()
    return {
        "requests": len(plans),
        "cancelled": sum(outcome.is_cancelled for outcome in outcomes),
        "lost": sum(not outcome.is_whole for outcome in outcomes),
        "compared": sum(
            plan.is_greedy and not o.is_cancelled for plan, o in zip(plans, outcomes, strict=True)
        ),
        "wrong": len(wrong),
        "near_ties": len(gaps) - len(wrong),
        "largest_gap": round(max(gaps, default=0.0), 4),
        "leaked_blocks": leaked,
        "crashed": crashed,
        "preemptions": stats.preemptions,
        "prefix_hit_tokens": stats.prefix_hit_tokens,
        "generated_tokens": stats.generated_tokens,
        "tokens_per_second": round(stats.generated_tokens / seconds, 1),
        "problems": [outcome.problem for outcome in outcomes if outcome.problem][:8] + wrong[:8],
    }


async def run_all(
    engine: AsyncEngine, plans: list[Plan], options: argparse.Namespace
) -> list[Outcome]:
    """Run all requests, ``concurrency`` at a time."""
    room = asyncio.Semaphore(options.concurrency)

    async def one(plan: Plan) -> Outcome:
        async with room:
            return await run_one(engine, plan, options.patience)

    return await asyncio.gather(*(one(plan) for plan in plans))


async def run_one(engine: AsyncEngine, plan: Plan, patience_seconds: float) -> Outcome:
    """Run one request to its end, or to where it is cancelled."""
    outcome = Outcome(plan=plan)
    stream = engine.generate(
        Request(
            request_id=f"{plan.number}",
            prompt_token_ids=plan.prompt,
            params=plan.params,
            priority=plan.priority,
            cache_salt=plan.cache_salt,
        )
    )
    try:
        async with asyncio.timeout(patience_seconds):
            if plan.cancel_after == 0:  # while it waits, most likely
                task = asyncio.ensure_future(anext(stream))
                await asyncio.sleep(random.Random(plan.number).random() / 50)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                outcome.is_cancelled = True
                return outcome
            async for delta in stream:
                outcome.note(delta)
                if plan.cancel_after is not None and outcome.num_deltas >= plan.cancel_after:
                    outcome.is_cancelled = not outcome.is_ended
                    break
    except Exception as error:  # noqa: BLE001 - whatever it is, the request has no answer
        outcome.problem = f"request {plan.number}: {type(error).__name__}: {error}"
    finally:
        await stream.aclose()
    outcome.check()
    return outcome


async def compare_alone(
    engine: AsyncEngine, plans: list[Plan], outcomes: list[Outcome], options: argparse.Namespace
) -> tuple[list[str], list[float]]:
    """Answer each greedy request again, alone; return what differs, and the gap wherever it did."""
    wrong, gaps = [], []
    for plan, outcome in zip(plans, outcomes, strict=True):
        if not plan.is_greedy or not outcome.is_whole or outcome.is_cancelled:
            continue
        count = len(outcome.tokens[0])
        params = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True, logprobs=2)
        alone, tops = [], []
        request = Request(
            request_id=f"alone/{plan.number}",
            prompt_token_ids=plan.prompt,
            params=params,
            cache_salt=f"alone/{plan.number}",
        )
        async for delta in engine.generate(request):
            alone.extend(delta.token_ids)
            tops.extend(delta.logprobs)
        place = first_difference(outcome.tokens[0], alone)
        if place is None:
            continue
        gap = tops[place].top[0].logprob - tops[place].top[1].logprob
        gaps.append(gap)
        if gap >= options.tolerance:
            wrong.append(f"request {plan.number} differs at token {place}, with a gap of {gap:.4f}")
    return wrong, gaps


async def count_leaked(loaded: LoadedModel, engine: AsyncEngine) -> int:
    """Wait until nothing runs, then count blocks that are neither free nor can be."""
    core = loaded.core
    deadline = time.monotonic() + IDLE_SECONDS
    while core.has_work and engine.is_healthy and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    if core.has_work:
        return core.cache.num_blocks
    core.check_consistency()
    core.cache.flush()
    return core.cache.num_blocks - core.cache.num_available + core.cache.num_cached


if __name__ == "__main__":
    main()
