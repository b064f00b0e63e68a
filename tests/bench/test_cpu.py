"""The CPU's table: rows are chosen by name, ratios go the right way, llama.cpp is built without AMX."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from zse.models.families import read_checkpoint
from zse.settings import subprocess_environment

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "scripts" / "bench"


@pytest.fixture(autouse=True)
def bench_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))


@pytest.fixture
def table() -> ModuleType:
    import cpu_table

    return cpu_table


def test_rows_are_chosen_by_how_they_begin() -> None:
    from cpu_rows import ROWS, chosen

    assert chosen("start_tiny,prefill_int8") == ["start_tiny", "prefill_int8", "prefill_int8_1b"]
    assert chosen("") == list(ROWS)
    with pytest.raises(ValueError, match="no row begins with decoding; there are start, "):
        chosen("decode,decoding")


def test_subjects_take_turns_and_the_best_round_counts(table: ModuleType) -> None:
    turns: list[str] = []
    rates = {"ours": iter([6.0, 9.0, 8.0]), "theirs": iter([5.0, 6.0, 4.0])}

    def subject(name: str) -> dict[str, float]:
        turns.append(name)
        return {"tokens_per_second": next(rates[name]), "turn": len(turns)}

    row = table.Row(
        title="speed",
        figure="tokens_per_second",
        subjects={name: lambda name=name: subject(name) for name in rates},
        goals=(table.Goal(of="ours", over=("theirs",), must=1.5, stretch=1.6),),
    )
    result = table.summary(row, table.measure(row, 3))
    assert turns == ["ours", "theirs"] * 3
    assert result["subjects"]["ours"] == {
        "tokens_per_second_best": 9.0,
        "tokens_per_second_median": 8.0,
        "tokens_per_second_runs": [6.0, 9.0, 8.0],
        "turn": 3,
    }
    (goal,) = result["goals"]
    assert (goal["reached_best"], goal["reached_median"]) == (1.5, 1.5)
    assert goal["must_is_met"] is True
    assert goal["stretch_is_met"] is False


def test_where_less_is_better_the_least_counts_and_a_goal_may_be_a_figure(
    table: ModuleType,
) -> None:
    row = table.Row(
        title="time",
        figure="first_token_ms",
        more_is_better=False,
        subjects={"ours": dict, "theirs": dict, "another": dict},
        goals=(
            table.Goal(of="ours", over=("theirs", "another"), must=0.5),
            table.Goal(of="ours", stretch=350),
        ),
    )
    found = {"ours": [300, 420], "theirs": [900, 600], "another": [650, 700]}
    runs = {name: [{"first_token_ms": ms} for ms in values] for name, values in found.items()}
    ratio, figure = table.summary(row, runs)["goals"]
    assert (ratio["reached_best"], ratio["must_is_met"]) == (0.5, True)
    assert ratio["over"] == "theirs or another"
    assert (figure["reached_best"], figure["stretch_is_met"]) == (300, True)


def test_llama_cpp_is_built_for_what_the_cpu_has_and_never_for_amx() -> None:
    from peers.llama_cpp import options_of

    options = options_of({"avx2", "fma", "avx512f", "amx_tile", "amx_int8", "sse4_2"})
    assert {"-DGGML_AVX2=ON", "-DGGML_AVX512=ON", "-DGGML_AVX512_VNNI=OFF"} <= set(options)
    assert not [option for option in options if "AMX" in option]
    assert options_of(()) == []


def test_memory_of_children_counts_what_a_child_holds() -> None:
    from server_memory import descendants, memory_of_children

    size_bytes = 48 << 20
    script = f"held = b'x' * {size_bytes}; print('held', flush=True); input()"
    before = memory_of_children()
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        assert child.pid in descendants(os.getpid())
        after = memory_of_children()
        child.communicate(b"\n")
    for kind in ("resident_bytes", "proportional_bytes", "anonymous_bytes"):
        assert after[kind] - before[kind] >= size_bytes


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_row_is_measured_and_reported(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(BENCH / "cpu.sh"), "--rows", "start_tiny", "--rounds", "1", "--work", str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        env=subprocess_environment(PYTHON=sys.executable, OMP_NUM_THREADS="1"),
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    figures = report["rows"]["start_tiny"]["subjects"]["zse, default settings"]
    assert figures["first_token_ms_best"] >= figures["ready_ms"] > 0
    assert report["llama.cpp"] == {}


class Counted:
    """Counts the numbers of a GGUF's matrices."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, _name: str, rows: int, columns: int, _quant: object, stack: int = 0) -> None:
        self.count += rows * columns * (stack or 1)

    def floats(self, _name: str, *shape: int, deviation: float = 0.0) -> None:
        self.count += prod(shape) if len(shape) > 1 else 0


def test_a_familys_layers_have_as_many_weights_on_both_sides() -> None:
    from cpu_models import FAMILIES, SHAPES
    from model_shapes import CONFIGS
    from peers import gguf_families

    for size in FAMILIES:
        settings, theirs = CONFIGS[SHAPES[size]], Counted()
        for index in range(settings["num_hidden_layers"]):
            gguf_families.add_layer(theirs, index, settings, gguf_families.Quant.Q4_0)
        ours = [
            weight.shape
            for group in read_checkpoint(settings).groups()
            if group.name.startswith("layers.")
            for weight in group.weights
            if len(weight.shape) > 1 and weight.shape[0] > 1  # one row is a vector there
        ]
        assert theirs.count == sum(map(prod, ours)), size
