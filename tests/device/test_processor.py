"""What the processor is and says it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from zse.device import processor
from zse.device.processor import architecture, features, names_of_capabilities

if TYPE_CHECKING:
    from pathlib import Path

needs_flags = pytest.mark.skipif(architecture() != "amd64", reason="arm64 has no flags")


def test_this_machine_is_called_as_images_call_it() -> None:
    assert architecture() in {"amd64", "arm64"}


def test_this_processor_has_what_all_of_its_kind_have() -> None:
    assert {"amd64": "sse2", "arm64": "asimd"}[architecture()] in features()


@needs_flags
def test_flags_are_those_of_the_first_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "processor\t: 0\nflags\t\t: fpu avx2 fma\n\nprocessor\t: 1\nflags\t: fpu\n"
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(processor, "_CPUINFO", tmp_path / "cpuinfo")
    assert features() == {"fpu", "avx2", "fma"}


@needs_flags
@pytest.mark.parametrize("text", [None, "", "no such line"])
def test_a_system_that_does_not_say_is_believed_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(processor, "_CPUINFO", tmp_path / "cpuinfo")
    assert features() == frozenset()


def test_bits_of_the_auxiliary_vector_have_the_names_of_cpuinfo() -> None:
    assert names_of_capabilities(0, 0) == frozenset()
    assert names_of_capabilities(1 << 1 | 1 << 20, 0) == {"asimd", "asimddp"}
    assert names_of_capabilities(1 << 8, 1 << 13) == {"atomics", "i8mm"}
