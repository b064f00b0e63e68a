"""Small models whose prefixes leave and come back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from model_pairs import make_pair

from zse.engine.core import EngineCore
from zse.engine.loading import make_core
from zse.engine.request import Request, SamplingParams
from zse.format import ZSEReader
from zse.models.runner import load_runner
from zse.options import LoadOptions, load_options
from zse.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["make_pair"]

SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "num_hidden_layers": 2,
    "vocab_size": 300,
    "max_position_embeddings": 512,
    "eos_token_id": None,
}
"""A GPU's kernels have this width of a head."""
SIZES: dict[str, Any] = {"num_blocks": 64, "block_size": 8, "threads": 1, "max_sequences": 4}


def kernels_of() -> str:
    return load_settings().serve.load.device.kernels


class Engines:
    """Cores over one file, and what they answer."""

    def __init__(self, path: Path, device: str) -> None:
        self.path = path
        self.device = device
        self._open: list[tuple[EngineCore, ZSEReader]] = []

    def options(self, **changes: Any) -> LoadOptions:
        own = {"block_size": 32, "kernels": kernels_of()} if self.device == "cuda" else {}
        given = {"deterministic": True, **SIZES, **own, **changes}
        return load_options(device=self.device, **given)

    def core(self, **changes: Any) -> EngineCore:
        reader = ZSEReader(self.path)
        options = self.options(**changes)
        runner = load_runner(reader, options, cache_dir=load_settings().cache_dir)
        core = make_core(runner, options)
        assert isinstance(core, EngineCore)
        self._open.append((core, reader))
        return core

    def reader_of(self, core: EngineCore) -> ZSEReader:
        return next(reader for each, reader in self._open if each is core)

    def close(self) -> None:
        for core, reader in self._open:
            core.close()
            reader.close()
        self._open = []


DEVICES = [
    ("cpu", "qwen2"),
    ("cpu", "gemma3"),
    ("torch", "qwen2"),
    pytest.param(("cuda", "qwen2"), marks=pytest.mark.gpu),
    pytest.param(("cuda", "gemma3"), marks=pytest.mark.gpu),
]


@pytest.fixture(params=DEVICES, ids="-".join)
def engines(request: pytest.FixtureRequest, make_pair: Callable[..., Any]):
    device, family = request.param
    own = {"sliding_window": 24} if family == "gemma3" else {}
    found = Engines(make_pair(family, "int8", **SHAPE, **own).path, device)
    yield found
    found.close()


@pytest.fixture
def plain_engines(make_pair: Callable[..., Any]):
    found = Engines(make_pair("qwen2", "int8", **SHAPE).path, "cpu")
    yield found
    found.close()


def answer(core: EngineCore, prompt: list[int], *, salt: str = "", count: int = 6) -> list[int]:
    """Return the tokens that follow a prompt."""
    params = SamplingParams(max_tokens=count, temperature=0.8, seed=5)
    name = f"{len(prompt)}-{salt}-{core.stats().steps}"
    core.add_request(
        Request(request_id=name, prompt_token_ids=prompt, params=params, cache_salt=salt)
    )
    tokens: list[int] = []
    while core.has_work:
        tokens += [one.token_id for one in core.step() if one.token_id is not None]
        core.check_consistency()
    return tokens


@pytest.fixture(name="answer")
def answer_fixture() -> Callable[..., list[int]]:
    return answer
