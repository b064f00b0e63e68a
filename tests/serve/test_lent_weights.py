"""Two servers of one host with the stub driver's GPU: the second copies the weights of the first.

The stub's kernels compute nothing, so no answer is asked for.
"""

import secrets

import pytest
import stub_libcuda
from sample_packs import write_stub_pack

from zse.format.reader import ZSEReader
from zse.quantize.locate import locate_model
from zse.settings import Settings
from zse.stream.peers.borrowing import begin_borrowing

# A machine that stands still for seconds ends no handshake.
PATIENT_SERVER = """
import sys
from zse.stream.peers import beside, borrowing, lending
beside._OFFER_SECONDS = borrowing.HANDSHAKE_SECONDS = lending.HANDSHAKE_SECONDS = 60
from zse.serve.__main__ import main
sys.exit(main())
"""


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr("zse.stream.peers.borrowing.HANDSHAKE_SECONDS", 60)


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    return write_stub_pack(tmp_path_factory.mktemp("kernels") / "sm_90.zkp")


def is_lent(model, secret):
    """Whether a server of this host lends all weights of a file."""
    with ZSEReader(model) as reader:
        digests = {group.sha256 for group in reader.header.groups}
    borrowing = begin_borrowing(secret, digests)
    loan = None if borrowing is None else borrowing.take(60)
    if loan is None:
        return False
    loan.close()
    return loan.num_known(digests) == len(digests)


def test_a_second_server_copies_the_first_ones_weights_until_that_gives_its_model_up(
    pack, start_command, tmp_path
):
    model = locate_model("tiny", Settings(cache_dir=tmp_path), quant="int4")
    secret = tmp_path / "secret"
    secret.write_text(f"what all replicas know, {secrets.token_hex(8)}")

    def start(*more):
        server = start_command(
            "-c", PATIENT_SERVER, str(model), "--device", "cuda", "--kernels", str(pack),
            "--port", "0", "--peer-secret-file", str(secret), "--peers-from", "host", *more,
            LD_LIBRARY_PATH=str(stub_libcuda.build().parent), ZSE_STUB_TOTAL=str(4 << 30),
        )  # fmt: skip
        server.wait_for_line("ready")
        return server, server.wait_for_line("weights are on the GPU")["source"]

    first, source = start("--share-weights", "--share-port", "0")
    assert source != "peer memory"
    first.wait_for_line("weights are lent to replicas on this host")
    second, source = start()
    assert source == "peer memory"
    assert is_lent(model, secret.read_bytes())
    assert first.wait_for_line("weights are lent")["borrower"] == second.process.pid
    assert second.stop() == 0
    loaded = first.http.get("/v1/models").json()["data"][0]["id"]
    first.http.post("/api/models/unload", json={"model": loaded}).raise_for_status()
    assert not is_lent(model, secret.read_bytes())
    assert first.stop() == 0
