"""Adapters come and go in a server on a GPU: the stub driver stands for it, whose kernels compute
nothing. It counts what it hands out, so memory that is not given back is seen.
"""

import pytest
import stub_libcuda
from random_adapters import write_adapter
from sample_packs import write_stub_pack

from zse.format import ZSEReader
from zse.models.runner import spec_of
from zse.quantize.locate import locate_model
from zse.settings import Settings

pytestmark = pytest.mark.slow
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("gpu")


@pytest.fixture(scope="module")
def served(server_class, folder):
    model = locate_model("tiny", Settings(cache_dir=folder), quant="int4")
    with ZSEReader(model) as reader:
        spec = spec_of(reader)
    for name, rank in (("one", 8), ("two", 3), ("large", 32)):
        write_adapter(folder / "adapters" / name, spec, rank=rank)
    pack = write_stub_pack(folder / "sm_90.zkp")
    flags = ["--lora", f"one={folder}/adapters/one", "--lora-places", str(folder / "adapters")]
    flags += ["--max-lora-rank", "32", "--port", "0", "--device", "cuda", "--kernels", str(pack)]
    child = server_class(
        ["-m", "zse.serve", str(model), *flags],
        LD_LIBRARY_PATH=str(stub_libcuda.build().parent),
        ZSE_STUB_TOTAL=str(4 << 30),
    )
    try:
        child.wait_for_line("ready")
        yield child
    finally:
        child.close()


def ask(served, name, status=200):
    body = {"model": name, "prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True}
    answer = served.http.post("/v1/completions", json=body)
    assert answer.status_code == status, answer.text


def load(served, folder, name, of):
    asked = {"lora_name": name, "lora_path": f"{folder}/adapters/{of}"}
    return served.http.post(LOAD, json=asked)


def memory(served):
    return served.http.get("/api/models").json()["memory"]


def test_an_adapter_of_the_start_answers_and_others_come_and_go(served, folder):
    ask(served, "one")
    assert load(served, folder, "two", "two").status_code == 200
    for _ in range(2):  # the first answer of a kind may be launched as it is, the next is captured
        for name in ("two", "default"):
            ask(served, name)
    before = memory(served)
    for _ in range(10):
        assert load(served, folder, "more", "large").status_code == 200
        ask(served, "more")
        ask(served, "default")
        assert served.http.post(UNLOAD, json={"lora_name": "more"}).status_code == 200
        ask(served, "more", 404)
    assert memory(served) == before
    assert served.http.post(UNLOAD, json={"lora_name": "two"}).status_code == 200


def test_more_than_there_is_room_for_are_refused_and_fit_again_when_others_go(served, folder):
    names = [f"large-{number}" for number in range(9)]
    statuses = [load(served, folder, name, "large").status_code for name in names]
    assert statuses == [200] * 8 + [400]
    refused = load(served, folder, names[-1], "large").json()["error"]["message"]
    assert "set aside for adapters are free" in refused
    assert served.http.post(UNLOAD, json={"lora_name": names[0]}).status_code == 200
    assert load(served, folder, names[-1], "large").status_code == 200
