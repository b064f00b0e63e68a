"""What each step took, a line of JSON each."""

import io
import json

import pytest

from zse.engine.step_trace import StepTrace, open_step_trace
from zse.errors import UsageError


class Clock:
    """Goes on by a millisecond each time that it is looked at."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 0.001
        return self.now


class Kept(io.StringIO):
    """A file whose content outlives it."""

    def close(self):
        self.text = self.getvalue()
        super().close()


@pytest.fixture(params=["engine", "ahead"])
def harness(request):
    return request.getfixturevalue(request.param)


def traced(harness, *requests, **options):
    """Return the lines of what an engine computed of some requests."""
    core, file = harness.core(**options), Kept()
    core.trace_steps(StepTrace(file, "a model", Clock()))
    for request in requests:
        core.add_request(request)
    harness.run_to_end(core)
    core.close()
    return [json.loads(line) for line in file.text.splitlines()]


def test_every_step_has_a_line_that_says_what_was_computed(harness):
    first, *steps = traced(
        harness,
        harness.request("a", range(1, 7), max_tokens=4),
        harness.request("b", range(11, 15), max_tokens=2),
        max_batch_tokens=8,
    )
    assert first["trace"] == "a model"
    assert {step["kind"] for step in steps} <= {"prompts", "mixed", "decode"}
    assert sum(step["prompt_tokens"] for step in steps) == 6 + 4
    assert steps[0]["kind"] == "prompts"
    assert steps[0]["prompts"] == 2
    assert steps[0]["prompt_tokens"] == 8
    assert steps[-1]["kind"] == "decode"
    assert steps[-1]["rows"] == 1


def test_a_step_with_a_prompt_and_an_answer_is_mixed(harness):
    _, *steps = traced(
        harness,
        harness.request("a", range(1, 3), max_tokens=8),
        harness.request("b", range(11, 21), max_tokens=2),
        max_batch_tokens=4,
    )
    mixed = [step for step in steps if step["kind"] == "mixed"]
    assert mixed
    assert all(step["rows"] == 1 and step["prompts"] == 1 for step in mixed)


def test_who_waits_for_a_turn_is_counted(harness):
    requests = [harness.request(name, range(1, 5), max_tokens=2) for name in "abc"]
    _, *steps = traced(harness, *requests, max_sequences=1)
    assert steps[0]["waiting"] == 2
    assert steps[-1]["waiting"] == 0


def test_the_hosts_times_are_those_between_its_marks(harness):
    _, *steps = traced(harness, harness.request("a", range(1, 7), max_tokens=4))
    for step in steps:
        assert step["plan_us"] == pytest.approx(1000)
        assert step["submit_us"] == pytest.approx(1000)
        assert step["wait_us"] == pytest.approx(1000)
        assert step["step_us"] >= 1000
        assert "device_us" not in step  # this device does not tell


def test_a_device_that_tells_is_asked_for_its_times():
    class Chunk:
        kind, num_tokens = "decode", 1

    class Step:
        idle_seconds, busy_seconds = 0.25, 0.5

    file, chunks = Kept(), [Chunk()]
    trace = StepTrace(file)
    trace.planning()
    trace.planned()
    trace.submitted(chunks, 0)
    trace.waiting()
    trace.ended(chunks, Step())
    trace.close()
    line = json.loads(file.text.splitlines()[1])
    assert (line["idle_us"], line["device_us"]) == (250_000, 500_000)


def test_lines_are_added_to_a_file_that_only_its_owner_reads(tmp_path):
    path = tmp_path / "steps.jsonl"
    for name in ("one", "two"):
        open_step_trace(str(path), name).close()
    assert [json.loads(line)["trace"] for line in path.read_text().splitlines()] == ["one", "two"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_trace_that_cannot_be_written_is_an_error_with_its_place(tmp_path):
    path = tmp_path / "none" / "steps.jsonl"
    with pytest.raises(UsageError, match=r"none/steps\.jsonl: No such file"):
        open_step_trace(str(path), "a model")


def test_a_resting_engine_has_its_lines_in_the_file(engine, tmp_path):
    core, path = engine.core(), tmp_path / "steps.jsonl"
    core.trace_steps(open_step_trace(str(path), "a model"))
    core.add_request(engine.request("a", [1, 2, 3], max_tokens=2))
    engine.run_to_end(core)
    core.rest()
    assert len(path.read_text().splitlines()) > 2
    core.close()
