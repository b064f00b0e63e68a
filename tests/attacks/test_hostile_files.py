"""Every hostile file ends in an error that names the rule that it breaks.

All of them ran under a limit of 512 MiB over the idle interpreter, so an allocation of a claimed
size (up to 2**64 bytes) would show as a MemoryError, and a hang as a child that never ends.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import hostile_files
import pytest

from zse.errors import NotFoundError
from zse.format.reader import ZSEReader

ELSEWHERE = {  # in packs, in tokenizers, and while a file is read: tests beside those
    hostile_files.Rule.TOKENIZER,
    hostile_files.Rule.FILE_SHRANK,
    hostile_files.Rule.UNKNOWN_TARGET,
    hostile_files.Rule.MISALIGNED_KERNEL,
    hostile_files.Rule.TRUNCATED_KERNEL,
    hostile_files.Rule.OVERLAPPING_KERNELS,
    hostile_files.Rule.NOT_CANONICAL,
    hostile_files.Rule.NOT_A_CUBIN,
}


@pytest.mark.parametrize("attack", hostile_files.ATTACKS, ids=lambda attack: attack.name)
def test_hostile_file_ends_in_its_own_error(
    attack: hostile_files.Attack, outcomes: dict[str, str]
) -> None:
    assert outcomes[attack.name] == attack.rule


def test_good_file_is_accepted_under_the_same_limit(outcomes: dict[str, str]) -> None:
    assert outcomes["the good file"] == "accepted"


def test_every_rule_of_the_format_is_attacked() -> None:
    attacked = {attack.rule for attack in hostile_files.ATTACKS}
    assert set(hostile_files.Rule) - attacked == ELSEWHERE


def test_attack_names_are_unique() -> None:
    names = [attack.name for attack in hostile_files.ATTACKS]
    assert len(names) == len(set(names))


def test_named_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "model.zse"
    os.mkfifo(pipe)
    found: list[str] = []

    def open_pipe() -> None:
        try:
            ZSEReader(pipe)
        except NotFoundError as error:
            found.append(error.message)

    thread = threading.Thread(target=open_pipe, daemon=True)
    thread.start()
    thread.join(timeout=60)
    assert found == [f"{pipe} is not a regular file"]


def test_rejected_file_leaves_no_descriptor_open(tmp_path: Path) -> None:
    path = tmp_path / "bad.zse"
    path.write_bytes(b"ZSE\0" + b"\xff" * 60)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        with pytest.raises(hostile_files.FormatError):
            ZSEReader(path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
