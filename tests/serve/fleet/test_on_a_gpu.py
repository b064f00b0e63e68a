"""Models change places, and sleep, on a GPU: the stub driver stands for it, whose kernels compute
nothing. It counts what it hands out, so memory that is not given back is seen.
"""

import os
import shutil
import sys

import pytest
import stub_libcuda
from sample_packs import write_stub_pack

from zse.quantize.locate import locate_model
from zse.settings import Settings

TOTAL_BYTES = 4 << 30


@pytest.fixture(scope="module")
def served(server_class, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpu")
    (folder / "models").mkdir()
    model = locate_model("tiny", Settings(cache_dir=folder), quant="int4")
    for name in "abc":
        shutil.copy(model, folder / "models" / f"{name}.zse")
    pack = write_stub_pack(folder / "sm_90.zkp")
    flags = ["--models", str(folder / "models"), "--max-resident", "1", "--port", "0"]
    child = server_class(
        ["-m", "zse.serve", *flags, "--device", "cuda", "--kernels", str(pack)],
        LD_LIBRARY_PATH=str(stub_libcuda.build().parent),
        ZSE_STUB_TOTAL=str(TOTAL_BYTES),
    )
    try:
        child.wait_for_line("ready")
        yield child
    finally:
        child.close()


def ask(served, name):
    body = {"model": name, "prompt": [5, 6, 7], "max_tokens": 1}
    answer = served.http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == name


def left_bytes(served):
    answer = served.http.get("/api/models")
    assert answer.status_code == 200, answer.text + "".join(served.raw[-40:])
    return answer.json()["memory"]["left_bytes"]


@pytest.mark.slow
def test_memory_comes_back_from_every_swap(served):
    ask(served, "a")
    before = left_bytes(served)
    for name in "bcab" * 4 + "a":
        ask(served, name)
    assert left_bytes(served) == before


@pytest.mark.slow
def test_a_copy_of_a_model_takes_its_place_without_moving_a_byte(served):
    ask(served, "a")
    told = len(served.lines)
    ask(served, "b")
    lines = served.lines[told:]
    [moved] = [line for line in lines if line["message"] == "weights are on the GPU"]
    assert moved["gigabytes"] == 0
    assert served.http.get("/api/models").json()["models"][0]["name"] == "b"


@pytest.mark.slow
def test_the_log_tells_where_the_time_of_a_swap_went(served):
    ask(served, "a")
    told = len(served.lines)
    ask(served, "b")
    [brought] = [line for line in served.lines[told:] if line["message"] == "model brought"]
    phases = brought["swap_ms"]
    order = ["answers", "leave", "model-file", "engine", "weights-to-gpu", "brought"]
    ends = [phases[name]["end_ms"] for name in order]
    assert ends == sorted(ends)
    assert ends[-1] == pytest.approx(1000 * brought["seconds"], abs=5)
    assert "interpreter" not in phases


@pytest.mark.slow
@pytest.mark.parametrize("level", [1, 2])
def test_a_sleeping_server_holds_no_memory_of_models(served, level):
    ask(served, "b")
    [loaded] = served.http.get("/api/models").json()["models"]
    awake = left_bytes(served)
    assert served.http.post(f"/sleep?level={level}").status_code == 200
    asleep = left_bytes(served)
    assert asleep >= awake + sum(loaded["memory_bytes"].values())
    assert asleep > 0.95 * TOTAL_BYTES
    assert served.http.post("/wake_up").status_code == 200
    ask(served, "b")
    assert left_bytes(served) == awake


@pytest.mark.gpu
def test_models_on_a_real_gpu_answer_as_they_do_alone_after_every_swap(server_class, tmp_path):
    """The same with real kernels: three schemes of one model, which answer each in its own way."""
    names = []
    for scheme in ("int4", "int8", "bf16"):
        model = locate_model("tiny", Settings(cache_dir=tmp_path), quant=scheme)
        names.append(f"{scheme}={model}")
    flags = ["--max-resident", "1", "--port", "0", "--device", "cuda", "--kv-gib", "0.5"]
    paths = os.pathsep.join(filter(None, sys.path))
    child = server_class(
        ["-c", SERVER, *(f"--models={name}" for name in names), *flags], ZSE_TEST_PATHS=paths
    )
    try:
        child.wait_for_line("ready")
        said = {scheme: [] for scheme in ("int4", "int8", "bf16")}
        for _ in range(10):
            for scheme, answers in said.items():
                answers.append(completion(child, scheme))
        assert {len(set(answers)) for answers in said.values()} == {1}
        awake = left_bytes(child)
        assert child.http.post("/sleep").status_code == 200
        assert left_bytes(child) > awake + (1 << 28)
        assert child.http.post("/wake_up").status_code == 200
        assert completion(child, "bf16") == said["bf16"][0]
    finally:
        child.close()


SERVER = """
import os, sys
sys.path[:0] = os.environ["ZSE_TEST_PATHS"].split(os.pathsep)
from zse.serve.__main__ import main
sys.exit(main())
"""


def completion(served, name):
    body = {"model": name, "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    answer = served.http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text + "".join(served.raw[-40:])
    return answer.json()["choices"][0]["text"]
