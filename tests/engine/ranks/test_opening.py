"""Which devices ranks have, and what is refused before anything is started."""

from __future__ import annotations

import contextlib
import gc
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from zse.backends.types import DeviceUsed
from zse.engine.llm import LLM
from zse.engine.ranks import opening, processes
from zse.engine.ranks.messages import End, decoded
from zse.engine.ranks.shared import Sender
from zse.engine.request import SamplingParams
from zse.environment import one_gpu
from zse.errors import DeviceError, UsageError
from zse.options import load_options
from zse.server_options import FleetOptions, MeshOptions, ServeOptions


class Alone:
    """A GPU that reaches no other one."""

    info = SimpleNamespace(ordinal=1)

    def link_to(self, ordinal: int) -> None:
        raise DeviceError(f"GPU 1 cannot reach the memory of GPU {ordinal}")


def test_gpus_that_do_not_reach_each_other_are_refused() -> None:
    opening.check_links(Alone(), ["cuda:1"])
    with pytest.raises(DeviceError, match="GPU 1 cannot reach the memory of GPU 0"):
        opening.check_links(Alone(), ["cuda:0", "cuda:1"])


def test_a_process_that_is_shown_one_gpu_does_not_ask_after_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(one_gpu, "ordinal", 1)
    opening.check_links(Alone(), ["cuda:0", "cuda:1"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"draft_model": "tiny"}, "a draft model"),
        ({"speculate": "model"}, "a draft model"),
        ({"lora_gib": 1.0}, "adapters"),
        ({"stream": "on"}, "layers that stream"),
        ({"resident_layers": 1}, "layers that stream"),
        ({"ram_gib": 1.0}, "layers that stream"),
        ({"prefix_store": "folder"}, "prefixes that are kept in files"),
        ({"prefix_host_gib": 1.0}, "prefixes in host memory"),
        ({"device": "torch"}, "torch"),
    ],
)
def test_what_ranks_do_not_do_is_refused_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        LLM("tiny", **{"device": "cpu", **options}, tensor_parallel=2)


@pytest.mark.parametrize(
    ("flag", "changes"),
    [
        ("--models", {"fleet": FleetOptions(models=("folder",))}),
        ("--sleep-after", {"fleet": FleetOptions(sleep_after=5.0)}),
        ("--mesh", {"mesh": MeshOptions(mesh="auto")}),
        ("--lora", {"loras": ("a=folder",)}),
        ("--lora-places", {"lora_places": "folder"}),
    ],
)
def test_a_server_of_ranks_has_one_model_as_it_is(flag: str, changes: dict[str, Any]) -> None:
    ServeOptions(**changes)
    with pytest.raises(UsageError, match=f"{flag} is given beside --tensor-parallel 2"):
        ServeOptions(**changes, load=load_options(tensor_parallel=2))


A100 = DeviceUsed(name="cuda:0", hardware="A100", instructions="sm_80")
H100 = DeviceUsed(name="cuda:1", hardware="H100", instructions="sm_90")
H200 = DeviceUsed(name="cuda:2", hardware="H200", instructions="sm_90")


def told_ready(devices: list[DeviceUsed], **parallel: int) -> None:
    """Let rank 0 hear from all ranks that they are ready."""
    gifts = [SimpleNamespace(payload=opening.kind_of(one)) for one in devices]
    link = SimpleNamespace(exchange=lambda _own: gifts)
    opened = opening.OpenedRanks(
        group=cast("Any", SimpleNamespace(close=None, link=link)),
        part=cast("Any", None),
        options=load_options(**parallel),
        arrival=None,
    )
    opened.wait_until_ready(
        cast("Any", SimpleNamespace(device=devices[0], owns=lambda _close: None))
    )


def test_devices_that_round_in_different_ways_share_no_layers() -> None:
    """Each chooses the token for itself: what differs in a bit may end in two of them."""
    words = r"cannot share layers: rank 0: A100 \(sm_80\), rank 1: H100 \(sm_90\)"
    with pytest.raises(DeviceError, match=words) as caught:
        told_ready([A100, H100], tensor_parallel=2)
    assert "--pipeline-parallel" in caught.value.hint
    with pytest.raises(DeviceError, match="cannot share layers"):
        told_ready([H100, H200, H200, A100], tensor_parallel=2, pipeline_parallel=2)


