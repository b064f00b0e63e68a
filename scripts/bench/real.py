"""What each scheme takes from a trained model: the table of docs/quantization.md, in one run.

    python scripts/bench/real.py CHECKPOINT --work FOLDER [--problems HumanEval.jsonl.gz]
        [--schemes bf16 int8 "int4 --group-size 64"] [--device cuda] [--peers bnb-nf4]
        [--seconds 540]

For each scheme, which is what `zse convert --quant` takes with its flags: the conversion beside
`cp` of the checkpoint; KL and the same first choice against the checkpoint in float32; the KL that
8-bit activations in decoding and an 8-bit KV cache add, of the file against itself; HumanEval, with
an 8-bit KV cache too, and the difference from the first scheme, problem by problem. Each figure is
one `zse` command, which stderr shows.

Every figure is kept in FOLDER as soon as it is there, HumanEval answer by answer. Run it again to
go on, with --seconds where time comes in slices,
and with --jobs to do several at once; remove FOLDER to measure anew. The table is
printed as it stands, and one JSON object as the last line.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from machine import machine_facts
from real_table import table

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMES = ("bf16", "int8", "int4", "nf4")
PARTS = ("convert", "distance", "activations", "kv", "humaneval", "humaneval_kv")
KV = ("--kv-dtype", "int8")
_PEER = Path(__file__).parent / "peers" / "rounded_weights.py"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One cell of the table: the command that fills it prints JSON in its last line."""

    row: str
    part: str
    command: list[str]
    needs: tuple[tuple[str, str], ...] = ()
    """Row and part of the figures that must be there before, or have failed."""


class OutOfTimeError(Exception):
    """The seconds of this run are over."""


