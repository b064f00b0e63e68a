"""Put mutants into a copy of the tree, one at a time, and run the tests that should notice.

The tests of a mutant are those that mirror its file, then the rest of its package's, then those
that drive it from above; the first that fails kills it. The sample is drawn with a seed, evenly
from the packages, so the same code gives the same mutants. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from operators import mutants_of

from zse.settings import subprocess_environment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from operators import Mutant

ROOT = Path(__file__).resolve().parents[2]
SURVIVORS = Path(__file__).with_name("survivors.toml")
PACKAGES = ("engine", "kv", "format", "oci", "serve")
# Who also notices, beside a package's own tests.
ALSO = {"kv": ("engine",), "format": ("attacks", "quantize/test_convert.py")}
NO_TEST_COLLECTED = 5


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One mutant and where it is."""

    package: str
    path: str
    """Of the file, from the root."""
    mutant: Mutant
    line: str
    """The changed line as it is, and below as it becomes; stripped."""
    changed: str


@dataclass(frozen=True, kw_only=True)
class Outcome:
    trial: Trial
    killed_by: str
    """The test that failed; empty for a survivor."""
    seconds: float


def draw(packages: Sequence[str], count: int, seed: int) -> list[Trial]:
    """Return a sample of ``count`` mutants, the same number of each package."""
    chosen: list[Trial] = []
    for index, package in enumerate(packages):
        trials = [
            trial
            for path in sorted((ROOT / "zse" / package).rglob("*.py"))
            for trial in _trials(package, path)
        ]
        share = count // len(packages) + (index < count % len(packages))
        chosen += random.Random(f"{seed}/{package}").sample(trials, min(share, len(trials)))
    return chosen


def _trials(package: str, path: Path) -> list[Trial]:
    text = path.read_text()
    found = []
    for mutant in mutants_of(text):
        changed = mutant.apply(text)
        index = mutant.line_number - 1
        found.append(
            Trial(
                package=package,
                path=str(path.relative_to(ROOT)),
                mutant=mutant,
                line=_first_difference(text, changed, index, of=text),
                changed=_first_difference(text, changed, index, of=changed),
            )
        )
    return found


def _first_difference(before: str, after: str, start: int, *, of: str) -> str:
    """Return the first line at or after ``start`` in which two texts differ, as in ``of``."""
    pairs = list(zip(before.splitlines()[start:], after.splitlines()[start:], strict=False))
    offset = next((i for i, (one, other) in enumerate(pairs) if one != other), 0)
    return of.splitlines()[start + offset].strip()


class Tree:
    """A copy of what the tests need, into which mutants are put."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, folder / name)

    def try_mutant(self, trial: Trial, *, timeout_seconds: float) -> Outcome:
        """Put a mutant in, run its tests until one fails, take it out."""
        path = self._folder / trial.path
        text = path.read_text()
        began = time.monotonic()
        path.write_text(trial.mutant.apply(text))
        try:
            killed_by = self._first_failure(self._tests_of(trial), timeout_seconds)
        finally:
            path.write_text(text)
        return Outcome(trial=trial, killed_by=killed_by, seconds=time.monotonic() - began)

    def check_unchanged(self, packages: Sequence[str], *, timeout_seconds: float) -> str:
        """Return the test that fails in the tree as it is, or nothing."""
        folders = [
            f"tests/{name}" for package in packages for name in (package, *ALSO.get(package, ()))
        ]
        return self._first_failure([sorted(set(folders))], timeout_seconds)

    def _tests_of(self, trial: Trial) -> list[list[str]]:
        """Return groups of tests, those that notice soonest first."""
        parts = Path(trial.path).relative_to("zse").parts
        mirror = Path("tests", *parts[:-1], f"test_{parts[-1]}")
        groups = [[str(mirror)]] if (self._folder / mirror).exists() else []
        others = [f"tests/{name}" for name in (trial.package, *ALSO.get(trial.package, ()))]
        return [*groups, others]

    def _first_failure(self, groups: Sequence[Sequence[str]], timeout_seconds: float) -> str:
        for tests in groups:
            command = [
                sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow and not system",
                "-p", "no:cacheprovider", "--no-header", *tests,
            ]  # fmt: skip
            environment = subprocess_environment(
                PYTHONPATH=str(self._folder), PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1"
            )
            try:
                run = subprocess.run(
                    command,
                    cwd=self._folder,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=timeout_seconds,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return f"a test of {tests[0]} that never ended"
            if run.returncode not in (0, NO_TEST_COLLECTED):
                failed = [
                    line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))
                ]
                return (failed or [f"{tests[0]}: pytest ended with {run.returncode}"])[0]
        return ""


def explanations() -> dict[tuple[str, str, str], str]:
    """Return why known survivors survive, by path, line and changed line."""
    entries = tomllib.loads(SURVIVORS.read_text()).get("survivor", [])
    return {(e["path"], e["line"], e["changed"]): e["why"] for e in entries}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--package", action="append", choices=PACKAGES, help="again and again")
    parser.add_argument("--count", type=int, default=40, help="mutants in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one mutant's tests")
    options = parser.parse_args()
    packages = options.package or list(PACKAGES)
    trials = draw(packages, options.count, options.seed)
    known = explanations()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="zse-mutants-") as folder:
        tree = Tree(Path(folder))
        if broken := tree.check_unchanged(packages, timeout_seconds=4 * options.timeout):
            print(f"error: the tests fail before anything is changed: {broken}", file=sys.stderr)
            return 2
        for number, trial in enumerate(trials, 1):
            outcome = tree.try_mutant(trial, timeout_seconds=options.timeout)
            outcomes.append(outcome)
            print(f"{number}/{len(trials)} {describe(outcome, known)}", flush=True)
    return report(outcomes, known, options.seed)


def describe(outcome: Outcome, known: dict[tuple[str, str, str], str]) -> str:
    """Return what became of a mutant, on one line or, for a survivor, on four."""
    trial = outcome.trial
    place = f"{trial.path}:{trial.mutant.line_number} {trial.mutant.kind}"
    if outcome.killed_by:
        return f"killed    {place} ({outcome.seconds:.0f} s)"
    why = known.get((trial.path, trial.line, trial.changed), "not explained: a test is missing")
    return f"SURVIVED  {place}\n    {trial.line}\n    {trial.changed}\n    {why}"


def report(outcomes: list[Outcome], known: dict[tuple[str, str, str], str], seed: int) -> int:
    """Print the table and the JSON line; return the exit code."""
    survivors = [o.trial for o in outcomes if not o.killed_by]
    unexplained = [t for t in survivors if (t.path, t.line, t.changed) not in known]
    print(f"{'package':10}{'mutants':>10}{'killed':>10}{'survived':>10}")
    for package in dict.fromkeys(o.trial.package for o in outcomes):
        ours = [o for o in outcomes if o.trial.package == package]
        killed = sum(bool(o.killed_by) for o in ours)
        print(f"{package:10}{len(ours):>10}{killed:>10}{len(ours) - killed:>10}")
    facts = {
        "subject": "mutants",
        "seed": seed,
        "mutants": len(outcomes),
        "killed": len(outcomes) - len(survivors),
        "survived_explained": len(survivors) - len(unexplained),
        "survived_unexplained": [
            f"{t.path}:{t.mutant.line_number}: {t.changed}" for t in unexplained
        ],
    }
    print(json.dumps(facts))
    return 1 if unexplained else 0


if __name__ == "__main__":
    os.nice(5)
    sys.exit(main())
