"""A pack's reader believes nothing: every place is checked, and every byte has a digest."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from zse.errors import FormatError
from zse.format.container import PREFIX_BYTES
from zse.format.errors import Rule
from zse.kv.prefix_pack import CHUNK_BYTES, CONTAINER, PrefixBinding, PrefixPack
from zse.kv.prefix_pack_writer import RunToSave, pack_bytes, run_length

BINDING = PrefixBinding(
    model="ab" * 32,
    layout="cpu1-fp16-8-0123456789abcdef",
    block_size=8,
    block_bytes=(1000, 30),
    computed_by="AVX2",
    is_deterministic=True,
    zse="0.1",
)
RUNS = [
    RunToSave(token_ids=range(16), blocks=[4, 5], windows=[[1]], name="system", is_public=True),
    RunToSave(token_ids=range(20, 28), blocks=[7], windows=[[]], parent=0, salt="ann:\u00e9"),
]


def image(group, blocks):
    size = BINDING.block_bytes[group]
    return b"".join(random.Random(1000 * group + block).randbytes(size) for block in blocks)


def packed(runs=RUNS, binding=BINDING):
    return b"".join(pack_bytes(binding, runs, image))


def with_header(change):
    """A pack whose header says something else, with the right digest of the header."""
    data = packed()
    length, _ = CONTAINER.parse_prefix(data[:PREFIX_BYTES], len(data))
    header = json.loads(data[PREFIX_BYTES : PREFIX_BYTES + length])
    change(header)
    raw = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    start = -(-(PREFIX_BYTES + length) // 4096) * 4096
    sealed = CONTAINER.seal(raw)
    return sealed + bytes(start - len(sealed)) + data[start:]


def test_what_was_written_is_read():
    pack = PrefixPack(memoryview(packed()))
    assert pack.binding == BINDING
    assert [(run.name, run.salt, run.is_public, run.parent) for run in pack.runs] == [
        ("system", "", True, -1),
        ("", "ann:\u00e9", False, 0),
    ]
    assert pack.token_ids(0) == list(range(16))
    assert pack.token_ids(1) == list(range(20, 28))
    assert bytes(pack.image(0, 0)) == image(0, [4, 5])
    assert bytes(pack.image(0, 1)) == image(1, [1])
    assert bytes(pack.image(1, 0)) == image(0, [7])
    assert len(pack.image(1, 1)) == 0
    assert pack.path(1) == [0, 1]
    for index in range(2):
        pack.check(index)


def test_equal_runs_give_equal_bytes_and_a_run_tells_its_length():
    assert packed() == packed()
    data = packed()
    assert len(data) == 4096 + sum(run_length(BINDING, run) for run in RUNS)
    assert PrefixPack(memoryview(packed(runs=[]))).runs == ()


def test_a_long_run_has_a_digest_for_each_piece():
    wide = replace(BINDING, block_bytes=(CHUNK_BYTES, 30))
    data = b"".join(
        pack_bytes(
            wide, [RUNS[0]], lambda group, blocks: bytes(len(blocks) * wide.block_bytes[group])
        )
    )
    pack = PrefixPack(memoryview(data))
    assert len(pack.runs[0].sha256) == 3
    pack.check(0)


def check_all(data):
    pack = PrefixPack(memoryview(data))
    for index in range(len(pack.runs)):
        pack.check(index)


def bad(key: str, value: Any, run: int = 0):
    def change(header):
        header["runs"][run][key] = value

    return change


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (bad("parent", [1], run=1), Rule.BAD_HEADER_FIELD),
        (bad("parent", [0], run=0), Rule.BAD_HEADER_FIELD),
        (bad("parent", [0, 0], run=1), Rule.BAD_HEADER_FIELD),
        (bad("parent", [-2], run=1), Rule.BAD_HEADER_FIELD),
        (bad("parent", [True], run=1), Rule.BAD_HEADER_FIELD),
        (bad("num_blocks", 0), Rule.BAD_HEADER_FIELD),
        (bad("num_blocks", 1 << 31), Rule.TRUNCATED_SECTION),
        (bad("num_blocks", 1 << 31, run=1), Rule.TRUNCATED_SECTION),
        (bad("windows", []), Rule.BAD_HEADER_FIELD),
        (bad("windows", [1 << 40], run=1), Rule.TRUNCATED_SECTION),
        (bad("offset", 100), Rule.MISALIGNED_SECTION),
        (bad("offset", 0), Rule.OVERLAPPING_REGIONS),
        (bad("offset", 4096, run=1), Rule.OVERLAPPING_REGIONS),
        (bad("offset", 1 << 40, run=1), Rule.TRUNCATED_SECTION),
        (bad("sha256", []), Rule.LENGTH_MISMATCH),
        (bad("sha256", ["x"]), Rule.BAD_DIGEST),
        (bad("name", "a\nb"), Rule.BAD_HEADER_FIELD),
        (bad("extra", 1), Rule.BAD_HEADER_FIELD),
        (lambda header: header["binding"].update(block_size=0), Rule.BAD_HEADER_FIELD),
        (lambda header: header["binding"].update(block_bytes=[]), Rule.BAD_HEADER_FIELD),
        (lambda header: header["binding"].update(model="m"), Rule.BAD_DIGEST),
        (lambda header: header["runs"].pop(), Rule.TRAILING_BYTES),
    ],
)
def test_a_header_that_breaks_a_rule_is_refused(change, rule):
    with pytest.raises(FormatError) as caught:
        PrefixPack(memoryview(with_header(change)))
    assert caught.value.rule is rule


def test_runs_whose_texts_are_longer_together_than_anybody_walks_through_are_refused(monkeypatch):
    """Each of many short runs may go on a long one: few bytes, and as many long texts."""
    monkeypatch.setattr("zse.kv.prefix_pack.MOST_TEXT_TOKENS", 40)
    assert len(PrefixPack(memoryview(packed())).text(1)) == 24
    monkeypatch.setattr("zse.kv.prefix_pack.MOST_TEXT_TOKENS", 39)
    with pytest.raises(FormatError, match="the texts of 2 runs have 40 tokens together") as caught:
        PrefixPack(memoryview(packed()))
    assert caught.value.rule is Rule.BAD_HEADER_FIELD


def test_a_changed_byte_is_refused_wherever_it_is():
    """Of the header at once; of a run when it is checked. Only the zeros between them are free."""
    data, numbers = packed(), random.Random(7)
    pack = PrefixPack(memoryview(data))
    inside = [range(run.offset, run.offset + run.length_bytes(BINDING)) for run in pack.runs]
    places = [*range(200), *(numbers.choice(part) for part in inside for _ in range(60))]
    for place in places:
        changed = bytearray(data)
        changed[place] ^= 1 << numbers.randrange(8)
        with pytest.raises(FormatError):
            check_all(changed)


def test_random_damage_ends_in_an_error_of_ours_or_in_the_same_content():
    data, numbers = packed(), random.Random(8)
    for _ in range(300):
        changed = bytearray(data)
        for _ in range(numbers.randrange(1, 4)):
            kind = numbers.randrange(3)
            place = numbers.randrange(len(changed))
            if kind == 0:
                del changed[place:]
            elif kind == 1:
                changed[place : place + 8] = numbers.randbytes(8)
            else:
                changed += numbers.randbytes(numbers.randrange(5000))
            if not changed:
                break
        try:
            pack = PrefixPack(memoryview(changed))
            for index in range(len(pack.runs)):
                pack.check(index)
        except FormatError:
            continue
        assert pack.token_ids(0) == list(range(16))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"model": "cd" * 32}, "other weights"),
        ({"zse": "0.2"}, "zse 0.2"),
        ({"layout": "cpu1-int8-8-0123456789abcdef"}, "KV cache"),
        ({"block_size": 16}, "KV cache"),
        ({"is_deterministic": False}, "--deterministic"),
        ({"computed_by": "AVX-512"}, "AVX-512"),
    ],
)
def test_what_another_model_or_machine_computed_is_told_apart(changes, word):
    assert word in BINDING.obstacle(replace(BINDING, **changes))


def test_where_bits_need_not_be_equal_any_machines_values_will_do():
    free = replace(BINDING, is_deterministic=False)
    assert free.obstacle(BINDING) == ""
    assert free.obstacle(replace(free, computed_by="AVX-512")) == ""
    assert BINDING.obstacle(BINDING) == ""