class Kept:
    """The figures that are there, in a file.

    Args:
        folder: Where everything lies.
        seconds: When no command may run any longer.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "figures.json"
        self._writing = Lock()
        self._deadline = time.monotonic() + seconds
        self.rows: dict[str, dict[str, Any]] = {}
        if self._path.exists():
            self.rows = json.loads(self._path.read_text())

    def fill(self, figure: Figure) -> None:
        """Measure a figure unless it is there; a command that fails leaves its cell empty.

        Raises:
            OutOfTimeError: There is no time for it, or it took more.
        """
        row = self.rows.setdefault(figure.row, {})
        if figure.part in row:
            return
        print(f"{figure.row}: {shlex.join(figure.command)}", file=sys.stderr)
        left = self._deadline - time.monotonic()
        started = time.monotonic()
        try:
            done = subprocess.run(
                figure.command, stdout=subprocess.PIPE, text=True, timeout=max(left, 0), check=True
            )
        except subprocess.TimeoutExpired as error:
            raise OutOfTimeError from error
        except subprocess.CalledProcessError as error:
            print(f"{figure.row}: {figure.part} ended with {error.returncode}", file=sys.stderr)
            return
        found = json.loads(done.stdout.splitlines()[-1])
        self.keep(figure, found | {"measured_seconds": round(time.monotonic() - started, 1)})

    def keep(self, figure: Figure, found: dict[str, Any]) -> None:
        """Write a figure down, whole or not at all."""
        with self._writing:
            self.rows.setdefault(figure.row, {})[figure.part] = found
            waiting = self._path.with_suffix(".new")
            waiting.write_text(json.dumps(self.rows, indent=1))
            waiting.replace(self._path)


def main() -> None:
    options = arguments()
    kept = Kept(options.work, options.seconds)
    try:
        fill_all(kept, list(figures(options)), options)
    except OutOfTimeError:
        print("the time is over: run it again to go on", file=sys.stderr)
    print(table(kept.rows))
    facts = {"subject": "real", "model": str(options.checkpoint), **machine_facts()}
    print(json.dumps({**facts, "run_on": options.device, "rows": kept.rows}))


def fill_all(kept: Kept, wanted: list[Figure], options: argparse.Namespace) -> None:
    """Measure what is wanted, so many at once: each when what it needs is there.

    Raises:
        OutOfTimeError: Not all of it could be measured in the time.
    """
    waiting, running, is_over = list(wanted), dict[Future[None], Figure](), False
    with ThreadPoolExecutor(options.jobs) as workers:
        while waiting or running:
            unfinished = {(one.row, one.part) for one in (*waiting, *running.values())}
            ready = [one for one in waiting if not unfinished & set(one.needs)]
            for figure in ready[: options.jobs - len(running)]:
                waiting.remove(figure)
                running[workers.submit(fill, kept, figure, options)] = figure
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                del running[future]
                if isinstance(future.exception(), OutOfTimeError):
                    waiting.clear()  # those that run end as well, when the time does
                    is_over = True
                else:
                    future.result()
    if is_over:
        raise OutOfTimeError


def fill(kept: Kept, figure: Figure, options: argparse.Namespace) -> None:
    """Measure a figure; beside a conversion, `cp` of what was converted."""
    kept.fill(figure)
    converted = kept.rows[figure.row].get("convert", {})
    if figure.part == "convert" and converted and "copy_seconds" not in converted:
        beside = copy_seconds(options.checkpoint, options.work / f"{slug(figure.row)}-copied")
        kept.keep(figure, converted | {"copy_seconds": beside})


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="files and figures are kept here")
    parser.add_argument("--schemes", nargs="+", default=list(SCHEMES))
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--problems", type=Path, help="HumanEval's; else the package's")
    parser.add_argument("--samples", type=int, default=1, help="answers to a problem")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--tokens", type=int, default=1024, help="of each text, for KL")
    parser.add_argument("--decoded", type=int, default=256, help="of each text, token by token")
    parser.add_argument("--text", type=Path, nargs="+", default=[], help="instead of the sample")
    parser.add_argument("--peers", nargs="*", default=[], choices=("bnb-nf4",))
    parser.add_argument("--jobs", type=int, default=1, help="commands that run at once")
    parser.add_argument(
        "--seconds", type=float, default=float(1 << 20), help="of this run, at most"
    )
    return parser.parse_args()


def figures(options: argparse.Namespace) -> Iterator[Figure]:
    """Yield what the table consists of, part by part: as asked, else the quick figures first."""
    rows = [(scheme, options.work / f"{slug(scheme)}.zse") for scheme in options.schemes]
    texts = [word for path in options.text for word in ("--text", str(path))]
    for part in options.parts:
        for scheme, path in rows:
            needs = needed(part, scheme, options)
            words = command(part, scheme, path, options)
            yield Figure(row=scheme, part=part, command=words, needs=needs)
        if part == "distance":
            for peer in options.peers:
                words = [peer, str(options.checkpoint), "--tokens", str(options.tokens), *texts]
                yield Figure(row=peer, part=part, command=[sys.executable, str(_PEER), *words])


def needed(part: str, scheme: str, options: argparse.Namespace) -> tuple[tuple[str, str], ...]:
    """Return what a figure waits for: its file, and what the first scheme leaves for all."""
    if part == "convert":
        return ()
    found, first = [(scheme, "convert")], options.schemes[0]
    if part == "distance" and scheme != first:
        found.append((first, "distance"))  # whose run keeps the logits of the checkpoint
    if part.startswith("humaneval") and (scheme, part) != (first, "humaneval"):
        found.append((first, "humaneval"))  # whose answers the others are held against
    return tuple(found)


def command(part: str, scheme: str, path: Path, options: argparse.Namespace) -> list[str]:
    """Return the command that measures one part of a row."""
    zse = [sys.executable, "-m", "zse"]
    file, checkpoint = str(path), str(options.checkpoint)
    if part == "convert":
        flags = ["--quant", *shlex.split(scheme), "--force", "--json"]
        return [*zse, "convert", checkpoint, "-o", file, *flags]
    evaluate = [*zse, "eval", file, "--device", options.device, "--json"]
    if part.startswith("humaneval"):
        return [*evaluate, *task_flags(part, path, options)]
    for text in options.text:
        evaluate += ["--text", str(text)]
    if part == "distance":
        evaluate += ["--logits", str(options.work / "logits")]
        return [*evaluate, "--against", checkpoint, "--tokens", str(options.tokens)]
    evaluate += ["--against", file, "--as", "decode", "--tokens", str(options.decoded)]
    return evaluate if part == "activations" else [*evaluate, "--exact-activations", *KV]


def task_flags(part: str, path: Path, options: argparse.Namespace) -> list[str]:
    """Return how HumanEval is asked; what is compared with is the first scheme, its KV whole."""
    name, first = path.stem, slug(options.schemes[0])
    flags = ["--task", "humaneval", "--samples", str(options.samples)]
    flags += ["--temperature", str(options.temperature)]
    if options.problems:
        flags += ["--problems", str(options.problems)]
    if part == "humaneval_kv":
        name += "-kv"
        flags += KV
    if name != first:
        flags += ["--against", str(options.work / f"{first}.jsonl")]
    return [*flags, "--answers", str(options.work / f"{name}.jsonl")]


def slug(scheme: str) -> str:
    """Return a scheme and its flags as the name of a file."""
    return re.sub(r"[^A-Za-z0-9]+", "-", scheme)


def copy_seconds(checkpoint: Path, target: Path) -> float:
    """Return what `cp` of the checkpoint takes: what a conversion that only read and wrote would.

    The pages were read a moment ago, as they were for the second conversion and those after it.
    """
    started = time.monotonic()
    subprocess.run(["cp", "-r", str(checkpoint), str(target)], check=True)
    seconds = time.monotonic() - started
    shutil.rmtree(target)
    return round(seconds, 2)


if __name__ == "__main__":
    main()
