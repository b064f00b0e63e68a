"""Write a .zse file with the shapes of a well-known model and random weights, at disk speed.

The file is valid: it opens, verifies, loads and answers (nonsense). The weights are normal with a
standard deviation of 0.02, so that activations stay finite. The tokenizer and the chat template
are those of the built-in model; ids above its vocabulary have no text. The same arguments give the
same bytes. The last line is one JSON object.

    python scripts/bench/make_model.py --like qwen2.5-7b --quant int4 -o /dev/shm/7b.zse
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import hashlib
import json
import mmap
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from model_shapes import CONFIGS
from random_parts import Patterns

from zse import __version__
from zse.errors import ZSEError
from zse.format.layout import UNKNOWN_DIGEST, PlannedFile, plan_layout
from zse.format.spec import CONTAINER
from zse.models.builtin import builtin_checkpoint
from zse.models.families import read_checkpoint
from zse.models.storage import ATTENTIONS, Storage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.format.spec import Group, TensorEntry, TensorPart, ZSEHeader

QUANTS = ("int4", "int3", "int2", "nf4", "nl4", "mxfp4", "int8", "bf16")
PIECE_BYTES = 8 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--like", choices=CONFIGS, required=True)
    parser.add_argument("--quant", choices=QUANTS, default="int4")
    parser.add_argument("--group-size", type=int, help="weights that share a scale")
    parser.add_argument("--attention", choices=ATTENTIONS, default="auto")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=min(16, os.cpu_count() or 1))
    parser.add_argument("--tokenizer", type=Path, help="checkpoint folder whose tokenizer to carry")
    parser.add_argument(
        "--no-digest",
        action="store_true",
        help="leave zeros for the groups' SHA-256: faster, but the file does not verify",
    )
    options = parser.parse_args()
    started = time.monotonic()
    size_bytes = make_model(
        options.out,
        like=options.like,
        quant=options.quant,
        group_size=options.group_size,
        attention=options.attention,
        seed=options.seed,
        threads=options.threads,
        digest=not options.no_digest,
        tokenizer=options.tokenizer,
    )
    seconds = time.monotonic() - started
    report = {
        "path": str(options.out),
        "like": options.like,
        "quant": options.quant,
        "size_bytes": size_bytes,
        "seconds": round(seconds, 2),
        "gigabytes_per_second": round(size_bytes / 1e9 / seconds, 2),
    }
    print(json.dumps(report, sort_keys=True))


def make_model(
    out: Path,
    *,
    like: str,
    quant: str,
    group_size: int | None = None,
    attention: str = "auto",
    seed: int = 0,
    threads: int = 4,
    digest: bool = True,
    tokenizer: Path | None = None,
    max_position: int = 0,
) -> int:
    """Write the file; it appears under its name when it is whole. Return its size in bytes."""
    longest = {"max_position_embeddings": max_position} if max_position else {}
    config_json = {**CONFIGS[like], **longest}
    storage = Storage(quantization=quant, group_size=group_size, attention=attention)
    planned = plan_file(config_json, storage, seed, tokenizer or builtin_checkpoint("tiny"))
    layout = plan_layout(planned)
    draft = out.with_name(f"{out.name}.{os.getpid()}.partial")
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.truncate(fd, layout.file_size_bytes)  # what lies between the parts is zeros
        for section, (_, data) in zip(layout.header.sections, planned.sections, strict=True):
            write_all(fd, memoryview(data), section.offset_bytes)
        header = write_groups(fd, layout.header, layout.members, seed, threads, digest=digest)
        raw = header.to_bytes()
        write_all(fd, memoryview(CONTAINER.seal(raw)), 0)
        draft.replace(out)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    return layout.file_size_bytes


def plan_file(config_json: dict, storage: Storage, seed: int, tokenizer: Path) -> PlannedFile:
    spec = read_checkpoint(config_json)
    return PlannedFile(
        architecture=spec.family,
        model_config=spec.header,
        provenance={
            "source": "random weights",
            "tool": f"make_model, zse {__version__}",
            "options": {"quantization": storage.quantization, "seed": seed},
        },
        sections=sections_from(tokenizer, config_json),
        groups=[
            (group.name, [storage.plan_tensor(weight) for weight in group.weights])
            for group in spec.groups()
        ],
    )


def sections_from(folder: Path, config_json: dict) -> list[tuple[str, bytes]]:
    """Return what a conversion carries: this model's configuration, the folder's tokenizer."""
    sections = {"config.json": json.dumps(config_json, sort_keys=True).encode()}
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        path = folder / name
        if path.is_file():
            sections[name] = path.read_bytes()
    template = json.loads(sections["tokenizer_config.json"]).get("chat_template")
    if isinstance(template, str):
        sections["chat_template.jinja"] = template.encode()
    binary = binary_tokenizer(sections["tokenizer.json"])
    if binary is not None:
        sections["tokenizer.kitoken"] = binary
    return sorted(sections.items())


def binary_tokenizer(tokenizer_json: bytes) -> bytes | None:
    """Return the fast form; None where the packages that make it are not installed."""
    try:
        from zse.text.binary import build_binary

        return build_binary(tokenizer_json)
    except (ImportError, ZSEError) as error:
        print(f"no binary tokenizer: {error}", file=sys.stderr)
        return None


# --- the tensor region --------------------------------------------------------------------------


def write_groups(
    fd: int,
    header: ZSEHeader,
    members: dict[str, tuple[TensorEntry, ...]],
    seed: int,
    threads: int,
    *,
    digest: bool,
) -> ZSEHeader:
    """Write every group, several at once; return the header with their digests.

    Through a mapping: threads that write to one file wait for each other, those that copy into its
    pages do not.
    """
    require_room(fd)
    patterns = Patterns(seed)
    runs = {}  # made before the threads, which would each make their own
    for entry in header.tensors:
        for part in entry.parts:
            pattern, _ = patterns.of_part(entry, part)
            if id(pattern) not in runs:
                runs[id(pattern)] = memoryview(bytearray(pattern * -(-PIECE_BYTES // len(pattern))))
    phases = {entry.name: 7919 * index for index, entry in enumerate(header.tensors)}

    def pieces_of(entries: tuple[TensorEntry, ...]) -> Iterator[tuple[memoryview, int]]:
        """Yield ``(bytes, offset in the file)`` in file order."""
        for entry in entries:
            for part in entry.parts:
                pattern, element_bytes = patterns.of_part(entry, part)
                phase = phases[entry.name] * element_bytes % len(pattern)
                yield from repeated(part, runs[id(pattern)], phase)

    def write(group: Group) -> Group:
        running = hashlib.sha256()
        position = group.offset_bytes
        for piece, offset in pieces_of(members[group.name]):
            copy_into(mapped, piece, offset)
            if digest:
                running.update(bytes(offset - position))
                running.update(piece)
            position = offset + len(piece)
        running.update(bytes(group.end_bytes - position))
        return replace(group, sha256=running.hexdigest() if digest else UNKNOWN_DIGEST)

    # The largest groups first: a digest is one thread's work.
    by_size = sorted(header.groups, key=lambda group: -group.length_bytes)
    with mmap.mmap(fd, 0) as mapped, ThreadPoolExecutor(threads) as pool:
        written = {group.name: group for group in pool.map(write, by_size)}
    return replace(header, groups=tuple(written[group.name] for group in header.groups))


def require_room(fd: int) -> None:
    """Raise where the file's pages would not fit: a mapping ends the process with a signal then."""
    room, wanted = os.fstatvfs(fd), os.fstat(fd).st_size
    if room.f_bavail * room.f_frsize < wanted:
        raise OSError(errno.ENOSPC, f"the file takes {wanted} bytes, more than are free")


def repeated(part: TensorPart, run: memoryview, phase: int) -> Iterator[tuple[memoryview, int]]:
    """Fill a part with a run of whole patterns, from ``phase`` on, in pieces of some megabytes."""
    offset = part.offset_bytes
    while offset < part.end_bytes:
        piece = run[phase : phase + part.end_bytes - offset]
        yield piece, offset
        offset += len(piece)
        phase = 0


def copy_into(target: mmap.mmap, piece: memoryview, offset: int) -> None:
    """Copy bytes without the interpreter's lock, which an assignment to a slice keeps."""
    into = ctypes.addressof(ctypes.c_char.from_buffer(target, offset))
    ctypes.memmove(into, ctypes.addressof(ctypes.c_char.from_buffer(piece)), len(piece))


def write_all(fd: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)


if __name__ == "__main__":
    main()
