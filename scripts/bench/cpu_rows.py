"""The rows of the CPU's table: who is measured, and what is wanted.

A function makes a row of a ``Bench``; its files and programs are there when it returns, so that
nothing is made while it is measured.
"""

from __future__ import annotations

import json
import sys
import tempfile
from functools import partial
from typing import TYPE_CHECKING

from cpu_bench import Bench, first_token, output_of, served_decode, used_memory
from cpu_models import FAMILIES, vocabulary_of
from cpu_table import Goal, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cpu_table import Figures

RATE = "tokens_per_second"
KIND_OF_QUANT = {"int4": "q4_0", "int8": "q8_0"}
"""Our scheme -> llama.cpp's of about as many bits."""
BATCH = 8
DEFAULT = "zse, default settings"


def start(bench: Bench) -> Row:
    """Make the row of the first token, each server also at its best: little context, no warm-up."""
    vocabulary = vocabulary_of("0.5B")
    servers = {
        DEFAULT: bench.zse_server("0.5B", "int4"),
        "zse, context of 4096": bench.zse_server("0.5B", "int4", "--max-context", "4096"),
        "llama-server": bench.llama_server("0.5B", "q4_0"),
        "llama-server, no warm-up": bench.llama_server("0.5B", "q4_0", "--no-warmup"),
    }
    return Row(
        title="exec to the first token over HTTP, 0.5B, INT4 beside Q4_0",
        figure="first_token_ms",
        more_is_better=False,
        subjects={
            name: partial(first_token, server, vocabulary) for name, server in servers.items()
        },
        goals=(
            Goal(of=DEFAULT, over=("llama-server",), must=0.5),
            Goal(of=DEFAULT, stretch=350),
        ),
        surroundings=bench.surroundings,
    )


def start_tiny(bench: Bench) -> Row:
    server = bench.zse_server("tiny", "int8")
    return Row(
        title="exec to the first token over HTTP, built-in model, started as images start it",
        figure="first_token_ms",
        more_is_better=False,
        subjects={DEFAULT: lambda: first_token(server, 300)},
        goals=(Goal(of=DEFAULT, must=350, stretch=250),),
        surroundings=bench.surroundings,
    )


def decode(
    bench: Bench,
    *,
    size: str,
    quant: str,
    kind: str = "",
    more: tuple[str, ...] = (),
    must: float,
    stretch: float,
) -> Row:
    """Make a row of one request's decoding.

    Args:
        kind: llama.cpp's form; empty: of about as many bits.
        more: Further forms of llama.cpp's.
    """
    kinds = (kind or KIND_OF_QUANT[quant], *more)
    return Row(
        title=f"decode, one request, {size} {quant}",
        figure=RATE,
        subjects={
            f"zse {quant}": partial(bench.zse_decode, size, quant),
            **{f"llama.cpp {kind}": partial(bench.llama_decode, size, kind) for kind in kinds},
        },
        goals=(
            Goal(of=f"zse {quant}", over=(f"llama.cpp {kinds[0]}",), must=must, stretch=stretch),
        ),
        surroundings=bench.surroundings,
    )


def decode_nf4(bench: Bench) -> Row:
    return Row(
        title="decode, one request, 0.5B nf4 beside int4",
        figure=RATE,
        subjects={
            f"zse {quant}": partial(bench.zse_decode, "0.5B", quant) for quant in ("nf4", "int4")
        },
        goals=(Goal(of="zse nf4", over=("zse int4",), must=0.9, stretch=1.0),),
        surroundings=bench.surroundings,
    )


def decode_http(bench: Bench) -> Row:
    vocabulary, tokens = vocabulary_of("0.5B"), bench.lengths.decode
    servers = {
        # Random weights repeat themselves, which drafts would gain by.
        "zse int4": bench.zse_server("0.5B", "int4", "--max-context", "4096", "--speculate", "off"),
        "llama-server q4_0": bench.llama_server("0.5B", "q4_0"),
    }
    return Row(
        title="decode over HTTP, one request, 0.5B int4",
        figure=RATE,
        subjects={
            name: partial(served_decode, server, vocabulary, tokens)
            for name, server in servers.items()
        },
        goals=(Goal(of="zse int4", over=("llama-server q4_0",), must=1.15, stretch=1.3),),
        surroundings=bench.surroundings,
    )


def batch(bench: Bench) -> Row:
    return Row(
        title=f"decode, {BATCH} requests at once, together, 0.5B int4",
        figure=RATE,
        subjects={
            f"zse, {BATCH} at once": partial(bench.zse_decode, "0.5B", "int4", batch=BATCH),
            "zse, one": partial(bench.zse_decode, "0.5B", "int4"),
            f"llama.cpp, {BATCH} at once": partial(bench.llama_batch, "0.5B", "q4_0", BATCH),
            "llama.cpp, one": partial(bench.llama_decode, "0.5B", "q4_0"),
        },
        goals=(Goal(of=f"zse, {BATCH} at once", over=("zse, one",), must=3.5, stretch=5.0),),
        surroundings=bench.surroundings,
    )


def prefill(bench: Bench, *, size: str, quant: str, must: float, stretch: float) -> Row:
    kind = KIND_OF_QUANT[quant]
    return Row(
        title=f"prefill, {bench.lengths.prefill} tokens, {size} {quant}",
        figure=RATE,
        subjects={
            f"zse {quant}": partial(bench.zse_prefill, size, quant),
            f"llama.cpp {kind}": partial(bench.llama_prefill, size, kind),
        },
        goals=(Goal(of=f"zse {quant}", over=(f"llama.cpp {kind}",), must=must, stretch=stretch),),
        surroundings=bench.surroundings,
    )


