"""What others take for the same: measured in the same run, on random weights of the same shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from peers.errors import PeerNotRunError
from peers.hf_bnb import measure_hf_bnb
from peers.llama_server import measure_llama_server

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["PeerNotRunError", "measure_peer"]


def measure_peer(
    peer: str,
    settings: dict,
    *,
    work: Path,
    repeat: int,
    vocabulary: int,
    llama_server: str,
    gguf_kind: str,
) -> dict:
    """Measure one peer.

    Args:
        peer: ``hf-bnb`` or ``llama-server``.
        settings: The model's config.json.
        work: Where its files are made; what is there already is used.
        repeat: Starts that count.
        vocabulary: Prompts hold ids below this.
        llama_server: Executable.
        gguf_kind: ``q4_k`` or ``q4_0``.

    Raises:
        PeerNotRunError: It cannot be run here.
    """
    if peer == "hf-bnb":
        return measure_hf_bnb(settings, work=work, repeat=repeat)
    if peer == "llama-server":
        return measure_llama_server(
            settings,
            work=work,
            repeat=repeat,
            vocabulary=vocabulary,
            executable=llama_server,
            kind=gguf_kind,
        )
    raise PeerNotRunError(f"there is no peer {peer!r}")
