"""A .zse file in object storage: opened by small reads, loaded with no disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import fake_hub
import pytest
from broken_rules import breaks
from loads import start_load
from range_server import serving

from tests.stream.conftest import write_model
from zse.errors import FormatError, NotFoundError, SourceChangedError, StoreError, UsageError
from zse.format.errors import Misuse, Rule
from zse.format.reader import ZSEReader
from zse.settings import load_settings
from zse.store import put_file
from zse.store.location import parse_location
from zse.store.objects import open_object
from zse.stream.opening import open_remote, open_source
from zse.stream.options import LoaderOptions
from zse.stream.placement import WholeFile
from zse.stream.remote import RemoteReader
from zse.stream.source import LocalSource

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from host_gpu import HostGpu
    from range_server import Handler, RangeServer

URL = "s3://models/folder/tiny model.zse"
PATH = "/models/folder/tiny%20model.zse"
OPTIONS = LoaderOptions(threads=4, chunk_bytes=64 << 10)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model.zse", [20, 3, 90])


@pytest.fixture
def server(model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeServer]:
    """An S3 look-alike that holds the model, with the AWS variables pointing at it."""
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    with serving(PATH, model.read_bytes()) as found:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", found.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        yield found


def load(gpu: HostGpu, reader: RemoteReader) -> bytes:
    address = gpu.memory(WholeFile(reader.header).length_bytes)
    report = start_load(gpu, reader.source, WholeFile(reader.header), address, OPTIONS).wait()
    assert report.source == "http"
    return gpu.bytes_of(address)


def region_of(path: Path) -> bytes:
    with ZSEReader(path) as reader:
        whole = WholeFile(reader.header)
    offset, length = whole.origin_bytes, whole.length_bytes
    return path.read_bytes()[offset : offset + length]


def test_opening_is_one_request_and_answers_like_a_local_reader(
    server: RangeServer, model: Path
) -> None:
    with RemoteReader(open_source(URL, load_settings())) as remote, ZSEReader(model) as local:
        assert server.requests == ["bytes=0-262143"]
        assert remote.header == local.header
        assert remote.size_bytes == local.size_bytes
        assert remote.names() == local.names() == ("t0", "t1", "t2")
        assert remote.entry("t1") == local.entry("t1")
        assert remote.group("layers.2") == local.group("layers.2")
        assert remote.tensors_of("layers.0") == local.tensors_of("layers.0")
        assert remote.has_section("notes.txt")
        assert not remote.has_section("absent")
        for name in ("notes.txt", "large.bin", "large.bin"):
            assert remote.section(name) == local.section(name)
        assert remote.path == URL
    assert len(server.requests) == 2  # the large section, once


def test_a_request_is_signed(server: RangeServer) -> None:
    RemoteReader(open_source(URL, load_settings())).close()
    assert server.headers_seen[0]["authorization"].startswith("AWS4-HMAC-SHA256 Credential=key/")


def test_a_large_header_takes_a_second_request(server: RangeServer, model: Path) -> None:
    source = open_object(parse_location(URL), load_settings(), prefix_bytes=256)
    assert source.prefix == model.read_bytes()[:256]
    RemoteReader(source).close()
    assert len(server.requests) == 2


def test_the_device_holds_the_region_and_no_file_was_made(
    server: RangeServer, model: Path, gpu: HostGpu
) -> None:
    with RemoteReader(open_source(URL, load_settings())) as remote:
        assert load(gpu, remote) == region_of(model)


def test_connections_that_are_cut_in_the_middle_do_not_matter(
    server: RangeServer, model: Path, gpu: HostGpu
) -> None:
    count = 0

    def cut_every_third(request: Handler) -> bool:
        nonlocal count
        count += 1
        if count % 3:
            return False
        request.answer_cut(5000)
        return True

    with RemoteReader(open_source(URL, load_settings())) as remote:
        server.fault = cut_every_third
        assert load(gpu, remote) == region_of(model)


def test_a_server_that_stops_in_the_middle_is_an_error(server: RangeServer, gpu: HostGpu) -> None:
    with RemoteReader(open_source(URL, load_settings())) as remote:

        def die(request: Handler) -> bool:
            if len(server.requests) < 4:
                return False
            request.close_connection = True
            return True

        server.fault = die
        with pytest.raises(StoreError, match="attempts failed"):
            load(gpu, remote)


def test_an_object_replaced_in_the_middle_is_an_error(server: RangeServer, gpu: HostGpu) -> None:
    with RemoteReader(open_source(URL, load_settings())) as remote:

        def replace(request: Handler) -> bool:
            if len(server.requests) == 4:
                server.etag = '"second"'
            return False

        server.fault = replace
        with pytest.raises(SourceChangedError, match=f"{URL} was replaced"):
            load(gpu, remote)


def test_what_is_no_zse_file_is_refused(server: RangeServer) -> None:
    server.data = b"PK\3\4" + bytes(5000)
    with pytest.raises(FormatError):
        RemoteReader(open_source(URL, load_settings()))
    server.data = b"ZS"
    with pytest.raises(FormatError):
        RemoteReader(open_source(URL, load_settings()))


def test_a_damaged_section_is_found(server: RangeServer) -> None:
    with RemoteReader(open_source(URL, load_settings())) as remote:
        place = next(item for item in remote.header.sections if item.name == "large.bin")
    data = bytearray(server.data)
    data[place.offset_bytes] ^= 1
    server.data = bytes(data)
    with RemoteReader(open_source(URL, load_settings())) as remote:
        with breaks(Rule.CHECKSUM_MISMATCH, match=r"section large\.bin of s3://"):
            remote.section("large.bin")
        with breaks(Misuse.UNKNOWN_NAME):
            remote.section("absent")
        with breaks(Misuse.UNKNOWN_NAME):
            remote.entry("absent")
        with breaks(Misuse.UNKNOWN_NAME):
            remote.group("absent")
    with breaks(Misuse.READER_CLOSED):
        remote.section("notes.txt")


def test_an_object_that_is_not_there_is_not_found(server: RangeServer) -> None:
    with pytest.raises(NotFoundError, match="s3://models/other does not exist"):
        open_source("s3://models/other", load_settings())


def test_a_folder_is_no_object(server: RangeServer) -> None:
    with pytest.raises(UsageError, match="names a folder"):
        open_source("s3://models/folder/", load_settings())


def test_an_endpoint_that_is_no_url_is_an_error(
    server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "not a url")
    with pytest.raises(StoreError, match="is not usable"):
        open_source(URL, load_settings())


@pytest.mark.parametrize("kind", ["https", "hf"])
def test_a_file_of_the_web_or_a_hub_is_streamed_like_one_in_s3(
    kind: str, model: Path, gpu: HostGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "https":
        with serving("/folder/model.zse", model.read_bytes()) as server:
            with open_remote(f"{server.url}/folder/model.zse", load_settings()) as remote:
                assert load(gpu, remote) == region_of(model)
            assert server.requests[0] == "bytes=0-262143"
        return
    with fake_hub.serving() as hub:
        monkeypatch.setattr(fake_hub, "LARGE", model.read_bytes())
        monkeypatch.setitem(fake_hub.FILES, "model.zse", fake_hub.LARGE)
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        with open_remote("hf://owner/gated/model.zse", load_settings()) as remote:
            assert load(gpu, remote) == region_of(model)
        assert [line.split()[0] for line in hub.requests].count("GET") == 1
        assert hub.leaked_tokens == []


def test_a_path_opens_a_file(model: Path) -> None:
    source = open_source(model, load_settings())
    assert isinstance(source, LocalSource)
    with RemoteReader(source) as reader:
        assert reader.section("notes.txt") == b"hello"


@pytest.mark.system
def test_a_real_server_gives_the_same_bytes(s3_bucket: str, model: Path, gpu: HostGpu) -> None:
    url = f"s3://{s3_bucket}/földer/name with space+%.zse"
    put_file(model, url, load_settings())
    with RemoteReader(open_source(url, load_settings())) as remote:
        assert load(gpu, remote) == region_of(model)
        put_file(write_model(model, [20, 3, 90], seed=1), url, load_settings())
        with pytest.raises(SourceChangedError):
            load(gpu, remote)
    with pytest.raises(NotFoundError, match="does not exist"):
        open_source(f"s3://{s3_bucket}/absent", load_settings())
    with pytest.raises(NotFoundError, match="bucket 'absent-bucket' does not exist"):
        open_source("s3://absent-bucket/absent", load_settings())
