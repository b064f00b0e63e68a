"""llama.cpp's server with all layers on the GPU, flash attention on, one slot of 4096 tokens."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from timed_server import TimedServer, measure_starts, spread

from peers.errors import PeerNotRunError
from zse.deploy.errors import ColdStartError

if TYPE_CHECKING:
    from pathlib import Path


def measure_llama_server(
    settings: dict, *, work: Path, repeat: int, vocabulary: int, executable: str, kind: str
) -> dict:
    """Return medians of the start, decode speed and GPU memory.

    Raises:
        PeerNotRunError: There is no executable, or no ``gguf`` package to make a model with.
    """
    found = shutil.which(executable)
    if found is None:
        raise PeerNotRunError(f"there is no executable {executable}")
    try:
        from peers.make_gguf import make_gguf
    except ImportError as error:
        raise PeerNotRunError(f"a model cannot be made: {error}") from error
    work.mkdir(parents=True, exist_ok=True)
    model = work / f"{settings['hidden_size']}x{settings['num_hidden_layers']}-{kind}.gguf"
    if not model.is_file():
        make_gguf(model, settings, kind)  # what was just written is in the page cache
    command = [found, "-m", str(model), "-c", "4096", "-np", "1", "-ngl", "99", "-fa", "on"]
    server = TimedServer(
        name="llama-server",
        command=lambda port: [*command, "--port", str(port)],
        ready_path="/health",
        path="/completion",
        body=_body,
    )
    try:
        measured = measure_starts(server, repeat=repeat, vocabulary=vocabulary)
    except (ColdStartError, RuntimeError) as error:
        raise PeerNotRunError(str(error)) from error
    result: dict = {"model_bytes": model.stat().st_size, "kind": kind}
    for phase in ("ready", "first-token"):
        name = phase.replace("-", "_")
        for key, value in spread([start.milestones[phase] for start in measured.starts]).items():
            result[f"{name}_ms_{key}"] = value
    result["decode_tokens_per_second"] = round(measured.decode_tokens_per_second, 1)
    result["gpu_bytes"] = measured.gpu_bytes
    return result


def _body(prompt: list[int], tokens: int, streamed: bool) -> dict[str, object]:
    return {
        "prompt": prompt,
        "n_predict": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": False,
        "stream": streamed,
    }
