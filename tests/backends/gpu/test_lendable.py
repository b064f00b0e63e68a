"""A runner's weights in memory that others map: what is lent, who computes with it, and until when."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest
from interpreted_runner import open_runner
from logits import as_tensor
from random_files import write_random_file
from shared_interpreted_gpu import SharedInterpretedGpu
from taken_places import PROMPT, SHAPE, takes_over

from zse.format import ZSEReader
from zse.server_options import PeerOptions
from zse.stream.peers.beside import PeerMemory
from zse.stream.peers.borrowing import begin_borrowing
from zse.stream.peers.lending import Lender
from zse.stream.placement import WholeFile

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "lending.HANDSHAKE_SECONDS",
        "borrowing.HANDSHAKE_SECONDS",
        "beside._OFFER_SECONDS",
    ):
        monkeypatch.setattr(f"zse.stream.peers.{name}", 60)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    write_random_file(tmp_path / "base.zse", "int8", **SHAPE)
    return tmp_path / "base.zse"


def lent(path: Path, secret: str):
    """Return a runner that lends its weights, and the lender."""
    peers = PeerMemory(PeerOptions(share_weights=True))
    runner = open_runner(path, gpu=SharedInterpretedGpu(), peers=peers)
    runner.settle()
    lender = Lender(runner.lendable(), secret.encode(), lease_seconds=600)
    runner.owns(lender.close)
    return runner, lender


def test_weights_that_were_copied_answer_as_those_they_were_copied_from(base: Path) -> None:
    secret = secrets.token_hex(16)
    first, lender = lent(base, secret)
    peers = PeerMemory(PeerOptions(peers_from="host", secret=secret))
    with ZSEReader(base) as reader:
        assert peers.look(WholeFile(reader.header))
    second = open_runner(base, gpu=SharedInterpretedGpu(), peers=peers)
    second.settle()
    assert lender.num_loans == 1
    assert second.lendable() is None, "it was not told to share"
    assert (as_tensor(second.logits(PROMPT)) == as_tensor(first.logits(PROMPT))).all()
    second.close()
    first.close()


def test_a_loan_is_over_before_another_model_takes_the_memory(base: Path, tmp_path: Path) -> None:
    write_random_file(tmp_path / "tuned.zse", "int8", tuned="layers.1.", **SHAPE)
    secret = secrets.token_hex(16)
    first, _ = lent(base, secret)
    loan = begin_borrowing(secret.encode(), {g.sha256 for g in _groups(base)}).take(60)
    assert loan.is_valid
    second, moved_bytes = takes_over(first, tmp_path / "tuned.zse")
    assert moved_bytes
    assert not loan.is_valid
    loan.close()
    second.close()


def test_what_a_runner_is_given_when_it_is_closed_is_closed_at_once(base: Path) -> None:
    runner = open_runner(base)
    assert runner.lendable() is None, "its memory is its own"
    runner.close()
    ended = []
    runner.owns(lambda: ended.append(True))
    assert ended == [True]


def _groups(path: Path):
    with ZSEReader(path) as reader:
        return reader.header.groups
