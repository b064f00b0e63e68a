"""What a node opens for a front: on its device, of its kind, or not at all."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from range_server import serving

from zse.engine.opening import open_file
from zse.errors import DeviceError, MeshError, UsageError
from zse.mesh import opening, probe
from zse.mesh.devices import NodeDevices, devices_of_node
from zse.mesh.messages import AskOpen
from zse.mesh.opening import digest_of, kind_of, opener, shared_options
from zse.options import load_options
from zse.settings import load_settings

LOAD: dict[str, Any] = {"device": "cpu", "num_blocks": 8, "max_sequences": 2, "max_context": 64}


def gpu(number: int) -> NodeDevices:
    return NodeDevices(names=(f"cuda:{number}",))


def ask(kind: str = "") -> AskOpen:
    options = load_options(**LOAD)
    with open_file("tiny", options, load_settings()) as reader:
        digest = digest_of(reader)
    return AskOpen("tiny", digest, 0, 1, shared_options(options, 8), kind)


def test_a_node_stands_by_only_for_nodes_whose_blocks_lie_as_its_own() -> None:
    open_stage = opener(load_settings(), threads=1)
    first = open_stage(ask())
    standby = open_stage(ask(kind_of(first)))
    assert standby.layout == first.layout
    for stage in (first, standby):
        stage.close()
    with pytest.raises(MeshError, match="the one that it is to stand by for as gpu1"):
        open_stage(ask("gpu1-bf16-32-00"))


def test_a_node_takes_kernels_and_memory_as_its_own_settings_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A front on another machine knows nothing of them."""
    monkeypatch.setenv("ZSE_KERNELS", "/packs/of/this/node.zkp")
    monkeypatch.setenv("ZSE_VRAM_GIB", "7.5")
    seen = []

    def opened(_reader: Any, _layers: Any, options: Any, *_: Any) -> Any:
        seen.append(options.device)
        raise DeviceError("seen")

    monkeypatch.setattr(opening, "open_on", opened)
    with pytest.raises(DeviceError, match="seen"):
        opener(load_settings(), devices=gpu(1))(ask())
    assert (seen[0].name, seen[0].kernels) == ("cuda:1", "/packs/of/this/node.zkp")
    assert seen[0].vram_gib == 7.5


