"""A model is opened once, and gives everything back when nothing comes of it."""

import ctypes
import os
import sys
import threading
from contextlib import contextmanager

import pytest
import stub_libcuda
from range_server import serving
from sample_packs import write_stub_pack

from tests.stream.conftest import write_model
from zse.backends.types import PENDING_TOKEN, SequenceChunk, StepBatch, kind_of
from zse.device.cuda.gpu import Gpu
from zse.device.cuda.library import Driver
from zse.engine import loading
from zse.engine.drafting.opening import memory_beside
from zse.engine.loading import load_model
from zse.engine.opening import open_model
from zse.errors import DeviceError, FormatError, SourceChangedError, UsageError
from zse.format.reader import ZSEReader
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.builtin import builtin_checkpoint
from zse.option import with_values
from zse.options import load_options
from zse.quantize.locate import locate_model
from zse.settings import Settings, load_settings
from zse.stream.placement import WholeFile

OPTIONS = load_options(device="cuda")


@pytest.fixture
def gpu(monkeypatch):
    """A GPU with 4 GiB in the shape of the stub driver."""
    monkeypatch.setenv("ZSE_STUB_TOTAL", str(4 << 30))
    path = str(stub_libcuda.build())
    real_open = Gpu.open
    monkeypatch.setattr(Gpu, "open", lambda ordinal: real_open(ordinal, driver=Driver(path)))


@pytest.fixture
def model(tmp_path, gpu):
    return locate_model("tiny", Settings(cache_dir=tmp_path))


def free_bytes() -> int:
    with Gpu.open(0) as gpu:
        return gpu.memory()[0]


def test_weights_that_nobody_waits_for_are_given_back(model):
    before = free_bytes()
    opened = open_model(model, OPTIONS, load_settings())
    assert opened.arrival.gpu.memory()[0] < before
    opened.abandon()
    opened.arrival.abandon()
    assert free_bytes() == before


def test_a_driver_that_keeps_its_stack_is_no_reason_not_to_start(model, monkeypatch, caplog):
    monkeypatch.setenv("ZSE_STUB_FAIL", "cuCtxSetLimit:1")
    open_model(model, OPTIONS, load_settings()).abandon()
    assert "cuCtxSetLimit: CUDA_ERROR_INVALID_VALUE (1)" in caplog.text


def test_an_error_before_the_backend_gives_the_weights_back(model, monkeypatch):
    before = free_bytes()

    def refuse(reader):
        raise FormatError("tensor layers.0.up.weight is missing")

    monkeypatch.setattr(loading, "spec_of", refuse)
    with pytest.raises(FormatError, match="missing"):
        load_model(model, OPTIONS, load_settings())
    assert free_bytes() == before


def test_a_model_that_the_allowed_memory_does_not_hold_is_refused_before_it_is_sent(model):
    before = free_bytes()
    with pytest.raises(
        DeviceError, match=r"^0 B are left for weights; streaming needs at least [1-9.]+ [KM]B"
    ):
        open_model(model, load_options(device="cuda", vram_gib=0.1), load_settings())
    assert free_bytes() == before


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    return write_stub_pack(tmp_path_factory.mktemp("kernels") / "sm_90.zkp")


def test_an_error_after_the_backend_gives_everything_back(model, pack, monkeypatch):
    before = free_bytes()
    monkeypatch.setattr(loading, "EngineCore", lambda *given, **named: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        load_model(model, load_options(device="cuda", kernels=str(pack)), load_settings())
    assert free_bytes() == before


def test_a_draft_model_finds_memory_on_a_gpu_that_its_model_would_have_taken(model, pack):
    before = free_bytes()
    alone = load_options(device="cuda", kernels=str(pack), max_sequences=2048)
    loaded = load_model(model, alone, load_settings())
    alone_bytes = loaded.core.runner.memory_bytes()["kv_cache"]
    loaded.close()
    both = with_values(alone, {"draft_model": str(model)})
    loaded = load_model(model, both, load_settings())
    left_bytes = alone_bytes - loaded.core.runner.memory_bytes()["kv_cache"]
    aside = memory_beside(both, load_settings())
    assert abs(aside - left_bytes) < 1 << 20  # as many blocks fewer as make room for it
    loaded.close()
    assert free_bytes() == before


def test_a_model_is_used_and_closed_by_other_threads_than_the_one_that_loaded_it(model, pack):
    before = free_bytes()
    loaded = load_model(model, load_options(device="cuda", kernels=str(pack)), load_settings())
    runner, failures = loaded.core.runner, []

    def use():
        try:
            assert len(loaded.core.logits([1, 2, 3])) == 3
            steps[-1].wait()
            loaded.close()
        except BaseException as error:  # noqa: BLE001 - shown by the thread that asserts
            failures.append(error)

    chunks = [
        SequenceChunk(0, ids, start, [0], kind_of(len(ids)))
        for ids, start in (([1, 2], 0), ([PENDING_TOKEN], 2))
    ]
    steps = [
        runner.submit(StepBatch(chunks=[chunk], sampling=[[SamplingRow(temperature=0.0)]]))
        for chunk in chunks
    ]
    steps[0].wait()
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert failures == []
    assert free_bytes() == before


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_batch_tokens": 0}, UsageError),
        ({"max_sequences": -1}, UsageError),
        ({"device": "gpu"}, DeviceError),
        ({"device": "cuda:x"}, DeviceError),
        ({"stream": "off", "ram_gib": 2.0}, UsageError),
        ({"stream": "off", "resident_layers": 2}, UsageError),
        ({"prefix_key_file": "key"}, UsageError),
    ],
)
def test_options_that_mean_nothing_are_refused_before_a_model_is_looked_for(options, error):
    with pytest.raises(error):
        open_model("/no/such", load_options(**options), load_settings())


