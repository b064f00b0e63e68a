"""The table of quality: which commands fill it, how it goes on, and what it shows."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "bench"
sys.path.insert(0, str(BENCH))

import real  # noqa: E402
from real_table import COLUMNS, table  # noqa: E402


def figures(monkeypatch: pytest.MonkeyPatch, work: Path, *words: str) -> list[real.Figure]:
    monkeypatch.setattr(sys, "argv", ["real.py", "checkpoint", "--work", str(work), *words])
    return list(real.figures(real.arguments()))


def printing(text: str, row: str = "int4", part: str = "kv") -> real.Figure:
    return real.Figure(row=row, part=part, command=[sys.executable, "-c", f"print({text!r})"])


def test_quick_figures_of_all_schemes_come_before_slow_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = figures(monkeypatch, tmp_path, "--schemes", "bf16", "int4 --group-size 64")
    assert [(one.row, one.part) for one in found[:3]] == [
        ("bf16", "convert"), ("int4 --group-size 64", "convert"), ("bf16", "distance")
    ]  # fmt: skip
    assert found[-1].part == "humaneval_kv"
    assert found[1].command[-4:] == ["--group-size", "64", "--force", "--json"]


def test_all_are_compared_with_the_answers_of_the_first_but_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = figures(monkeypatch, tmp_path, "--schemes", "bf16", "int8")
    compared = {
        (one.row, one.part): one.command[one.command.index("--against") + 1]
        for one in found
        if "humaneval" in one.part and "--against" in one.command
    }
    first = str(tmp_path / "bf16.jsonl")
    keys = [("bf16", "humaneval_kv"), ("int8", "humaneval"), ("int8", "humaneval_kv")]
    assert compared == dict.fromkeys(keys, first)


def test_what_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    real.Kept(tmp_path, 60).fill(printing('{"a": 1}'))
    again = real.Kept(tmp_path, 60)
    again.fill(printing('{"a": 2}'))
    assert again.rows["int4"]["kv"]["a"] == 1
    assert json.loads((tmp_path / "figures.json").read_text()) == again.rows


def test_a_command_that_fails_leaves_its_cell_empty(tmp_path: Path) -> None:
    kept = real.Kept(tmp_path, 60)
    kept.fill(real.Figure(row="int4", part="kv", command=[sys.executable, "-c", "exit(3)"]))
    assert kept.rows == {"int4": {}}


def test_no_command_runs_longer_than_the_run_may(tmp_path: Path) -> None:
    kept = real.Kept(tmp_path, 0.2)
    sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(real.OutOfTimeError):
        kept.fill(real.Figure(row="int4", part="kv", command=sleeping))


def noting(tmp_path: Path, name: str, *, until: str = "", needs: str = "") -> real.Figure:
    """Return a figure that writes down when it began and ended; it ends when a line is there."""
    program = (
        f"import time, pathlib as p; f = p.Path({str(tmp_path / 'log')!r})\n"
        f"print('+{name}', file=f.open('a'))\n"
        f"while {until!r} not in f.read_text(): time.sleep(0.01)\n"
        f"print('-{name}', file=f.open('a')); print({{}})"
    )
    return real.Figure(
        row=name, part="kv", command=[sys.executable, "-c", program],
        needs=((needs, "kv"),) if needs else (),
    )  # fmt: skip


def test_with_jobs_a_figure_waits_for_what_it_needs_and_for_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["real.py", "checkpoint", "--work", str(tmp_path), "--jobs", "2"]
    )
    wanted = [
        noting(tmp_path, "slow", until="-free"),
        noting(tmp_path, "after", needs="slow"),
        noting(tmp_path, "free"),
    ]
    real.fill_all(real.Kept(tmp_path, 120), wanted, real.arguments())
    log = (tmp_path / "log").read_text().split()
    assert log.index("-free") < log.index("-slow") < log.index("+after")
    assert set(json.loads((tmp_path / "figures.json").read_text())) == {"slow", "after", "free"}


def test_a_run_that_is_out_of_time_says_so_and_begins_nothing_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["real.py", "checkpoint", "--work", str(tmp_path), "--jobs", "2"]
    )
    wanted = [noting(tmp_path, name, until="never") for name in ("one", "two", "three")]
    for seconds in (0.5, 5.0, 50.0):  # a busy machine may take longer to begin with two
        log = tmp_path / "log"
        log.write_text("")
        with pytest.raises(real.OutOfTimeError):
            real.fill_all(real.Kept(tmp_path, seconds), wanted, real.arguments())
        if len(log.read_text().split()) > 1:
            break
    assert sorted(log.read_text().split()) == ["+one", "+two"]


def test_the_table_has_intervals_and_empty_cells() -> None:
    rows = {
        "bf16": {"convert": {"size_bytes": 2_000_000, "seconds": 1.5, "copy_seconds": 1.0}},
        "int4": {
            "kv": {"divergence_nats": 0.0123, "divergence_nats_margin": None},
            "humaneval": {
                "pass_at_1": 0.5,
                "pass_at_1_low": 0.4,
                "pass_at_1_high": 0.6,
                "difference": -0.02,
                "difference_low": -0.05,
                "difference_high": 0.01,
            },
        },
    }
    lines = [line.strip("| ").split(" | ") for line in table(rows).splitlines()]
    assert lines[0] == list(COLUMNS)
    assert lines[2][:3] == ["bf16", "2", "1.5 s (1.0)"]
    assert "0.0123" in table(rows)
    assert "50.0% (40.0% to 60.0%)" in table(rows)
    assert "-2.0 (-5.0 to +1.0)" in table(rows)