def test_a_node_reads_from_a_store_what_it_does_not_have(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ZSE_CACHE_DIR", str(tmp_path / "cache"))
    settings = load_settings()
    with open_file("tiny", load_options(**LOAD), settings) as reader:
        data = Path(reader.path).read_bytes()
    with serving("/models/of-all.zse", data) as server:
        opens = opener(settings, model=f"{server.url}/models/of-all.zse", threads=1)
        opens(ask()).close()
        num_requests = len(server.requests)
        assert num_requests
        opens(ask()).close()
        assert len(server.requests) <= num_requests + 1  # it has it: at most its version is asked
    assert any((tmp_path / "cache").rglob("*.zse"))


def test_a_node_with_a_gpu_has_the_whole_file_on_its_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server on a GPU would be fed from the store: a stage is read in place."""
    monkeypatch.setattr(opening, "open_on", lambda *parts: parts[2])
    seen = []

    def opened(name: Any, options: Any, settings: Any) -> Any:
        seen.append(options.device.name)
        return open_file(name, options, settings)

    monkeypatch.setattr(opening, "open_file", opened)
    monkeypatch.setattr(opening, "kind_of", lambda part: part.device.name)
    assert opener(load_settings(), devices=gpu(1))(ask()).device.name == "cuda:1"
    assert seen == ["cpu"]


def gpus(*problems: DeviceError | None) -> Any:
    found = [
        SimpleNamespace(
            info=SimpleNamespace(
                ordinal=number,
                name="H200",
                free_bytes=100 << 30,
                bandwidth_bytes_per_second=4.8e12,
            ),
            problem=problem,
        )
        for number, problem in enumerate(problems)
    ]
    return lambda: SimpleNamespace(gpus=tuple(found), problem=None)


def test_a_node_with_a_gpu_says_what_that_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "survey_cuda", gpus(None, None))
    facts = probe.facts_of_machine("n", devices=gpu(1))
    assert facts.device == "H200 (cuda:1)"
    assert facts.memory_bytes == int((100 << 30) * 0.8)
    assert 1e12 < facts.bytes_per_second < 4.8e12
    assert probe.facts_of_machine("n", 5 << 30, gpu(0)).memory_bytes == 5 << 30


def test_a_gpu_that_is_not_there_or_cannot_be_used_makes_no_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "survey_cuda", gpus(DeviceError("it is lost")))
    with pytest.raises(DeviceError, match="GPU 0 cannot be a node of a mesh: it is lost"):
        probe.facts_of_machine("n", devices=gpu(0))
    with pytest.raises(DeviceError, match="GPU 3 cannot be a node of a mesh: there is none"):
        probe.facts_of_machine("n", devices=gpu(3))


def test_a_node_of_several_gpus_says_what_each_has_and_how_many_may_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "survey_cuda", gpus(None, None))
    two = probe.facts_of_machine("n", devices=NodeDevices(names=("cuda:0", "cuda:1"), shares=(2,)))
    one = probe.facts_of_machine("n", devices=gpu(0))
    assert (two.shares, two.device) == ((2,), "H200 (cuda:0, cuda:1)")
    assert (two.memory_bytes, two.bytes_per_second) == (one.memory_bytes, one.bytes_per_second)
    assert two.sums_seconds > 0
    turns = probe.facts_of_machine("n", devices=NodeDevices(names=("cuda:0",) * 2, shares=(2,)))
    assert 2 * turns.memory_bytes == one.memory_bytes
    assert 2 * turns.bytes_per_second == one.bytes_per_second


def test_processes_of_one_processor_have_together_what_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "read_bytes_per_second", lambda: 10e9)
    one = probe.facts_of_machine("n", 8 << 30)
    two = probe.facts_of_machine("n", 8 << 30, NodeDevices(names=("cpu",) * 2, shares=(2,)))
    assert 2 * two.memory_bytes == one.memory_bytes
    assert 2 * two.bytes_per_second == one.bytes_per_second


@pytest.mark.parametrize(
    ("device", "tensor_parallel", "named", "names", "shares"),
    [
        ("cpu", 0, "", ("cpu",), (1,)),
        ("cpu", 2, "", ("cpu", "cpu"), (2,)),
        ("cuda", 0, "", ("cuda:0", "cuda:1", "cuda:2", "cuda:3"), (1, 2, 4)),
        ("cuda:1", 0, "", ("cuda:1",), (1,)),
        ("cuda:1", 2, "", ("cuda:1", "cuda:2"), (2,)),
        ("cuda", 0, "3,1", ("cuda:3", "cuda:1"), (1, 2)),
        ("cuda", 1, "3,1", ("cuda:3",), (1,)),
        ("cuda", 2, "0,0", ("cuda:0", "cuda:0"), (2,)),
    ],
)
def test_a_node_computes_on_the_devices_that_it_was_given(
    device: str,
    tensor_parallel: int,
    named: str,
    names: tuple[str, ...],
    shares: tuple[int, ...],
) -> None:
    found = devices_of_node(device, tensor_parallel, named, lambda: 4)
    assert (found.names, found.shares) == (names, shares)


def test_devices_that_do_not_go_together_make_no_node() -> None:
    with pytest.raises(UsageError, match="GPUs 0,1 are named, and cpu is what computes"):
        devices_of_node("cpu", 0, "0,1", lambda: 4)
    with pytest.raises(UsageError, match="3 devices are to share each layer, and there are 2"):
        devices_of_node("cuda", 3, "0,1", lambda: 4)
    with pytest.raises(DeviceError, match="'tpu' is not known"):
        devices_of_node("tpu", 0, "", lambda: 4)


def test_a_machine_that_stands_still_half_of_the_time_is_half_as_fast() -> None:
    def measured(*seconds: float) -> float:
        times = iter([0.0, *accumulate(seconds)])
        return probe.read_bytes_per_second(lambda: next(times))

    steady, limited = measured(*[0.01] * 25), measured(*[0.01, 0.03] * 7)
    assert steady == pytest.approx(2 * limited, rel=0.05)


def test_threads_that_do_not_compute_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SimpleNamespace(
        physical_cores=16, compute_threads=16, available_memory_bytes=1 << 30, cpu_model="a CPU"
    )
    monkeypatch.setattr(probe, "probe", lambda: machine)
    monkeypatch.setattr(probe, "read_bytes_per_second", lambda: 10e9)
    assert probe.facts_of_machine("n").bytes_per_second == 80e9
    assert probe.facts_of_machine("n", threads=4).bytes_per_second == 20e9
    assert probe.facts_of_machine("n", threads=1).bytes_per_second == 10e9
    machine.compute_threads = 2
    assert probe.facts_of_machine("n").bytes_per_second == 10e9