def test_a_conversion_on_the_way_tells_how_far_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("ZSE_CACHE_DIR", str(tmp_path))
    checkpoint, seen = builtin_checkpoint("tiny"), []
    path = locate_model(checkpoint, load_settings(), progress=lambda *now: seen.append(now))
    assert {stage for stage, _, _ in seen} == {"convert"}
    assert seen[0][1] == 0
    assert seen[-1][1] == seen[-1][2]
    seen.clear()
    assert locate_model(checkpoint, load_settings(), progress=lambda *now: seen.append(now)) == path
    assert seen == []


@pytest.fixture
def bucket(gpu, monkeypatch):
    """Return a function that serves bytes as the object ``s3://models/a.zse``."""

    @contextmanager
    def serve(data):
        with serving("/models/a.zse", data) as server:
            monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url)
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
            yield server

    return serve


def once_the_header_was_read(action):
    """Return phases that do something between the header and the weights."""

    @contextmanager
    def phases(name):
        yield
        if name == "model-file":
            action()

    return phases


def region_of(path):
    with ZSEReader(path) as reader:
        whole = WholeFile(reader.header)
    offset, length = whole.origin_bytes, whole.length_bytes
    return path.read_bytes()[offset : offset + length]


def arrived(opened):
    """Return what is in the GPU's memory once every weight is there."""
    try:
        opened.arrival.wait()
        block = opened.arrival.block
        return ctypes.string_at(block.address, block.length_bytes)
    finally:
        opened.abandon()


def test_a_head_that_guesses_further_tokens_stays_where_it_is(bucket, tmp_path):
    path = write_model(tmp_path / "model.zse", [20, 3, 30], last_name="mtp.0")
    with ZSEReader(path) as reader:
        head = reader.group("mtp.0")
    with bucket(path.read_bytes()) as server:
        found = arrived(open_model("s3://models/a.zse", OPTIONS, load_settings()))
    assert found == region_of(path)[: 23 * 4096]
    ends = [int(each.rpartition("-")[2]) for each in server.requests]
    assert max(ends) < head.offset_bytes


def test_a_file_replaced_after_its_header_was_read_gives_the_weights_of_that_header(gpu, tmp_path):
    path = write_model(tmp_path / "model.zse", [20, 3])
    other = write_model(tmp_path / "other.zse", [20, 3], seed=1)
    expected = region_of(path)
    replace = once_the_header_was_read(lambda: other.replace(path))
    assert (
        arrived(open_model(path, OPTIONS, load_settings(), phases=replace))
        == expected
        != region_of(path)
    )


def test_a_file_written_to_after_its_header_was_read_is_an_error(gpu, tmp_path):
    path = write_model(tmp_path / "model.zse", [20, 3])
    os.utime(path, ns=(0, 0))
    replace = once_the_header_was_read(lambda: path.write_bytes(path.read_bytes()))
    with pytest.raises(SourceChangedError, match="was written to"):
        arrived(open_model(path, OPTIONS, load_settings(), phases=replace))


@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_an_object_is_opened_by_one_request_on_the_connection_that_its_weights_take(
    bucket, tmp_path, scheme
):
    path = write_model(tmp_path / "model.zse", [90])
    with bucket(path.read_bytes()) as server:
        url = "s3://models/a.zse" if scheme == "s3" else f"{server.url}/models/a.zse"
        assert arrived(open_model(url, OPTIONS, load_settings())) == region_of(path)
    header, weights = server.requests
    assert header == "bytes=0-262143" != weights
    assert server.num_connections == 1


def test_an_object_replaced_after_its_header_was_read_is_an_error(bucket, tmp_path):
    path = write_model(tmp_path / "model.zse", [90])
    other = write_model(tmp_path / "other.zse", [90], seed=1)
    with bucket(path.read_bytes()) as server:

        def replace():
            server.data, server.etag = other.read_bytes(), '"second"'

        with pytest.raises(SourceChangedError, match="was replaced"):
            arrived(
                open_model(
                    "s3://models/a.zse",
                    OPTIONS,
                    load_settings(),
                    phases=once_the_header_was_read(replace),
                )
            )


def test_sections_are_read_from_an_object_after_its_weights_arrived(bucket, tmp_path):
    path = write_model(tmp_path / "model.zse", [90])
    with bucket(path.read_bytes()), ZSEReader(path) as local:
        opened = open_model("s3://models/a.zse", OPTIONS, load_settings())
        opened.arrival.wait()
        assert opened.reader.section("large.bin") == local.section("large.bin")
        opened.arrival.abandon()
        opened.reader.close()


@pytest.mark.parametrize("place", ["s3", "path"])
def test_a_cpu_opens_a_finished_file_where_nothing_converts(place, bucket, tmp_path, monkeypatch):
    path = write_model(tmp_path / "model.zse", [20])
    path = path.rename(tmp_path / "model.bin")
    monkeypatch.setenv("ZSE_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("zse.quantize", "zse.quantize.locate"):
        monkeypatch.setitem(sys.modules, name, None)
    on_cpu = load_options(device="cpu")
    with bucket(path.read_bytes()):
        model = "s3://models/a.zse" if place == "s3" else path
        opened = open_model(model, on_cpu, load_settings())
    assert opened.reader.has_section("notes.txt")
    opened.abandon()
