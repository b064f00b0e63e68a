"""Files of the same shapes and random weights for both sides of a CPU's table, made once."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from make_model import make_model
from model_shapes import CONFIGS

if TYPE_CHECKING:
    from collections.abc import Callable

    from peers.llama_cpp import LlamaCpp

    from zse.settings import Settings

SHAPES = {
    "0.5B": "qwen2.5-0.5b",
    "1.1B": "tinyllama-1.1b",
    "A3B": "qwen3-a3b-4-layers",
    "gpt-oss": "gpt-oss-3-layers",
    "hybrid": "qwen3.6-a3b-4-layers",
    "deepseek_v2": "deepseek-v2-latents-3-layers",
    "deepseek_v3": "deepseek-v3-3-layers",
    "gemma2": "gemma-2-2b-6-layers",
    "gemma3": "gemma-3-4b-6-layers",
    "gemma4": "gemma-4-6-layers",
    "glm4": "glm-4-9b-4-layers",
    "gpt2": "gpt2-medium",
    "granite": "granite-3-2b-8-layers",
    "glm45": "glm-4.5-air-3-layers",
    "mistral": "mistral-7b-4-layers",
    "mixtral": "mixtral-8x7b-2-layers",
    "olmo2": "olmo-2-1b-8-layers",
    "olmo3": "olmo-3-7b-4-layers",
    "phi3": "phi-3-mini-6-layers",
    "qwen2_moe": "qwen1.5-a2.7b-4-layers",
    "qwen3": "qwen3-4b-6-layers",
    "qwen3_5": "qwen3.5-4b-4-layers",
    "qwen3_next": "qwen3-next-4-layers",
    "smollm3": "smollm3-3b-8-layers",
    "starcoder2": "starcoder2-3b-8-layers",
}
QUANTIZED_SIZES = ("0.5B", "1.1B")
"""Whose forms llama.cpp makes itself; a mixture's 16-bit form would fill a disk."""
FAMILIES = tuple(name for name in SHAPES if name not in (*QUANTIZED_SIZES, "A3B", "gpt-oss"))
GGUF_KINDS = ("q4_0", "q4_k_m", "q8_0")
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, kw_only=True)
class ModelFiles:
    """A folder of models; what is not there is made when it is asked for."""

    folder: Path
    llama: Callable[[], LlamaCpp]

    def zse(self, size: str, quant: str) -> Path:
        """Return a .zse file of a size, one of ``SHAPES``."""
        path = self.folder / f"{SHAPES[size]}-{quant}.zse"
        if not path.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            make_model(path, like=SHAPES[size], quant=quant)
        return path

    def gguf(self, size: str, kind: str) -> Path:
        """Return a GGUF of the same shape, in the mix that llama.cpp's own quantizer chooses."""
        path = self.folder / f"{SHAPES[size]}-{kind}.gguf"
        if not path.is_file():
            if size in QUANTIZED_SIZES:
                self._quantize_all(size)
            else:
                self._make(size, kind, path)
        return path

    def _make(self, size: str, kind: str, path: Path) -> None:
        maker = (sys.executable, str(HERE / "peers" / "make_gguf.py"))
        self.folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [*maker, "--like", SHAPES[size], "--kind", kind, "-o", str(path)],
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def _quantize_all(self, size: str) -> None:
        """Make a file of 16 bits, every kind from it, and remove it."""
        source = self.folder / f"{SHAPES[size]}-f16.gguf"
        self._make(size, "f16", source)
        for kind in GGUF_KINDS:
            self.llama().quantize(source, self.folder / f"{SHAPES[size]}-{kind}.gguf", kind)
        source.unlink()


def tiny_model(settings: Settings) -> Path:
    """Return the built-in model as images carry it."""
    from zse.quantize.locate import locate_model

    return locate_model("tiny", settings, quant="int8")


def vocabulary_of(size: str) -> int:
    return int(CONFIGS[SHAPES[size]]["vocab_size"])
