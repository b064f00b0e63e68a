"""The lines that ``zse top`` shows of a server's statistics: pure text, for any terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.printable import printable
from zse.units import memory_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_BAR_CELLS = 24
_MINUTE_SECONDS, _HOUR_SECONDS, _DAY_SECONDS = 60, 3600, 86400


def lines_of(
    url: str, stats: Mapping[str, Any], before: Mapping[str, Any] | None, seconds: float
) -> list[str]:
    """Return the view of ``GET /api/stats``.

    Args:
        before: What the server said ``seconds`` earlier, for speeds; None shows none.
    """
    return [
        f"{printable(url)}   {printable(str(stats['status']))}   "
        f"up {_duration(stats['uptime_seconds'])}",
        f"answers  {_bar(stats['in_flight'], stats['max_in_flight'])}  "
        f"{stats['in_flight']} of {stats['max_in_flight']} at most",
        *_machine(stats),
        *(line for model in stats["models"] for line in _model(model, before, seconds)),
    ]


def _machine(stats: Mapping[str, Any]) -> Iterator[str]:
    memory, cpu = stats["memory"], stats["cpu"]
    used = memory["total_bytes"] - memory["available_bytes"]
    yield (
        f"memory   {_bar(used, memory['total_bytes'])}  {memory_text(used)} of "
        f"{memory_text(memory['total_bytes'])}, the server "
        f"{memory_text(memory['process_bytes'])}"
    )
    yield f"cpu      load {cpu['load_average']:.2f} on {cpu['cores']} cores"
    for gpu in stats["gpu"]["gpus"]:
        yield (
            f"gpu {gpu['index']}    {_bar(gpu['used_bytes'], gpu['total_bytes'])}  "
            f"{memory_text(gpu['used_bytes'])} of {memory_text(gpu['total_bytes'])}, "
            f"{printable(gpu['name'])}"
        )


def _model(
    model: Mapping[str, Any], before: Mapping[str, Any] | None, seconds: float
) -> Iterator[str]:
    yield ""
    yield (
        f"{printable(model['name'])}{' (default)' if model['is_default'] else ''}   "
        f"{model['quantization']} on {model['device']}, context {model['max_context']}"
    )
    yield (
        f"  running  {_bar(model['running'], model['max_running'])}  {model['running']} of "
        f"{model['max_running']}, {model['waiting']} waiting, {model['preemptions']} preempted"
    )
    yield (
        f"  kv       {_bar(model['kv_usage'], 1.0)}  {model['kv_usage']:.0%} of "
        f"{model['kv_blocks']} blocks"
    )
    yield f"  tokens   {_speeds(model, before, seconds)}"
    reused, computed = model["prefix_hit_tokens"], model["computed_tokens"]
    if reused:
        yield f"  prefix   {reused / (reused + computed):.0%} of prompts' tokens were there already"
    if model["draft_tokens"]:
        accepted = model["accepted_draft_tokens"] / model["draft_tokens"]
        yield f"  drafts   {accepted:.0%} of {model['draft_tokens']} accepted"


def _speeds(model: Mapping[str, Any], before: Mapping[str, Any] | None, seconds: float) -> str:
    total = f"{model['prompt_tokens']} in, {model['generated_tokens']} out in all"
    last = _same_model(model, before)
    if last is None or seconds <= 0:
        return total
    read = max(0, model["prompt_tokens"] - last["prompt_tokens"]) / seconds
    written = max(0, model["generated_tokens"] - last["generated_tokens"]) / seconds
    return f"{read:.0f} in and {written:.0f} out a second; {total}"


def _same_model(
    model: Mapping[str, Any], before: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    known = before["models"] if before is not None else ()
    return next((each for each in known if each["name"] == model["name"]), None)


def _bar(part: float, whole: float) -> str:
    share = min(1.0, max(0.0, part / whole)) if whole else 0.0
    filled = round(share * _BAR_CELLS)
    return f"[{'#' * filled}{'.' * (_BAR_CELLS - filled)}]"


def _duration(seconds: float) -> str:
    whole = int(seconds)
    if whole < _MINUTE_SECONDS:
        return f"{whole} s"
    if whole < _HOUR_SECONDS:
        return f"{whole // _MINUTE_SECONDS} min {whole % _MINUTE_SECONDS} s"
    if whole < _DAY_SECONDS:
        return f"{whole // _HOUR_SECONDS} h {whole % _HOUR_SECONDS // _MINUTE_SECONDS} min"
    return f"{whole // _DAY_SECONDS} d {whole % _DAY_SECONDS // _HOUR_SECONDS} h"
