"""Grade the built-in model: 300 questions, greedy, at each quantization, through ``zse.LLM``.

    .venv/bin/python scripts/bench/quality.py [--quant fp16 int8 nf4 int4] [--limit N]
    python scripts/bench/quality.py --device cuda --against cpu

Prints a table of right answers by category, and one JSON object as the last line. An answer is
right when it is the expected text, or for JSON and tool calls the expected value. ``--against``
asks a second device too and counts the answers that are the same, token for token.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from zse.engine.answers import Completion

QUESTIONS = ROOT / "tests" / "data" / "questions.jsonl"
QUANTIZATIONS = ("fp16", "int8", "nf4", "int4")
MAX_TOKENS = 64


def load_questions(limit: int = 0) -> list[dict]:
    """The committed questions; with a limit, spread over all categories."""
    rows = [json.loads(line) for line in QUESTIONS.read_text(encoding="utf-8").splitlines()]
    step = len(rows) / limit if 0 < limit < len(rows) else 1
    return [rows[int(i * step)] for i in range(int(len(rows) / step))]


def calls_of(answer: str) -> list[tuple[str, dict]]:
    """Return the calls in an answer, in the form that the built-in model writes them in."""
    called = re.findall(r"<tool_call>(.*?)</tool_call>", answer, re.DOTALL)
    try:
        return [(call["name"], call["arguments"]) for call in map(json.loads, called)]
    except (ValueError, KeyError, TypeError):
        return []


def is_right(row: dict, answer: str) -> bool:
    """Whether an answer is the expected one."""
    if row["category"] == "tools":
        return calls_of(answer) == calls_of(row["answer"])
    if row["category"] == "json":
        try:
            return bool(json.loads(answer) == json.loads(row["answer"]))
        except ValueError:
            return False
    return answer.strip() == row["answer"]


def model_path(model: str | Path, quant: str, cache_dir: Path) -> Path:
    """Return the .zse file of a model at one quantization; a .zse file is taken as it is."""
    if str(model).endswith(".zse"):
        return Path(model)
    from zse.quantize.locate import locate_model
    from zse.settings import Settings

    return locate_model(model, Settings(cache_dir=cache_dir), quant=quant)


def ask(path: Path, rows: list[dict], device: str) -> list[Completion]:
    """Answer all questions greedily on one device."""
    from zse.engine.llm import LLM
    from zse.engine.request import SamplingParams

    with LLM(path, device=device) as llm:
        prompts = [llm.chat_prompt(row["messages"], tools=row.get("tools")) for row in rows]
        outputs = llm.generate(prompts, SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0))
    return [output.outputs[0] for output in outputs]


def grade(
    model: str | Path,
    quant: str,
    rows: list[dict],
    cache_dir: Path,
    *,
    device: str = "cpu",
    against: str = "",
) -> dict:
    """Ask all questions at one quantization.

    Returns:
        ``accuracy`` from 0 to 1, ``right`` and ``asked`` by category, ``wrong`` answers, seconds;
        with ``against``, how many answers are ``same`` there and which are ``different``.
    """
    path = model_path(model, quant, cache_dir)
    asked, right, wrong = Counter(row["category"] for row in rows), Counter(), []
    started = time.monotonic()
    answers = ask(path, rows, device)
    seconds = time.monotonic() - started
    for row, answer in zip(rows, answers, strict=True):
        if is_right(row, answer.text):
            right[row["category"]] += 1
        else:
            wrong.append({"id": row["id"], "answer": answer.text})
    result = {
        "accuracy": sum(right.values()) / len(rows),
        "right": {category: right[category] for category in asked},
        "asked": dict(asked),
        "wrong": wrong,
        "file_bytes": path.stat().st_size,
        "seconds": round(seconds, 2),
    }
    if against:
        others = ask(path, rows, against)
        different = [
            {"id": row["id"], device: one.text, against: other.text}
            for row, one, other in zip(rows, answers, others, strict=True)
            if one.token_ids != other.token_ids
        ]
        result |= {"same": len(rows) - len(different), "different": different}
    return result


def print_table(results: dict[str, dict]) -> None:
    asked = next(iter(results.values()))["asked"]
    print(f"{'category':<12}" + "".join(f"{quant:>10}" for quant in results))
    for category, count in asked.items():
        cells = (f"{result['right'][category]}/{count}" for result in results.values())
        print(f"{category:<12}" + "".join(f"{cell:>10}" for cell in cells))
    print(f"{'all':<12}" + "".join(f"{r['accuracy']:>10.1%}" for r in results.values()))
    if all("same" in result for result in results.values()):
        print(f"{'same tokens':<12}" + "".join(f"{r['same']:>10}" for r in results.values()))


def main() -> None:
    from machine import machine_facts

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny", help="a built-in, folder or .zse file")
    parser.add_argument("--quant", nargs="+", default=QUANTIZATIONS, choices=QUANTIZATIONS)
    parser.add_argument("--limit", type=int, default=0, help="ask only this many questions")
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--against", default="", help="a device whose tokens must be the same")
    options = parser.parse_args()
    rows = load_questions(options.limit)
    quants = ["file"] if options.model.endswith(".zse") else options.quant
    with tempfile.TemporaryDirectory(prefix="zse-quality-") as folder:
        results = {
            quant: grade(
                options.model,
                quant,
                rows,
                Path(folder),
                device=options.device,
                against=options.against,
            )
            for quant in quants
        }
    print_table(results)
    facts = {"subject": "quality", "model": options.model, **machine_facts()}
    facts |= {"run_on": options.device, "against": options.against}
    print(json.dumps({**facts, "num_questions": len(rows), "results": results}))


if __name__ == "__main__":
    main()
