"""Edits of a good .zse file, each a function from its bytes to the damaged bytes."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from typing import Any

Header = dict[str, Any]
Edit = Callable[[bytes], bytes]


def header_of(data: bytes) -> Header:
    """Return the header as JSON values."""
    length = struct.unpack_from("<Q", data, 8)[0]
    header: Header = json.loads(data[64 : 64 + length])
    return header


def with_raw_header(data: bytes, raw: bytes) -> bytes:
    """Return the file with another header, its length and digest set right."""
    space = min(s["offset"] for s in header_of(data)["sections"])
    prefix = struct.pack("<4sIQ32s16x", b"ZSE\0", 1, len(raw), hashlib.sha256(raw).digest())
    return (prefix + raw).ljust(space, b"\0") + data[space:]


def edited(edit: Callable[[Header], object]) -> Edit:
    """Return a builder that edits the header's JSON."""

    def build(data: bytes) -> bytes:
        header = header_of(data)
        edit(header)
        return with_raw_header(data, json.dumps(header, separators=(",", ":")).encode())

    return build


def raw_header(replace: Edit) -> Edit:
    """Return a builder that edits the header's bytes."""
    return lambda data: with_raw_header(
        data, replace(json.dumps(header_of(data), separators=(",", ":")).encode())
    )


def patched(offset: int, content: bytes) -> Edit:
    """Return a builder that overwrites bytes and leaves every digest as it was."""
    return lambda data: data[:offset] + content + data[offset + len(content) :]


def cut_at(where: Callable[[Header], int]) -> Edit:
    """Return a builder that cuts the file short."""
    return lambda data: data[: where(header_of(data))]


def resealed(tensor: int, part: int, content: bytes) -> Edit:
    """Return a builder that overwrites tensor data and makes the digests fit again."""

    def build(data: bytes) -> bytes:
        header = header_of(data)
        offset = header["tensors"][tensor]["parts"][part]["offset"]
        data = data[:offset] + content + data[offset + len(content) :]
        for group in header["groups"]:
            end = group["offset"] + group["length"]
            group["sha256"] = hashlib.sha256(data[group["offset"] : end]).hexdigest()
        return with_raw_header(data, json.dumps(header).encode())

    return build


def put(path: str, value: object) -> Edit:
    """Return a builder that sets one value of the header, such as ``tensors/0/shape``."""

    def edit(header: Header) -> None:
        place: Any = header
        *steps, last = [int(step) if step.isdecimal() else step for step in path.split("/")]
        for step in steps:
            place = place[step]
        place[last] = value

    return edited(edit)


def add(path: str, amount: int) -> Edit:
    """Return a builder that adds to one number of the header."""

    def build(data: bytes) -> bytes:
        place: Any = header_of(data)
        for step in path.split("/"):
            place = place[int(step) if step.isdecimal() else step]
        return put(path, place + amount)(data)

    return build


def deep(levels: int) -> Edit:
    """Return a builder that nests lists in the provenance."""
    return raw_header(
        lambda raw: raw.replace(b'"made for tests"', b"[" * levels + b"]" * levels, 1)
    )


def many_tensors_in_one_place(header: Header) -> None:
    """Claim 20,000 tensors that all lie on the same bytes."""
    first = header["tensors"][0]
    header["tensors"] = [{**first, "name": f"t{index}"} for index in range(20_000)]


def section_over_section(header: Header) -> None:
    header["sections"][1]["offset"] = header["sections"][0]["offset"]


def group_twice(header: Header) -> None:
    header["groups"][1]["name"] = header["groups"][0]["name"]


def copy_offset(source: int, target: int) -> Callable[[Header], None]:
    """Return an edit that lays one tensor's first part over another's."""

    def edit(header: Header) -> None:
        offset = header["tensors"][source]["parts"][0]["offset"]
        header["tensors"][target]["parts"][0]["offset"] = offset

    return edit


def tensor_into_sections(header: Header) -> None:
    header["tensors"][0]["parts"][0]["offset"] = header["sections"][1]["offset"]


def parts_in_two_groups(header: Header) -> None:
    int8, embedding = header["tensors"][-1], header["tensors"][0]
    free = embedding["parts"][0]["offset"] + embedding["parts"][0]["length"]
    int8["parts"][1]["offset"] = -(-free // 256) * 256


def empty_group(header: Header) -> None:
    end = header["groups"][-1]["offset"] + header["groups"][-1]["length"]
    header["groups"].append({"name": "more", "offset": end, "length": 0, "sha256": "0" * 64})
