"""The table of real.py, in Markdown: a row for each scheme, an empty cell where nothing is yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Row = Mapping[str, Mapping[str, Any]]


def table(rows: Mapping[str, Row]) -> str:
    """Return what was measured, with 95% intervals."""
    lines = [list(COLUMNS), ["---"] * len(COLUMNS)]
    lines += [
        [name, *(cell(row) for cell in list(COLUMNS.values())[1:])] for name, row in rows.items()
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(part: str, words: Callable[[Mapping[str, Any]], str]) -> Callable[[Row], str]:
    return lambda row: words(row[part]) if part in row else ""


def _nats(found: Mapping[str, Any]) -> str:
    value, margin = found["divergence_nats"], found["divergence_nats_margin"]
    return f"{value:.4f}" + ("" if margin is None else f" ± {margin:.4f}")


def _same(found: Mapping[str, Any]) -> str:
    margin = found["same_top_margin"]
    return f"{found['same_top']:.1%}" + ("" if margin is None else f" ± {margin * 100:.1f}")


def _passed(found: Mapping[str, Any]) -> str:
    return (
        f"{found['pass_at_1']:.1%} ({found['pass_at_1_low']:.1%} to {found['pass_at_1_high']:.1%})"
    )


def _apart(found: Mapping[str, Any]) -> str:
    if "difference" not in found:
        return ""
    value, low, high = (found[f"difference{end}"] * 100 for end in ("", "_low", "_high"))
    return f"{value:+.1f} ({low:+.1f} to {high:+.1f})"


def _converted(found: Mapping[str, Any]) -> str:
    return f"{found['seconds']:.1f} s ({found['copy_seconds']:.1f})"


COLUMNS: dict[str, Callable[[Row], str]] = {
    "scheme": lambda _: "",
    "file, MB": _cell("convert", lambda found: f"{found['size_bytes'] / 1e6:.0f}"),
    "converted in (cp)": _cell("convert", _converted),
    "KL, nats": _cell("distance", _nats),
    "same first choice": _cell("distance", _same),
    "KL of 8-bit activations": _cell("activations", _nats),
    "KL of INT8 KV": _cell("kv", _nats),
    "HumanEval": _cell("humaneval", _passed),
    "points from the first row": _cell("humaneval", _apart),
    "with INT8 KV": _cell("humaneval_kv", _apart),
}
