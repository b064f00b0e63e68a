"""The page of model families: it tells of everything that a spec can have."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

import pytest

from zse.models.families import all_families
from zse.models.layer_spec import AttentionSpec, ExpertsSpec, LayerSpec
from zse.models.spec import HeadSpec

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "reference_models.py"
OF_EVERY_MODEL = {
    AttentionSpec: "num_heads num_kv_heads scale output k_norm",
    ExpertsSpec: "num_experts experts_per_token norm router router_norm normalizes_weights "
    "weight_scale groups_per_token scores_in_group shared_gate post_norm",
    LayerSpec: "index mlp_norm mlp_post_norm dense_post_norm",
    HeadSpec: "norm rows weight",
}
"""What all have, or what only comes with another."""


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from scripts.reference_models import models_page

    yield models_page()
    sys.modules.pop("scripts.reference_models", None)


def rows_of(section):
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines[1:]]


def test_every_family_stands_there_with_what_it_has_and_what_computes_it(page):
    first, second, _ = page.split("\n## ")
    told = {row[0]: row[3:] for row in rows_of(first)}
    features = {row[0]: set(row[1].split(", ")) for row in rows_of(second)}
    assert set(all_families()) == set(told) == set(features)
    assert told["llama"] == ["yes", "yes"]
    assert {"sinks", "windows", "experts by softmax_chosen"} <= features["gpt_oss"]
    assert features["llama"] == {"none"}


@pytest.mark.parametrize("kind", OF_EVERY_MODEL)
def test_what_a_spec_can_have_is_looked_at(kind):
    source = SCRIPT.read_text()
    names = {field.name for field in fields(kind)} - set(OF_EVERY_MODEL[kind].split())
    assert [name for name in sorted(names) if f".{name}" not in source] == []
