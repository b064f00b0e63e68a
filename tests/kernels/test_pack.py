"""Kernel packs: the bytes, what they say, and what a damaged or hostile one is answered with."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

import pytest
from broken_rules import breaks
from sample_packs import (
    PROVENANCE,
    VARIANTS,
    edit_facts,
    edit_header,
    facts,
    replace_facts,
    sample_pack,
    split,
)

from zse.errors import NotFoundError
from zse.format.errors import Rule
from zse.format.header_json import dump_canonical
from zse.kernels.build.writer import assemble
from zse.kernels.errors import KernelPackError, KernelRule
from zse.kernels.pack import KernelPack, PackEntry
from zse.kernels.pack_header import CONTAINER
from zse.kernels.variant import variant
from zse.store.whole import write_whole

if TYPE_CHECKING:
    from pathlib import Path

PACK = sample_pack()
HEADER_LENGTH = int.from_bytes(PACK[8:16], "little")


def entry_edit(**changes: Any) -> Any:
    """Change fields of the last entry, which is that of BLOCK=128."""

    def change(document: dict[str, Any]) -> None:
        document["entries"][1].update(changes)

    return change


# --- the bytes ----------------------------------------------------------------------------------


def test_the_prefix_and_the_header_are_these_bytes() -> None:
    header = PACK[64 : 64 + HEADER_LENGTH]
    assert PACK[:8] == b"ZKP\0\x01\0\0\0"
    assert PACK[16:48] == hashlib.sha256(header).digest()
    assert PACK[48:64] == bytes(16)
    assert re.sub(rb"[0-9a-f]{64}", b"DIGEST", header) == (
        b'{"entries":['
        b'{"code_bytes":704,"facts_bytes":395,"key":"sample.scale[BLOCK=1024]w4s1",'
        b'"offset_bytes":0,"sha256":"DIGEST"},'
        b'{"code_bytes":404,"facts_bytes":394,"key":"sample.scale[BLOCK=128]w2s1",'
        b'"offset_bytes":1280,"sha256":"DIGEST"}],'
        b'"provenance":{"ptxas":"12.9.86","sources":"DIGEST","triton":"3.9.0","zse":"0.1.0"},'
        b'"skipped":[],"target":"sm_90"}'
    )


def test_a_kernels_facts_are_these_bytes() -> None:
    document, code = split(PACK)
    assert code[: document["entries"][0]["facts_bytes"]] == (
        b'{"aligned":["inputs","outputs"],"arguments":[["inputs","*fp32"],["outputs","*fp32"],'
        b'["length","i32"],["factor","fp32"]],"constants":[["BLOCK",1024]],"cooperative":false,'
        b'"entry":"scale","global_scratch_align":1,"global_scratch_bytes":0,"num_ctas":1,'
        b'"num_stages":1,"num_warps":4,"profile_scratch_bytes":0,"programmatic":true,'
        b'"registers":26,"shared_bytes":512,"stack_bytes":0,"trailing_pointers":2}'
    )


def test_the_whole_pack_has_a_known_digest() -> None:
    digest = hashlib.sha256(PACK).hexdigest()
    assert digest == "6209971fafc0908378a165229bec536b4126d0fdc4dddb8fca0a5b4320c62531"


def test_code_is_aligned_and_the_space_between_is_zero() -> None:
    opened = KernelPack.open(PACK)
    first, second = (bytes(opened.entry(key).image) for key in opened)
    assert PACK.index(first) % 256 == 0
    assert PACK.index(second) % 256 == 0
    assert PACK.endswith(second + bytes(-len(second) % 256))


# --- what it says -------------------------------------------------------------------------------


def test_a_pack_read_back_says_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "sm_90.zkp"
    write_whole(path, PACK)
    for source in (path, str(path), PACK, memoryview(PACK)):
        opened = KernelPack.open(source)
        opened.verify()
        assert opened.target == "sm_90"
        assert opened.provenance == PROVENANCE
        assert opened.size_bytes == len(PACK)
        assert sorted(opened) == sorted(v.key for v in VARIANTS)
        entry = opened.entry(VARIANTS[0].key)
        assert isinstance(entry, PackEntry)
        assert entry.arguments == tuple((a.name, a.type) for a in VARIANTS[0].arguments)
        assert entry.aligned == {"inputs", "outputs"}
        assert entry.constants == VARIANTS[0].constants
        assert (entry.num_warps, entry.shared_bytes, entry.trailing_pointers) == (2, 512, 2)
        assert bytes(entry.image) == b"\x7fELF" + b"\x01" * 400
        assert entry.image.readonly


def test_a_pack_inside_a_larger_view_is_read_without_a_copy() -> None:
    outer = memoryview(bytes(4096) + PACK + b"more")
    opened = KernelPack.open(outer[4096 : 4096 + len(PACK)])
    opened.verify()
    assert opened.entry(VARIANTS[1].key).image.obj is outer.obj


def test_an_entry_is_made_once() -> None:
    opened = KernelPack.open(PACK)
    assert opened.entry(VARIANTS[0].key) is opened.entry(VARIANTS[0].key)


def test_missing_names_variants_that_are_neither_held_nor_left_out() -> None:
    other = variant(VARIANTS[0].kernel, BLOCK=2048)
    large = variant(VARIANTS[0].kernel, BLOCK=65536)
    opened = KernelPack.open(sample_pack(skipped={large.key: "needs too much shared memory"}))
    assert opened.missing([*VARIANTS, other, large]) == (other.key,)
    with breaks(KernelRule.VARIANT_MISSING, match="BLOCK=2048") as missing:
        opened.entry(other.key)
    assert "build it again" in missing.value.hint
    with breaks(KernelRule.VARIANT_MISSING, match="needs too much shared memory"):
        opened.entry(large.key)


def test_a_pack_for_another_gpu_is_refused_with_both_remedies() -> None:
    opened = KernelPack.open(PACK)
    opened.require("sm_90", "NVIDIA H200")
    with breaks(KernelRule.PACK_MISMATCH) as refused:
        opened.require("sm_89", "NVIDIA L4")
    assert "NVIDIA L4 needs sm_89" in refused.value.message
    assert "zse kernels build --gpu sm_89" in refused.value.hint
    assert "build the image with `--gpu sm_89`" in refused.value.hint
    assert "the extra `kernels`" in refused.value.hint


def test_code_before_9_0_runs_on_later_minors_and_newer_code_on_its_own_gpu_alone() -> None:
    KernelPack.open(sample_pack("sm_80")).require("sm_89")
    for target, device in (("sm_89", "sm_80"), ("sm_90", "sm_100"), ("sm_120", "sm_121")):
        with breaks(KernelRule.PACK_MISMATCH):
            KernelPack.open(sample_pack(target)).require(device)


def test_no_pack_at_a_path_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"none\.zkp"):
        KernelPack.open(tmp_path / "none.zkp")
    with pytest.raises(NotFoundError, match="not a regular file"):
        KernelPack.open(tmp_path)


# --- damaged and hostile ------------------------------------------------------------------------

DAMAGED = {
    "empty": (b"", Rule.TRUNCATED_HEADER),
    "another file": (b"\x7fELF" + PACK[4:], Rule.BAD_MAGIC),
    "another version": (PACK[:4] + b"\2" + PACK[5:], Rule.UNSUPPORTED_VERSION),
    "cut in the prefix": (PACK[:40], Rule.TRUNCATED_HEADER),
    "cut in the header": (PACK[:200], Rule.TRUNCATED_HEADER),
    "cut in the code": (PACK[:-256], Rule.TRUNCATED_KERNEL),
    "reserved bytes": (PACK[:50] + b"\1" + PACK[51:], Rule.RESERVED_BYTES_SET),
    "huge header": (
        PACK[:8] + (CONTAINER.max_header_bytes + 1).to_bytes(8, "little") + PACK[16:],
        Rule.HEADER_TOO_LARGE,
    ),
    "header of 2**64-1": (PACK[:8] + b"\xff" * 8 + PACK[16:], Rule.HEADER_TOO_LARGE),
    "header changed": (PACK[:70] + b"X" + PACK[71:], Rule.HEADER_CHECKSUM_MISMATCH),
    "not JSON": (assemble(b"{" * 9, b""), Rule.BAD_HEADER_JSON),
    "not UTF-8": (assemble(b'{"\xff":1}', b""), Rule.BAD_HEADER_ENCODING),
    "nested a million times": (assemble(b"[" * 1_000_000, b""), Rule.HEADER_TOO_DEEP),
    "a list": (assemble(b"[]", b""), Rule.BAD_HEADER_JSON),
    "more after the end": (PACK + bytes(256), Rule.TRAILING_BYTES),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_pack_is_refused_when_it_is_opened(name: str) -> None:
    data, rule = DAMAGED[name]
    with breaks(rule, error=KernelPackError) as refused:
        KernelPack.open(data)
    assert "pack" in refused.value.hint


def edited(change: Any) -> bytes:
    return edit_header(PACK, change)


HOSTILE_HEADERS = {
    "unknown field": (edited(lambda d: d.update(more=1)), Rule.BAD_HEADER_FIELD),
    "unknown target": (edited(lambda d: d.update(target="sm_35")), Rule.UNKNOWN_TARGET),
    "target of a wrong type": (edited(lambda d: d.update(target=[])), Rule.BAD_HEADER_FIELD),
    "entries no list": (edited(lambda d: d.update(entries={})), Rule.BAD_HEADER_FIELD),
    "entry no object": (edited(lambda d: d.update(entries=[1])), Rule.BAD_HEADER_FIELD),
    "entry without fields": (edited(lambda d: d.update(entries=[{}])), Rule.BAD_HEADER_FIELD),
    "provenance no text": (edited(lambda d: d["provenance"].update(zse=1)), Rule.BAD_HEADER_FIELD),
    "provenance with an escape": (
        edited(lambda d: d["provenance"].update(zse="\x1b]0;title\x07")),
        Rule.BAD_HEADER_FIELD,
    ),
    "a reason with an escape": (
        edited(lambda d: d.update(skipped=[["a", "\x1b[2J"]])),
        Rule.BAD_HEADER_FIELD,
    ),
    "a reason with half a character": (
        edited(lambda d: d.update(skipped=[["a", "\ud800"]])),
        Rule.BAD_HEADER_ENCODING,
    ),
    "skipped no pairs": (edited(lambda d: d.update(skipped=[["a"]])), Rule.BAD_HEADER_FIELD),
    "one key twice": (
        edited(lambda d: d["entries"][1].update(key=d["entries"][0]["key"])),
        Rule.DUPLICATE_NAME,
    ),
    "overlap": (edited(entry_edit(offset_bytes=256)), Rule.OVERLAPPING_KERNELS),
    "misaligned": (edited(entry_edit(offset_bytes=1281)), Rule.MISALIGNED_KERNEL),
    "negative offset": (edited(entry_edit(offset_bytes=-256)), Rule.NEGATIVE_OFFSET),
    "offset behind the end": (edited(entry_edit(offset_bytes=2**39)), Rule.TRUNCATED_KERNEL),
    "offset over every limit": (edited(entry_edit(offset_bytes=2**80)), Rule.OFFSET_OVERFLOW),
    "offset true": (edited(entry_edit(offset_bytes=True)), Rule.BAD_HEADER_FIELD),
    "huge length": (edited(entry_edit(code_bytes=2**62)), Rule.TRUNCATED_KERNEL),
    "length behind the end": (edited(entry_edit(code_bytes=4096)), Rule.TRUNCATED_KERNEL),
    "no length": (edited(entry_edit(code_bytes=0)), Rule.BAD_HEADER_FIELD),
    "no facts": (edited(entry_edit(facts_bytes=0)), Rule.BAD_HEADER_FIELD),
    "facts of a gigabyte": (edited(entry_edit(facts_bytes=2**30)), Rule.BAD_HEADER_FIELD),
    "short digest": (edited(entry_edit(sha256="ab")), Rule.BAD_DIGEST),
    "empty key": (edited(entry_edit(key="")), Rule.BAD_HEADER_FIELD),
    "key with a newline": (edited(entry_edit(key="a\nb")), Rule.BAD_HEADER_FIELD),
}


@pytest.mark.parametrize("name", HOSTILE_HEADERS)
def test_a_hostile_header_is_refused_when_the_pack_is_opened(name: str) -> None:
    data, rule = HOSTILE_HEADERS[name]
    with breaks(rule, error=KernelPackError):
        KernelPack.open(data)


HOSTILE_ENTRIES: dict[str, dict[str, Any]] = {
    "an unknown field": {"more": 1},
    "a path for a function": {"entry": "../scale"},
    "33 warps": {"num_warps": 33},
    "no warps": {"num_warps": 0},
    "warps true": {"num_warps": True},
    "fractional shared memory": {"shared_bytes": 1.5},
    "a terabyte of scratch": {"global_scratch_bytes": 2**40},
    "a word for a flag": {"programmatic": "yes"},
    "an unknown type": {"arguments": [["inputs", "*void"]], "aligned": []},
    "one argument twice": {"arguments": [["a", "i32"], ["a", "i32"]], "aligned": []},
    "alignment of nobody": {"aligned": ["nobody"]},
    "arguments no list": {"arguments": "inputs"},
    "a constant that is a list": {"constants": [["BLOCK", []]]},
}


@pytest.mark.parametrize("name", HOSTILE_ENTRIES)
def test_a_hostile_description_is_refused_when_its_kernel_is_asked_for(name: str) -> None:
    data = edit_facts(PACK, 1, lambda facts: facts.update(HOSTILE_ENTRIES[name]))
    opened = KernelPack.open(data)
    opened.entry(VARIANTS[1].key)
    with breaks(Rule.BAD_HEADER_FIELD, error=KernelPackError):
        opened.entry(VARIANTS[0].key)
    with breaks(Rule.BAD_HEADER_FIELD, error=KernelPackError):
        opened.verify()


def test_changed_code_is_refused_when_its_kernel_is_asked_for() -> None:
    opened = KernelPack.open(PACK[:-200] + b"\xff" + PACK[-199:])
    opened.entry(VARIANTS[1].key)
    with breaks(Rule.CHECKSUM_MISMATCH, match="BLOCK=128", error=KernelPackError):
        opened.entry(VARIANTS[0].key)


@pytest.mark.parametrize(
    ("raw", "rule"),
    [
        (b"{", Rule.BAD_HEADER_JSON),
        (b"[]", Rule.BAD_HEADER_JSON),
        (b"[" * 60_000, Rule.HEADER_TOO_DEEP),
        (b"\xff", Rule.BAD_HEADER_ENCODING),
    ],
)
def test_facts_that_are_no_object_are_refused(raw: bytes, rule: Rule) -> None:
    with breaks(rule, r"the description of sample\.scale", error=KernelPackError):
        KernelPack.open(replace_facts(PACK, 1, raw)).entry(VARIANTS[0].key)


def test_code_that_is_no_elf_is_refused() -> None:
    text = PACK.replace(b"\x7fELF\x01", b"#!/bi")
    data = replace_facts(text, 1, dump_canonical(facts(VARIANTS[0])))
    with breaks(Rule.NOT_A_CUBIN, match="ELF", error=KernelPackError):
        KernelPack.open(data).entry(VARIANTS[0].key)


def test_verify_sees_bytes_between_kernels() -> None:
    opened = KernelPack.open(PACK[:-1] + b"\1")
    assert len([opened.entry(key) for key in opened]) == 2
    with breaks(Rule.NON_ZERO_PADDING, error=KernelPackError):
        opened.verify()


def test_verify_refuses_another_spelling_of_the_header_or_of_facts() -> None:
    header = PACK[64 : 64 + HEADER_LENGTH].replace(b'"skipped":[]', b'"skipped": []')
    data = assemble(header, split(PACK)[1])
    with breaks(Rule.NOT_CANONICAL, match="canonical", error=KernelPackError):
        KernelPack.open(data).verify()
    spaced = dump_canonical(facts(VARIANTS[0])).replace(b",", b", ")
    with breaks(Rule.NOT_CANONICAL, match="canonical", error=KernelPackError):
        KernelPack.open(replace_facts(PACK, 1, spaced)).verify()
