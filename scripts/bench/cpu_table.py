"""A row of the CPU's table: who is measured in turns, and which ratios are wanted of them."""

from __future__ import annotations

import contextlib
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Figures = Mapping[str, float]
    """Of one measurement; the unit is in the name."""


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A ratio of the best of one subject to the best of others; to nothing: its figure itself."""

    of: str
    over: tuple[str, ...] = ()
    must: float | None = None
    stretch: float | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one line of the table measures.

    Args:
        title: In words.
        figure: Key of what counts among the figures of a measurement; its unit is in the name.
        more_is_better: Whether the greatest figure of all rounds is the best, or the least.
        subjects: Name -> one short measurement, which returns its figures.
        goals: What is wanted.
        surroundings: What holds while the row is measured: neighbours, a quota.
    """

    title: str
    figure: str
    more_is_better: bool = True
    subjects: Mapping[str, Callable[[], Figures]]
    goals: tuple[Goal, ...] = ()
    surroundings: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext


def measure(row: Row, rounds: int) -> dict[str, list[Figures]]:
    """Return the figures of every subject, round by round: other work hurts all of them alike."""
    found: dict[str, list[Figures]] = {name: [] for name in row.subjects}
    with row.surroundings():
        for _ in range(rounds):
            for name, measure_once in row.subjects.items():
                found[name].append(measure_once())
    return found


def summary(row: Row, found: Mapping[str, list[Figures]]) -> dict[str, object]:
    """Return what the JSON line says of a row."""
    best = max if row.more_is_better else min
    runs = {name: [figures[row.figure] for figures in all_] for name, all_ in found.items()}
    subjects = {}
    for name, values in runs.items():
        chosen = found[name][values.index(best(values))]
        subjects[name] = {
            f"{row.figure}_best": best(values),
            f"{row.figure}_median": statistics.median(values),
            f"{row.figure}_runs": values,
            **{key: value for key, value in chosen.items() if key != row.figure},
        }
    goals = [judged(goal, runs, row) for goal in row.goals]
    return {"title": row.title, "subjects": subjects, "goals": goals}


def judged(goal: Goal, runs: Mapping[str, list[float]], row: Row) -> dict[str, object]:
    """Return a goal with what was reached: by the best rounds, and in the middle of all rounds."""
    best = max if row.more_is_better else min
    if goal.over:
        rivals = [best(turns) for turns in zip(*(runs[name] for name in goal.over), strict=True)]
        ratio = best(runs[goal.of]) / best(rivals)
        ratios = [own / other for own, other in zip(runs[goal.of], rivals, strict=True)]
        median = statistics.median(ratios)
    else:
        ratio, median = best(runs[goal.of]), statistics.median(runs[goal.of])
    wanted = {"must": goal.must, "stretch": goal.stretch}
    met = {
        f"{name}_is_met": ratio >= limit if row.more_is_better else ratio <= limit
        for name, limit in wanted.items()
        if limit is not None
    }
    return {
        "of": goal.of,
        "over": " or ".join(goal.over),
        "reached_best": round(ratio, 4),
        "reached_median": round(median, 4),
        **wanted,
        **met,
    }


def print_row(name: str, row: Row, result: dict) -> None:
    """Print the row's figures, best and median, and what became of its goals."""
    print(f"\n{name}: {row.title}", flush=True)
    print(f"  {row.figure:<30} {'best':>14} {'median':>14}")
    for subject, figures in result["subjects"].items():
        best, median = (figures[f"{row.figure}_{which}"] for which in ("best", "median"))
        rest = {key: value for key, value in figures.items() if not key.startswith(row.figure)}
        more = " ".join(f"{key}={value:g}" for key, value in rest.items())
        print(f"  {subject:<30} {best:>14.2f} {median:>14.2f}  {more}".rstrip())
    for goal in result["goals"]:
        over = f" over {goal['over']}" if goal["over"] else ""
        verdicts = [
            f"{name} {goal[name]:g}: {'met' if goal[f'{name}_is_met'] else 'MISSED'}"
            for name in ("must", "stretch")
            if goal[name] is not None
        ]
        reached = f"{goal['reached_best']:.2f} (median {goal['reached_median']:.2f})"
        print(f"  {goal['of']}{over}: {reached}, {', '.join(verdicts)}", flush=True)
