"""Kernel packs: the bytes, what they say, and what a damaged or hostile one is answered with."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

import pytest
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

from zse.errors import NotFoundError, ZSEError
from zse.kernels import pack_errors as errors
from zse.kernels.build.writer import assemble, write_whole
from zse.kernels.pack import KernelPack, PackEntry
from zse.kernels.pack_header import MAX_HEADER_BYTES, canonical
from zse.kernels.variant import variant

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
        assert sorted(opened.keys()) == sorted(v.key for v in VARIANTS)
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
    with pytest.raises(errors.KernelVariantMissing, match="BLOCK=2048") as missing:
        opened.entry(other.key)
    assert "build it again" in missing.value.hint
    with pytest.raises(errors.KernelVariantMissing, match="needs too much shared memory"):
        opened.entry(large.key)


def test_a_pack_for_another_gpu_is_refused_with_both_remedies() -> None:
    opened = KernelPack.open(PACK)
    opened.require("sm_90", "NVIDIA H200")
    with pytest.raises(errors.KernelPackMismatch) as refused:
        opened.require("sm_89", "NVIDIA L4")
    assert "NVIDIA L4 needs sm_89" in refused.value.message
    assert "zse kernels build --gpu sm_89" in refused.value.hint
    assert "build the image with `--gpu sm_89`" in refused.value.hint
    assert "the extra `kernels`" in refused.value.hint


def test_code_before_9_0_runs_on_later_minors_and_newer_code_on_its_own_gpu_alone() -> None:
    KernelPack.open(sample_pack("sm_80")).require("sm_89")
    for target, device in (("sm_89", "sm_80"), ("sm_90", "sm_100"), ("sm_120", "sm_121")):
        with pytest.raises(errors.KernelPackMismatch):
            KernelPack.open(sample_pack(target)).require(device)


def test_no_pack_at_a_path_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"none\.zkp"):
        KernelPack.open(tmp_path / "none.zkp")
    with pytest.raises(NotFoundError, match="not a regular file"):
        KernelPack.open(tmp_path)


# --- damaged and hostile ------------------------------------------------------------------------

DAMAGED = {
    "empty": (b"", errors.BadPackMagic),
    "another file": (b"\x7fELF" + PACK[4:], errors.BadPackMagic),
    "another version": (PACK[:4] + b"\2" + PACK[5:], errors.UnsupportedPackVersion),
    "cut in the prefix": (PACK[:40], errors.TruncatedPack),
    "cut in the header": (PACK[:200], errors.TruncatedPack),
    "cut in the code": (PACK[:-256], errors.TruncatedPack),
    "reserved bytes": (PACK[:50] + b"\1" + PACK[51:], errors.PackReservedBytesSet),
    "huge header": (
        PACK[:8] + (MAX_HEADER_BYTES + 1).to_bytes(8, "little") + PACK[16:],
        errors.PackHeaderTooLarge,
    ),
    "header of 2**64-1": (PACK[:8] + b"\xff" * 8 + PACK[16:], errors.PackHeaderTooLarge),
    "header changed": (PACK[:70] + b"X" + PACK[71:], errors.PackHeaderChecksumMismatch),
    "not JSON": (assemble(b"{" * 9, b""), errors.BadPackHeader),
    "not ASCII": (assemble('{"ä":1}'.encode(), b""), errors.BadPackHeader),
    "nested a million times": (assemble(b"[" * 1_000_000, b""), errors.BadPackHeader),
    "a list": (assemble(b"[]", b""), errors.BadPackHeader),
    "more after the end": (PACK + bytes(256), errors.PackTrailingBytes),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_pack_is_refused_when_it_is_opened(name: str) -> None:
    data, error = DAMAGED[name]
    with pytest.raises(error) as refused:
        KernelPack.open(data)
    assert isinstance(refused.value, errors.KernelPackError)
    assert isinstance(refused.value, ZSEError)
    assert refused.value.hint


def edited(change: Any) -> bytes:
    return edit_header(PACK, change)


HOSTILE_HEADERS = {
    "unknown field": (edited(lambda d: d.update(more=1)), errors.BadPackHeader),
    "unknown target": (edited(lambda d: d.update(target="sm_35")), errors.UnknownPackTarget),
    "target of a wrong type": (edited(lambda d: d.update(target=[])), errors.UnknownPackTarget),
    "entries no list": (edited(lambda d: d.update(entries={})), errors.BadPackField),
    "entry no object": (edited(lambda d: d.update(entries=[1])), errors.BadPackField),
    "entry without fields": (edited(lambda d: d.update(entries=[{}])), errors.BadPackField),
    "provenance no text": (edited(lambda d: d["provenance"].update(zse=1)), errors.BadPackField),
    "provenance with an escape": (
        edited(lambda d: d["provenance"].update(zse="\x1b]0;title\x07")),
        errors.BadPackField,
    ),
    "a reason with an escape": (
        edited(lambda d: d.update(skipped=[["a", "\x1b[2J"]])),
        errors.BadPackField,
    ),
    "a reason with half a character": (
        edited(lambda d: d.update(skipped=[["a", "\ud800"]])),
        errors.BadPackField,
    ),
    "skipped no pairs": (edited(lambda d: d.update(skipped=[["a"]])), errors.BadPackField),
    "one key twice": (
        edited(lambda d: d["entries"][1].update(key=d["entries"][0]["key"])),
        errors.DuplicatePackKey,
    ),
    "overlap": (edited(entry_edit(offset_bytes=256)), errors.OverlappingKernels),
    "misaligned": (edited(entry_edit(offset_bytes=1281)), errors.MisalignedKernel),
    "negative offset": (edited(entry_edit(offset_bytes=-256)), errors.BadPackField),
    "offset behind the end": (edited(entry_edit(offset_bytes=2**39)), errors.TruncatedPack),
    "offset over every limit": (edited(entry_edit(offset_bytes=2**80)), errors.BadPackField),
    "offset true": (edited(entry_edit(offset_bytes=True)), errors.BadPackField),
    "huge length": (edited(entry_edit(code_bytes=2**62)), errors.BadPackField),
    "length behind the end": (edited(entry_edit(code_bytes=4096)), errors.TruncatedPack),
    "no length": (edited(entry_edit(code_bytes=0)), errors.BadPackField),
    "no facts": (edited(entry_edit(facts_bytes=0)), errors.BadPackField),
    "facts of a gigabyte": (edited(entry_edit(facts_bytes=2**30)), errors.BadPackField),
    "short digest": (edited(entry_edit(sha256="ab")), errors.BadPackField),
    "empty key": (edited(entry_edit(key="")), errors.BadPackField),
    "key with a newline": (edited(entry_edit(key="a\nb")), errors.BadPackField),
}


@pytest.mark.parametrize("name", HOSTILE_HEADERS)
def test_a_hostile_header_is_refused_when_the_pack_is_opened(name: str) -> None:
    data, error = HOSTILE_HEADERS[name]
    with pytest.raises(error):
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
    with pytest.raises(errors.BadPackField):
        opened.entry(VARIANTS[0].key)
    with pytest.raises(errors.BadPackField):
        opened.verify()


def test_changed_code_is_refused_when_its_kernel_is_asked_for() -> None:
    opened = KernelPack.open(PACK[:-200] + b"\xff" + PACK[-199:])
    opened.entry(VARIANTS[1].key)
    with pytest.raises(errors.KernelChecksumMismatch, match="BLOCK=128"):
        opened.entry(VARIANTS[0].key)


@pytest.mark.parametrize("raw", [b"{", b"[]", b"[" * 60_000, b"\xff"])
def test_facts_that_are_no_object_are_refused(raw: bytes) -> None:
    with pytest.raises(errors.BadPackField):
        KernelPack.open(replace_facts(PACK, 1, raw)).entry(VARIANTS[0].key)


def test_code_that_is_no_elf_is_refused() -> None:
    text = PACK.replace(b"\x7fELF\x01", b"#!/bi")
    data = replace_facts(text, 1, canonical(facts(VARIANTS[0])))
    with pytest.raises(errors.NotACubin, match="ELF"):
        KernelPack.open(data).entry(VARIANTS[0].key)


def test_verify_sees_bytes_between_kernels() -> None:
    opened = KernelPack.open(PACK[:-1] + b"\1")
    assert len([opened.entry(key) for key in opened]) == 2
    with pytest.raises(errors.PackPaddingSet):
        opened.verify()


def test_verify_refuses_another_spelling_of_the_header_or_of_facts() -> None:
    header = PACK[64 : 64 + HEADER_LENGTH].replace(b'"skipped":[]', b'"skipped": []')
    data = assemble(header, split(PACK)[1])
    with pytest.raises(errors.BadPackHeader, match="canonical"):
        KernelPack.open(data).verify()
    spaced = canonical(facts(VARIANTS[0])).replace(b",", b", ")
    with pytest.raises(errors.BadPackHeader, match="canonical"):
        KernelPack.open(replace_facts(PACK, 1, spaced)).verify()
