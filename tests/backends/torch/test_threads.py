"""How many threads compute: as many as have work, on cores that may be used."""

from __future__ import annotations

import threading

import pytest
import torch

from zse.backends.cpu.threads import choose_threads
from zse.device.probe import DeviceInfo
from zse.engine.llm import LLM
from zse.engine.request import SamplingParams

MIB = 1 << 20


@pytest.mark.parametrize(
    ("cores", "quota", "weight_bytes", "threads"),
    [
        (8, 0.0, 4 * MIB, 1),
        (8, 0.0, 20 * MIB, 2),
        (8, 0.0, 300 * MIB, 8),
        (8, 2.5, 300 * MIB, 3),
        (1, 0.0, 300 * MIB, 1),
    ],
)
def test_each_thread_has_work_and_a_core(
    cores: int, quota: float, weight_bytes: int, threads: int
) -> None:
    machine = DeviceInfo(
        cpu_model="a processor",
        physical_cores=cores,
        cpu_quota=quota,
        total_memory_bytes=1,
        available_memory_bytes=1,
        cuda_driver=False,
    )
    assert choose_threads(machine, weight_bytes) == threads


def test_each_model_of_a_process_computes_with_its_own_threads(monkeypatch) -> None:
    seen: dict[str, list[int]] = {"one": [], "two": []}
    models = {}
    for name, threads in (("one", 1), ("two", 2)):
        models[name] = LLM("tiny", device="torch", max_context=64, num_blocks=8, threads=threads)
        backend = models[name]._model.core.runner._backend
        begin = backend.begin

        def noted(*given, begin=begin, counts=seen[name]):
            counts.append(torch.get_num_threads())
            return begin(*given)

        monkeypatch.setattr(backend, "begin", noted)
    params = SamplingParams(max_tokens=2)

    def ask(name: str) -> None:
        thread = threading.Thread(target=lambda: models[name].generate("Hello", params))
        thread.start()
        thread.join()

    for name in ("one", "two", "one"):
        ask(name)
    for name in ("one", "two", "one"):  # and in one thread
        models[name].generate("Hello", params)
    for model in models.values():
        model.close()
    assert set(seen["one"]) == {1}
    assert set(seen["two"]) == {2}
