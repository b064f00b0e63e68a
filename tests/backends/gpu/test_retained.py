"""A model that takes the place of one of the same shape answers as it does alone."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from interpreted_runner import open_runner
from logits import as_tensor
from random_files import write_random_file
from taken_places import PROMPT, SHAPE, takes_over

from zse.backends import ModelLoad
from zse.backends.gpu.arrival import Arrival
from zse.backends.gpu.open import fill_again, open_gpu_backend
from zse.backends.gpu.retained import FileShapes
from zse.errors import DeviceError
from zse.format import ZSEReader
from zse.models.decoder import forward_of
from zse.models.runner import ModelRunner, load_runner, spec_of
from zse.options import load_options

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def base(tmp_path: Path) -> Path:
    write_random_file(tmp_path / "base.zse", "int8", **SHAPE)
    return tmp_path / "base.zse"


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    """The same but for its second layer, norms in 16 bits included."""
    write_random_file(tmp_path / "tuned.zse", "int8", tuned="layers.1.", **SHAPE)
    return tmp_path / "tuned.zse"


def logits_alone(path: Path):
    cpu = load_runner(path, load_options(device="torch", num_blocks=8))
    found = as_tensor(cpu.logits(PROMPT))
    cpu.close()
    return found


def test_only_groups_that_differ_move_and_answers_are_those_of_the_other_model(base, tuned):
    first = open_runner(base)
    first._backend.warm(first._forward)
    graphs = dict(first._backend._graphs)
    assert graphs
    second, moved_bytes = takes_over(first, tuned)
    with ZSEReader(tuned) as reader:
        lengths = {group.name: group.length_bytes for group in reader.header.groups}
    assert moved_bytes == lengths["layers.1"]
    assert second._backend._graphs == graphs
    expected = logits_alone(tuned)
    assert float((expected - logits_alone(base)).norm() / expected.norm()) > 0.05
    assert float((as_tensor(second.logits(PROMPT)) - expected).norm() / expected.norm()) < 2e-2
    third, _ = takes_over(second, base)
    expected = logits_alone(base)
    assert float((as_tensor(third.logits(PROMPT)) - expected).norm() / expected.norm()) < 2e-2
    third.close()


def test_a_copy_of_a_model_moves_nothing(base, tmp_path):
    twin = shutil.copy(base, tmp_path / "twin.zse")
    second, moved_bytes = takes_over(open_runner(base), twin)
    assert moved_bytes == 0
    second.close()


def test_a_digest_that_was_left_out_says_nothing(base):
    runner = open_runner(base)
    retained = runner.retain()
    header = runner._backend._model.weights.header
    groups = [replace(group, sha256="0" * 64) for group in header.groups]
    retained._header = replace(header, groups=tuple(groups))
    assert len(retained.changed_groups(retained._header)) == len(groups)
    runner.release()
    runner.close()


@pytest.mark.parametrize(
    "change", [{"intermediate_size": 256}, {"vocab_size": 80}, {"max_position": 128}]
)
def test_a_model_of_another_shape_is_not_taken(base, tmp_path, change):
    other = tmp_path / "other.zse"
    write_random_file(other, "int8", **{**SHAPE, **change})
    runner = open_runner(base)
    assert not runner.retain().takes(other)
    runner.release()
    runner.close()


@pytest.mark.parametrize("content", [None, b"no model"])
def test_a_file_that_is_none_is_not_taken(base, tmp_path, content):
    other = tmp_path / "other.zse"
    if content is not None:
        other.write_bytes(content)
    runner = open_runner(base)
    assert not runner.retain().takes(other)
    runner.release()
    runner.close()


def test_another_scheme_is_another_shape(base, tmp_path):
    other = tmp_path / "other.zse"
    write_random_file(other, "int4", **SHAPE)
    runner = open_runner(base)
    assert not runner.retain().takes(other)
    runner.release()
    runner.close()


def test_files_that_differ_in_bytes_of_weights_have_one_shape(base, tuned, tmp_path):
    other = tmp_path / "other.zse"
    write_random_file(other, "int8", **{**SHAPE, "vocab_size": 80})
    headers = []
    for path in (base, tuned, other):
        with ZSEReader(path) as reader:
            headers.append(reader.header.loaded())
    shapes = FileShapes()
    for _ in range(2):
        found = [shapes.of(header) for header in headers]
        assert found[0] is found[1]
        assert found[0] != found[2]
    for number in range(20):  # others come; what is forgotten is found again
        shapes.of(replace(headers[0], architecture=f"other-{number}"))
    assert shapes.of(headers[1]) == found[1]


def test_what_nobody_takes_is_given_back_once_its_model_has_ended(base, monkeypatch):
    runner = open_runner(base)
    gpu, closed = runner._backend.gpu, []
    monkeypatch.setattr(gpu, "close", lambda: closed.append(True), raising=False)
    retained = runner.retain()
    retained.give_up()
    assert closed == [], "its model still runs"
    runner.close()
    assert closed == []
    retained.give_up()
    retained.give_up()
    assert closed == [True]
    assert not retained.take()


@pytest.mark.parametrize("is_retained", [False, True])
def test_a_gpu_that_fails_while_its_model_leaves_is_given_back(base, monkeypatch, is_retained):
    runner = open_runner(base)
    runner.host_blocks(1 << 20)
    backend, closed = runner._backend, []
    monkeypatch.setattr(backend.gpu, "close", lambda: closed.append(True), raising=False)

    def fails():
        raise DeviceError("the GPU is lost")

    monkeypatch.setattr(backend._stream, "synchronize", fails, raising=False)
    retained = runner.retain() if is_retained else None
    with pytest.raises(DeviceError, match="lost"):
        runner.close()
    assert closed == [True]
    assert retained is None or not retained.take()


def test_weights_that_are_on_their_way_already_are_those_that_the_load_takes(base, tuned):
    runner = open_runner(base)
    retained = runner.retain()
    retained.begin(tuned)
    assert not retained._begun, "its model still runs"
    runner.close()
    retained.begin(tuned)
    with ZSEReader(tuned) as reader:
        arrival = retained.claim(reader)
        lengths = {group.name: group.length_bytes for group in reader.header.groups}
        assert arrival.num_bytes()[1] == lengths["layers.1"]
        assert retained.claim(reader) is None
        retained.give_up()  # too late: it was claimed
        spec = spec_of(reader)
        load = ModelLoad(reader=reader, spec=spec, options=load_options(), forward=forward_of(spec))
        backend = open_gpu_backend(arrival, load)
        other = ModelRunner(backend, spec, owned=ExitStack(), max_position=spec.max_position)
        expected = logits_alone(tuned)
        found = as_tensor(other.logits(PROMPT))
        assert float((found - expected).norm() / expected.norm()) < 2e-2
        backend.close()


@pytest.mark.parametrize("is_replaced", [False, True])
def test_weights_on_their_way_that_no_load_takes_are_stopped(
    base, tuned, tmp_path, monkeypatch, is_replaced
):
    runner = open_runner(base)
    closed = []
    monkeypatch.setattr(runner._backend.gpu, "close", lambda: closed.append(True), raising=False)
    retained = runner.retain()
    runner.close()
    retained.begin(tuned)
    assert closed == []
    if is_replaced:  # by one of the same shape: what has begun is not what is asked for now
        with ZSEReader(base) as reader:
            assert retained.claim(reader) is None
    retained.give_up()
    retained.give_up()
    assert closed == [True]


def test_a_file_that_is_gone_when_weights_are_to_be_sent_is_left_to_the_load(
    base, tmp_path, monkeypatch
):
    runner = open_runner(base)
    closed = []
    monkeypatch.setattr(runner._backend.gpu, "close", lambda: closed.append(True), raising=False)
    retained = runner.retain()
    runner.close()
    retained.begin(tmp_path / "gone.zse")
    assert closed == [True]
    with ZSEReader(base) as reader:
        assert retained.claim(reader) is None


def test_a_spec_that_differs_is_refused_before_any_step(base, tuned):
    runner = open_runner(base)
    retained = runner.retain()
    runner.close()
    assert retained.take()
    with ZSEReader(tuned) as reader:
        arrival = Arrival.into(retained, reader)
        spec = replace(spec_of(reader), vocab_size=71)
        load = ModelLoad(reader=reader, spec=spec, options=load_options(), forward=forward_of(spec))
        with pytest.raises(DeviceError, match="not of the shape"):
            fill_again(retained, arrival, load)
        arrival.abandon()
