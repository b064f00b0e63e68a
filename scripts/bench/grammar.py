"""What holding answers to a form costs: decode speed with a schema and without, side by side.

    python scripts/bench/grammar.py MODEL.zse --batch 1,32 --input 128 --output 256

Every way answers as many tokens. ``free``: any text. ``held``: a JSON schema whose answers never
end, one step a token, which is what the masks cost. ``jumps``: the same, and tokens that have no
choice are computed together. ``one of all``: one answer is held, the others are free. Where the
file's tokenizer has fewer tokens than the model has logits, made-up words stand for the rest, so
that a mask takes the work that a whole vocabulary asks for. Before that, what the host does between
the tokens of a step is measured alone: answers are advanced and their masks written, as ``held``
asks for. Prints tables, and one JSON object as the last line.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import string
import time
from statistics import mean
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from engine_runs import (
    add_device_arguments,
    middle,
    milliseconds,
    open_core,
    quantile,
    whole_numbers,
)
from machine import machine_facts

from zse.backends.types import mask_bytes
from zse.engine.meter import random_prompts, run_batch
from zse.format import ZSEReader
from zse.text.grammar import spec as forms
from zse.text.grammar.compile import GrammarCompiler
from zse.text.grammar.masks import MaskRows, write_masks
from zse.text.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from zse.engine.core import EngineCore
    from zse.text.grammar.state import Grammar

NEVER = 10**9
NAME = {"type": "string", "pattern": "^[A-Z][a-z]{2,9}( [A-Z][a-z]{2,9}){0,2}$"}
"""What ends by itself even where random weights write it."""
TEXT = {"type": "string"}


def schema_with(text: dict[str, Any], *, least: int = 100_000) -> dict[str, Any]:
    """Return the schema of a list of people, so long that no answer comes to its end."""
    address = {
        "street_name": text,
        "house_number": {"type": "integer", "minimum": 1, "maximum": 9999},
        "postal_code": {"type": "string", "pattern": "^[0-9]{5}$"},
    }
    person = {
        "identifier": {"type": "integer", "minimum": 1, "maximum": 99999},
        "full_name": text,
        "is_active": {"type": "boolean"},
        "favourite_colour": {"enum": ["red", "green", "blue", "yellow"]},
        "shipping_address": whole_object(address),
        "tags": {"type": "array", "items": text, "maxItems": 5},
    }
    return {"type": "array", "items": whole_object(person), "minItems": least}


def whole_object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


WAYS = ("free", "held", "jumps", "one of all")


class FilledTokenizer:
    """A tokenizer with made-up words for the ids that it has no text for."""

    def __init__(self, tokenizer: Any, vocab_size: int, seed: int) -> None:
        self._tokenizer = tokenizer
        self._pieces = [tokenizer.engine.token_bytes(i) for i in range(tokenizer.vocab_size)]
        known, draw = set(self._pieces), random.Random(seed)
        while len(self._pieces) < vocab_size:
            letters = "".join(draw.choices(string.ascii_letters, k=draw.randint(2, 9)))
            word = (draw.choice(("", " ")) + letters).encode()
            if word not in known:
                known.add(word)
                self._pieces.append(word)
        self.facts, self.special_ids = tokenizer.facts, tokenizer.special_ids
        self.vocab_size = len(self._pieces)
        self.engine = SimpleNamespace(token_bytes=self.token_bytes)

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces[token_id]

    def encode(self, text: str, **options: bool) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, **options)
        return ids

    def encode_within(self, text: str, **options: bool) -> list[int]:
        ids: list[int] = self._tokenizer.encode_within(text, **options)
        return ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a .zse file with a tokenizer")
    parser.add_argument("--batch", type=whole_numbers, default=[1, 32])
    parser.add_argument("--input", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--output", type=int, default=256, help="tokens of an answer")
    parser.add_argument(
        "--prompt", default="", help="text that a trained model goes on from; else random tokens"
    )
    parser.add_argument("--repeat", type=int, default=3, help="runs of which the median counts")
    add_device_arguments(parser)
    options = parser.parse_args()
    core = open_core(
        options,
        num_tokens=options.input + options.output,
        max_sequences=max(options.batch),
        max_batch_tokens=max(2048, *options.batch),
    )
    try:
        grammar, compiled = compile_schema(options, core)
        print(f"compiled in {compiled['first_ms']} ms, again in {compiled['again_ms']} ms")
        host = [measure_host(options, core, grammar, batch) for batch in options.batch]
        heading = ("batch", "way", "decode tok/s", "cost %", "step p50 ms")
        print(" ".join(f"{word:>13}" for word in heading))
        results = [row for batch in options.batch for row in measure(options, core, grammar, batch)]
    finally:
        core.close()
    facts: dict[str, Any] = {"subject": "grammar", "model": options.model, "compile": compiled}
    facts |= {name: getattr(options, name) for name in ("input", "output")} | machine_facts()
    print(json.dumps({**facts, "host": host, "results": results}))


def compile_schema(
    options: argparse.Namespace, core: EngineCore
) -> tuple[Grammar, dict[str, float]]:
    """Compile the schema for a whole vocabulary, twice: the second time it is only a new one.

    Then it is asked for by as many requests as run at once.
    """
    with ZSEReader(options.model) as reader:
        tokenizer = load_tokenizer(reader)
    vocab_size = core.runner.vocab_size
    filled = FilledTokenizer(tokenizer, vocab_size, options.seed)
    ends = tokenizer.eos_ids[:1] or (0,)
    compiler = GrammarCompiler(filled, vocab_size=vocab_size, end_token_ids=ends)  # type: ignore[arg-type]
    times = []
    text = TEXT if options.prompt else NAME
    for schema in (schema_with(text, least=1), schema_with(text)):
        began = time.perf_counter()
        grammar = compiler.compile(forms.json_schema(schema))
        times.append(milliseconds(time.perf_counter() - began))
    grammar.expect(max(options.batch) - 1)
    return grammar, {"first_ms": times[0], "again_ms": times[1]}


def measure_host(
    options: argparse.Namespace, core: EngineCore, grammar: Grammar, batch: int
) -> dict[str, Any]:
    """Lead answers through the schema by random tokens, and print what a step takes of the host."""
    draw, row_bytes = random.Random(options.seed), mask_bytes(core.runner.vocab_size)
    states = [grammar.begin() for _ in range(batch)]
    memory = ctypes.create_string_buffer(batch * row_bytes)
    banned = tuple(grammar.end_token_ids)
    spent: dict[str, list[float]] = {"advance": [], "masks": [], "masks_processor": []}
    for _ in range(options.output):
        began, worked = time.perf_counter(), time.process_time()
        wanted = [MaskRows(state, [banned]) for state in states]
        write_masks(wanted, ctypes.addressof(memory), row_bytes)
        spent["masks"].append(time.perf_counter() - began)
        spent["masks_processor"].append(time.process_time() - worked)
        rows = [memory[row * row_bytes : (row + 1) * row_bytes] for row in range(batch)]
        tokens = [allowed_token(row, draw) for row in rows]
        began = time.perf_counter()
        for state, token_id in zip(states, tokens, strict=True):
            state.advance(token_id)
        spent["advance"].append(time.perf_counter() - began)
    figures = {}
    for name, seconds in spent.items():
        figures[f"{name}_ms_mean"] = milliseconds(mean(seconds))
        for percent in (50, 90, 99):
            figures[f"{name}_ms_p{percent}"] = milliseconds(quantile(seconds, percent / 100))
    told = ", ".join(f"{name} {value}" for name, value in figures.items())
    print(f"host, {batch} held: {told}")
    return {"batch": batch, **figures}


def allowed_token(mask: bytes, draw: random.Random) -> int:
    """Return one of the tokens that a mask allows, near a place drawn at random."""
    bits = int.from_bytes(mask, "little")
    later = bits >> (place := draw.randrange(8 * len(mask))) << place or bits
    return (later & -later).bit_length() - 1


def prompts_for(
    options: argparse.Namespace, core: EngineCore, batch: int, number: int
) -> list[list[int]]:
    if not options.prompt:
        seed = hash((options.seed, batch, number))
        return random_prompts(core.runner.vocab_size, batch, options.input, seed)
    with ZSEReader(options.model) as reader:
        tokenizer = load_tokenizer(reader)
    return [
        tokenizer.encode(f"{options.prompt} ({number}, {place})\n")[: options.input]
        for place in range(batch)
    ]


def measure(
    options: argparse.Namespace, core: EngineCore, grammar: Grammar, batch: int
) -> list[dict[str, Any]]:
    """Measure every way at one batch size, in turns, and print their rows."""
    runs: dict[str, list[Any]] = {way: [] for way in WAYS}
    usual = core.least_jump
    for number in range(options.repeat + 1):
        prompts = prompts_for(options, core, batch, number)
        for way in WAYS:
            core.least_jump = usual if way == "jumps" else NEVER
            held = {"free": 0, "one of all": 1}.get(way, batch)
            run = run_batch(core, prompts, options.output, grammars=[grammar] * held)
            if number:  # graphs of this size are made in the first round
                runs[way].append(run)
    core.least_jump = usual
    free = middle(runs["free"]).decode_rate
    rows = []
    for way in WAYS:
        run = middle(runs[way])
        row = {
            "batch": batch,
            "way": way,
            "decode_tokens_per_second": round(run.decode_rate, 1),
            "cost_percent": round(100 * (1 - run.decode_rate / free), 2),
            "step_ms_p50": milliseconds(quantile(run.step_seconds, 0.5)),
        }
        print(" ".join(f"{value:>13}" for value in row.values()), flush=True)
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
