"""The command as CI runs it; no figure is held against a clock but the budgets that decide."""

import json

import pytest

from zse.cli import run


@pytest.mark.slow
def test_a_generous_budget_passes_and_the_json_has_the_phases(capfd):
    arguments = ["tiny", "--device", "cpu", "--repeat", "2", "--budget-ms", "250000", "--json"]
    assert run(["cold-start", *arguments]) == 0
    captured = capfd.readouterr()
    report = json.loads(captured.out)
    assert report["starts"] == 2
    assert report["is_within_budget"] is True
    assert list(report["milestones"]) == ["live", "ready", "first-token"]
    assert {"interpreter", "imports", "weights", "engine"} <= report["phases"].keys()
    assert set(report["phases"]["weights"]) == {"duration", "end"}
    assert report["limits_ms"]["interpreter"] > 0
    assert "start 2 of 2" in captured.err


@pytest.mark.slow
def test_a_prompt_of_a_length_is_asked_for_while_the_server_starts(capfd):
    asked = ["--prompt-tokens", "300", "--at-once"]
    assert run(["cold-start", "tiny", "--device", "cpu", "--repeat", "1", "--json", *asked]) == 0
    milestones = json.loads(capfd.readouterr().out)["milestones"]
    assert 0 < milestones["live"]["median_ms"] <= milestones["first-token"]["median_ms"]


@pytest.mark.slow
def test_a_budget_of_a_millisecond_fails_with_its_own_exit_code_after_the_table(capfd):
    arguments = ["tiny", "--device", "cpu", "--repeat", "1", "--budget-ms", "1"]
    assert run(["cold-start", *arguments]) == 13
    captured = capfd.readouterr()
    assert "first-token" in captured.out
    assert "the budget is 1 ms" in captured.err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["tiny", "--runner", "runc"], 2, "--runner is for images"),
        (["oci:x", "--runner", "sail"], 2, "there is no runner 'sail'"),
        (["oci:/nowhere"], 3, "/nowhere does not exist"),
        (["oci:/etc"], 9, "not an OCI image layout"),
        (["absent.zse"], 3, "absent.zse"),
        (["tiny", "--budget-ms", "0"], 2, "budget-ms"),
        (["tiny", "--repeat", "0"], 2, "repeat"),
        (["tiny", "--prompt-tokens", "-1"], 2, "prompt-tokens"),
    ],
)
def test_what_cannot_be_measured_is_said_before_anything_starts(arguments, code, words, capfd):
    assert run(["cold-start", *arguments]) == code
    assert words in capfd.readouterr().err
