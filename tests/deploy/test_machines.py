"""Machine tables: every row is usable, and the choice is the cheapest that holds the model."""

import math
import re
from importlib.resources import files

import pytest
from broken_rules import breaks
from range_server import serving

from zse.deploy.errors import DeployRule
from zse.deploy.machines import Catalog, Machine, load_catalog
from zse.deploy.sizing import measure, need_of
from zse.engine.requirements import read_facts
from zse.errors import DeviceError, NotFoundError, UsageError, ZSEError
from zse.format import ZSEReader
from zse.kernels.targets import TARGETS
from zse.models.memory import MemoryEstimate
from zse.quantize.locate import locate_model
from zse.settings import Settings, load_settings

PLATFORMS = sorted(
    entry.name.removesuffix(".toml")
    for entry in (files("zse.deploy") / "data").iterdir()
    if entry.name.endswith(".toml")
)


def need(gib: float) -> MemoryEstimate:
    return MemoryEstimate(
        stored_bytes=0, weights_bytes=int(gib * 2**30), kv_bytes=0, overhead_bytes=0
    )


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_table_names_its_source_and_only_gpus_that_kernels_are_made_for(platform):
    catalog = load_catalog(platform)
    assert catalog.source
    assert catalog.prices_of
    names = [machine.name for machine in catalog.machines]
    assert len(names) == len(set(names))
    for machine in catalog.machines:
        assert set(machine.architectures) <= TARGETS.keys()
        assert 0 < machine.memory_mib < 2**20
        assert machine.usd_per_hour is None or 0 < machine.usd_per_hour < 100


@pytest.mark.parametrize(
    ("gib", "name"),
    [(1, "L4"), (21, "L4"), (22.2, "L40S"), (44, "L40S"), (46, "A100-80GB"), (100, "H200")],
)
def test_the_cheapest_gpu_that_holds_the_model_is_chosen(gib, name):
    assert load_catalog("modal").smallest(need(gib)).name == name


def test_a_model_that_fits_nowhere_says_what_the_largest_has():
    with breaks(DeployRule.NO_FITTING_GPU, error=DeviceError, match=r"B200, has 179\.\d GiB"):
        load_catalog("modal").smallest(need(400))


def test_an_unknown_size_or_name_lists_what_there_is():
    with pytest.raises(UsageError) as caught:
        load_catalog("modal").smallest(None)
    assert "L40S" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        load_catalog("modal").named("T4")
    assert "L4" in caught.value.hint
    assert load_catalog("modal").named("h100").name == "H100"


def test_of_equal_prices_the_smaller_machine_is_taken():
    machines = tuple(
        Machine(name=name, hardware="", memory_mib=mib, architectures=("sm_80",))
        for name, mib in (("big", 80000), ("small", 40000))
    )
    catalog = Catalog(platform="p", source="s", prices_of="d", machines=machines)
    assert catalog.smallest(need(10)).name == "small"


def test_a_file_is_sized_from_its_header(tmp_path):
    path = locate_model("tiny", Settings(cache_dir=tmp_path), quant="int8")
    found = measure(str(path), load_settings(), on_gpu=True)
    facts = read_facts(path, load_settings())
    with ZSEReader(path) as reader:
        assert found.weights_bytes == reader.header.bytes_by_scheme().total()
    assert found.quantization == "int8"
    on_cpu = need_of(facts, on_gpu=False)
    assert on_cpu.kv_bytes == found.kv_bytes  # 16 bits on both
    assert (
        measure(str(path), load_settings(), on_gpu=True, context_tokens=64).kv_bytes
        < found.kv_bytes
    )


def test_what_cannot_be_read_here_is_not_guessed(tmp_path):
    assert measure("", load_settings(), on_gpu=True) is None
    assert measure("s3://models/qwen.zse", load_settings(), on_gpu=True, is_needed=False) is None
    assert measure("org/model", load_settings(), on_gpu=True) is None
    assert measure("qwen.zse", load_settings(), on_gpu=True, is_needed=False) is None
    assert measure("", load_settings(), on_gpu=True, memory_gib=2).total_bytes == 2 * 2**30
    with pytest.raises(NotFoundError):
        measure(str(tmp_path / "absent.zse"), load_settings(), on_gpu=True)


def test_an_object_is_sized_from_its_header_alone(tmp_path, monkeypatch):
    path = locate_model("tiny", Settings(cache_dir=tmp_path), quant="int4")
    with serving("/models/tiny.zse", path.read_bytes()) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        found = measure("s3://models/tiny.zse", load_settings(), on_gpu=True)
        assert len(server.requests) <= 4
        assert measure(f"{server.url}/models/tiny.zse", load_settings(), on_gpu=True) == found
    assert found == measure(str(path), load_settings(), on_gpu=True)
    assert found == measure(path.as_uri(), load_settings(), on_gpu=True)


@pytest.mark.parametrize("model", ["gs://models/x.zse", "s3://B/x.zse", "http://models.example/x"])
def test_an_address_that_no_server_could_read_is_refused(model):
    with pytest.raises(ZSEError, match=re.escape(model.partition("://")[0])):
        measure(model, load_settings(), on_gpu=True, is_needed=False)


@pytest.mark.parametrize("memory_gib", [-1.0, math.nan, math.inf])
def test_memory_is_a_number(memory_gib):
    with pytest.raises(UsageError, match="not negative"):
        measure("", load_settings(), on_gpu=True, memory_gib=memory_gib)


def test_a_model_of_the_registry_is_measured_without_a_download():
    need = measure("Qwen/Qwen2.5-7B-Instruct", load_settings(), on_gpu=True)
    assert need is not None
    assert 4 << 30 < need.total_bytes < 8 << 30