def memory(bench: Bench) -> Row:
    """Make the row of a server's memory; llama-server's context is the least that does."""
    vocabulary = vocabulary_of("0.5B")
    servers = {
        DEFAULT: bench.zse_server("0.5B", "int4"),
        "llama-server": bench.llama_server("0.5B", "q4_0"),
    }
    file_bytes = bench.models.zse("0.5B", "int4").stat().st_size
    return Row(
        title=f"resident memory after 2,048 tokens, 0.5B, INT4 ({file_bytes} bytes) beside Q4_0",
        figure="resident_bytes",
        more_is_better=False,
        subjects={
            name: partial(used_memory, server, vocabulary) for name, server in servers.items()
        },
        goals=(
            Goal(of=DEFAULT, over=("llama-server",), must=1.05),
            Goal(of=DEFAULT, stretch=file_bytes + 60e6),
        ),
        surroundings=bench.surroundings,
    )


def neighbours(bench: Bench) -> Row:
    count = bench.threads
    return Row(
        title=f"decode beside {count} busy neighbours on {count} cores, 0.5B int4",
        figure=RATE,
        subjects={
            "zse int4": partial(bench.zse_decode, "0.5B", "int4"),
            "llama.cpp q4_0": partial(bench.llama_decode, "0.5B", "q4_0"),
        },
        goals=(Goal(of="zse int4", over=("llama.cpp q4_0",), must=1.1),),
        surroundings=partial(bench.surroundings, neighbours=count),
    )


def quota(bench: Bench) -> Row:
    """Make the row of a quota: what zse chooses by itself beside each number of threads."""
    by_hand = {
        f"zse, {count} thread{'s' * (count > 1)}": partial(
            bench.zse_decode, "0.5B", "int4", "--threads", str(count)
        )
        for count in (1, bench.threads)
    }
    llama = {
        f"llama.cpp, -t {count}": partial(bench.llama_decode, "0.5B", "q4_0", threads=count)
        for count in (1, bench.threads)
    }
    return Row(
        title="decode under a quota of one core, 0.5B int4",
        figure=RATE,
        subjects={
            DEFAULT: partial(bench.zse_decode, "0.5B", "int4"),
            **by_hand,
            **llama,
        },
        goals=(Goal(of=DEFAULT, over=tuple(by_hand), must=0.97),),  # as good, but for noise
        surroundings=partial(bench.surroundings, cores=1.0),
    )


def image(bench: Bench) -> Row:
    return Row(
        title="CPU image, compressed, without a model",
        figure="image_bytes",
        more_is_better=False,
        subjects={"zse": image_bytes},
        goals=(Goal(of="zse", must=40e6, stretch=36e6),),
        surroundings=bench.surroundings,
    )


def image_bytes() -> Figures:
    """Build the image and return its size; layers that are in the cache are not built again."""
    with tempfile.TemporaryDirectory() as folder:
        command = (sys.executable, "-m", "zse", "build-image", "tiny", "--name", "bench:cpu")
        options = ("--recipe", "cpu", "--model", "volume", "--output", f"oci:{folder}/image")
        built = json.loads(output_of([*command, *options, "--json"]))
    return {"image_bytes": built["size_bytes"] - built["model_size_bytes"]}


ROWS: Mapping[str, Callable[[Bench], Row]] = {
    "start": start,
    "start_tiny": start_tiny,
    "decode_int4": partial(
        decode, size="0.5B", quant="int4", more=("q4_k_m",), must=1.15, stretch=1.3
    ),
    "decode_int4_1b": partial(
        decode, size="1.1B", quant="int4", more=("q4_k_m",), must=1.15, stretch=1.3
    ),
    "decode_int8": partial(decode, size="0.5B", quant="int8", must=1.1, stretch=1.2),
    "decode_int8_1b": partial(decode, size="1.1B", quant="int8", must=1.1, stretch=1.2),
    "decode_nf4": decode_nf4,
    "decode_a3b": partial(decode, size="A3B", quant="int4", must=0.9, stretch=1.3),
    # Its experts are MXFP4 in both files, all else has eight bits.
    "decode_gpt_oss": partial(
        decode, size="gpt-oss", quant="int8", kind="mxfp4", must=0.9, stretch=1.1
    ),
    **{
        f"decode_family_{name}": partial(decode, size=name, quant="int4", must=0.9, stretch=1.3)
        for name in FAMILIES
    },
    "decode_http": decode_http,
    "batch": batch,
    "prefill_int4": partial(prefill, size="0.5B", quant="int4", must=1.3, stretch=2.0),
    "prefill_int8": partial(prefill, size="0.5B", quant="int8", must=1.7, stretch=2.5),
    "prefill_int4_1b": partial(prefill, size="1.1B", quant="int4", must=1.3, stretch=2.0),
    "prefill_int8_1b": partial(prefill, size="1.1B", quant="int8", must=1.7, stretch=2.5),
    "prefill_a3b": partial(prefill, size="A3B", quant="int4", must=0.9, stretch=2.0),
    "memory": memory,
    "neighbours": neighbours,
    "quota": quota,
    "image": image,
}


def chosen(words: str) -> list[str]:
    """Return the names of rows that begin with one of the words; all of no word.

    Raises:
        ValueError: No row begins with a word.
    """
    wanted = [word for word in words.split(",") if word]
    unknown = [word for word in wanted if not any(name.startswith(word) for name in ROWS)]
    if unknown:
        raise ValueError(f"no row begins with {', '.join(unknown)}; there are {', '.join(ROWS)}")
    return [name for name in ROWS if not wanted or name.startswith(tuple(wanted))]