def test_stages_may_be_of_different_kinds_and_unequal_devices_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told_ready([H100, H100], tensor_parallel=2)
    assert not caplog.text
    told_ready([H100, H200], tensor_parallel=2)
    assert "at the slowest's pace: rank 0: H100 (sm_90), rank 1: H200 (sm_90)" in caplog.text
    caplog.clear()
    told_ready([A100, A100, H100, H100], tensor_parallel=2, pipeline_parallel=2)
    assert "rank 1: A100 (sm_80), rank 2: H100 (sm_90)" in caplog.text


def test_more_ranks_than_heads_are_refused_before_any_is_started() -> None:
    with pytest.raises(UsageError, match="4 heads, which cannot be divided among 3 ranks"):
        LLM("tiny", device="cpu", tensor_parallel=3)


def test_a_rank_that_ends_while_it_loads_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_MAIN", "import sys; sys.exit(7)")
    with pytest.raises(DeviceError, match=r"rank 1 \(cpu\) ended with exit code 7"):
        LLM("tiny", device="cpu", tensor_parallel=2)


def test_what_a_rank_says_of_its_failure_is_what_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = processes._MAIN.replace("main(sys", "worker.ZSEReader = None; main(sys")
    broken = broken.replace("import main", "import main; import zse.engine.ranks.worker as worker")
    monkeypatch.setattr(processes, "_MAIN", broken)
    with pytest.raises(DeviceError, match=r"rank 1 \(cpu\): TypeError: 'NoneType'"):
        LLM("tiny", device="cpu", tensor_parallel=2)


def test_ranks_answer_as_one_process_without_a_server() -> None:
    params = SamplingParams(max_tokens=16, temperature=0.0)
    answers = []
    for ranks in (1, 2, 4):
        with LLM("tiny", device="cpu", tensor_parallel=ranks, threads=ranks) as llm:
            answers.append(llm.generate(["The capital of France is", "One, two,"], params))
    texts = [[one.text for one in answer] for answer in answers]
    assert texts[0] == texts[1] == texts[2]


def descriptors() -> list[str]:
    """Return what this process has open of what ranks share and are woken by."""
    found = []
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(one.readlink()))
    return sorted(name for name in found if "eventfd" in name or "zse-ranks" in name)


def test_a_group_that_is_closed_leaves_no_descriptor_and_has_not_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ranks end as soon as they are told to, however late this process goes on."""
    send, told = Sender.send, list[DeviceError]()
    gc.collect()
    before = descriptors()

    def send_and_look(sender: Sender, data: bytes) -> None:
        send(sender, data)
        if isinstance(decoded(memoryview(data)), End):
            time.sleep(0.5)

    monkeypatch.setattr(Sender, "send", send_and_look)
    llm = LLM("tiny", device="cpu", tensor_parallel=2, threads=2)
    crew = llm._model.core.runner._crew
    crew.when_failed(told.append)
    llm.close()
    assert (crew.failure, told) == (None, [])
    crew.close()
    del llm, crew
    gc.collect()
    assert descriptors() == before


def test_a_lost_rank_ends_every_call_with_its_name() -> None:
    def ask_on(llm: LLM) -> None:
        for _ in range(1000):
            llm.generate("x", SamplingParams(max_tokens=8, ignore_eos=True))

    with LLM("tiny", device="cpu", tensor_parallel=2, threads=2) as llm:
        llm._model.core.runner._crew._ranks.processes[0].kill()
        with pytest.raises(DeviceError, match=r"rank 1 \(cpu\) was ended by SIGKILL"):
            ask_on(llm)


def test_a_rank_that_gets_nowhere_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 sleeps in the midst of a step: it runs, and is not stopped."""
    asleep = "import time; from zse.models.runner import ModelRunner as R; "
    asleep += "R.submit = lambda *_: time.sleep(99); "
    monkeypatch.setattr(
        processes, "_MAIN", processes._MAIN.replace("main(sys", asleep + "main(sys")
    )
    options = {"tensor_parallel": 2, "threads": 2, "rank_timeout_seconds": 1.0}
    with (
        LLM("tiny", device="cpu", **options) as llm,
        pytest.raises(DeviceError, match=r"no rank has moved for 1 s in the midst of a step"),
    ):
        llm.generate("x", SamplingParams(max_tokens=8))
