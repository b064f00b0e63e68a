"""Files whose weights have different schemes: made under a target, told before, computed alike."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
from typer.testing import CliRunner

from zse.backends.cpu.backend import CPUBackend
from zse.backends.torch import TorchBackend
from zse.backends.types import SequenceChunk, StepBatch
from zse.cli.convert import app
from zse.errors import UsageError
from zse.format.reader import ZSEReader
from zse.models.decoder import logits_of
from zse.models.runner import spec_of
from zse.options import LoadOptions
from zse.quantize.convert import convert_model
from zse.quantize.mixed import mix, planner

if TYPE_CHECKING:
    from pathlib import Path

    from zse.quantize.mixed.plan import MixedPlan


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat and looked at nobody. " * 40)
    return path


def convert(folder: Path, out: Path, **options: object) -> MixedPlan:
    plans: list[MixedPlan] = []
    convert_model(folder, out, on_plan=plans.append, **options)
    (plan,) = plans
    with ZSEReader(out) as reader:
        reader.verify()
        for name, option in plan.chosen.items():
            entry = reader.entry(name)
            assert (entry.scheme, entry.group_size) == (
                option.planned.scheme,
                option.planned.group_size,
            )
    return plan


@pytest.mark.parametrize("is_calibrated", [False, True])
def test_weights_have_the_bits_that_were_asked_for_on_average(
    llama_folder: Path, tmp_path: Path, text: Path, is_calibrated: bool
) -> None:
    read = {"calibrate": text} if is_calibrated else {}
    plan = convert(llama_folder, tmp_path / "m.zse", target_bits=6.0, **read)
    assert 5.5 < plan.bits <= 6.0
    assert len({option.planned.scheme for option in plan.chosen.values()}) > 1
    with ZSEReader(tmp_path / "m.zse") as reader:
        assert reader.header.provenance["target"] == {"bits": 6.0}
    rich = convert(llama_folder, tmp_path / "rich.zse", target_bits=8.5, **read)
    assert rich.error < plan.error


def test_a_file_is_no_larger_than_was_asked_for(llama_folder: Path, tmp_path: Path) -> None:
    small = convert_model(llama_folder, tmp_path / "small.zse", "int4").size_bytes
    target = (small + 200_000) / 2**30
    convert(llama_folder, tmp_path / "m.zse", target_gib=target)
    assert small < (tmp_path / "m.zse").stat().st_size <= target * 2**30


@pytest.mark.parametrize("target", [{"target_bits": 2.0}, {"target_gib": 1e-5}])
def test_a_target_that_cannot_be_met_is_an_error_before_a_weight_or_a_text_is_read(
    llama_folder: Path,
    tmp_path: Path,
    text: Path,
    target: dict[str, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(planner, "options_of")
    monkeypatch.delattr(mix, "Calibrator")
    folder = tmp_path / "out"
    folder.mkdir()
    with pytest.raises(UsageError, match="at least"):
        convert_model(llama_folder, folder / "m.zse", calibrate=text, **target)
    assert not list(folder.iterdir())


def test_a_target_and_a_scheme_exclude_each_other(llama_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--quant"):
        convert_model(llama_folder, tmp_path / "m.zse", "int4", target_bits=4.5)


def test_a_mixed_file_answers_alike_on_torch_and_on_the_cpu(
    llama_folder: Path, tmp_path: Path
) -> None:
    plan = convert(llama_folder, tmp_path / "m.zse", target_bits=6.0)
    assert len({option.planned.scheme for option in plan.chosen.values()}) > 1
    options, rows = LoadOptions(), []
    with ZSEReader(tmp_path / "m.zse") as reader:
        spec = spec_of(reader)
        for kind in (TorchBackend, CPUBackend):
            backend = kind(reader, spec, options)
            chunk = SequenceChunk(0, [5, 9, 7, 11], 0, [0], "prefill", wants_logits=True)
            step = backend.begin(StepBatch(chunks=[chunk], sampling=[()]), backend.new_cache(1))
            found = backend.join_rows([logits_of(backend, spec, step)])
            rows.append(torch.tensor([list(row) for row in found]))
            backend.close()
    assert torch.allclose(rows[0], rows[1], atol=0.02 * float(rows[0].abs().max()))


def test_a_plan_is_shown_and_nothing_is_written(llama_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.zse"
    words = [str(llama_folder), "-o", str(out), "--target-bits", "6", "--dry-run"]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert "gate_up" in shown.stdout
    assert shown.stdout.splitlines()[-1].startswith("all")
    plan = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert plan["bits"] <= 6
    assert {one["scheme"] for one in plan["weights"]} > {"int8"}
    assert not out.exists()
