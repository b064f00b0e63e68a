"""From a front's words to a stage on this node: the same file, the same options, some layers."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, TypeAlias

from zse.engine.opening import open_file
from zse.errors import MeshError, UnsupportedModelError
from zse.failures import deliberate
from zse.format.reader import ZSEReader
from zse.mesh.devices import NodeDevices
from zse.mesh.stage_parts import open_part
from zse.option import with_values
from zse.options import load_options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.format.model_file import ModelFile
    from zse.mesh.messages import AskOpen
    from zse.mesh.shared_stage import SharedStage
    from zse.mesh.stage_parts import StagePart
    from zse.options import LoadOptions
    from zse.settings import Settings

AnyStage: TypeAlias = "StagePart | SharedStage"
_SAME_EVERYWHERE = (
    *("kv_dtype", "block_size", "exact_activations", "deterministic", "prefill_precision"),
    *("max_context", "max_sequences", "max_batch_tokens"),
)
"""Options that decide bits or blocks: the front's hold on all nodes."""

_OWN = ("kernels", "cpu_instructions", "vram_gib", "prefill_weights")
"""Options that are this machine's, whatever the front has: which kernels there are, and room."""


def digest_of(reader: ModelFile) -> str:
    """Return what two files have in common whose weights and numbers are the same."""
    digest = hashlib.sha256(repr(sorted(reader.header.model_config.items())).encode())
    for group in reader.header.groups:
        digest.update(f"{group.name}:{group.sha256};".encode())
    return digest.hexdigest()


def shared_options(options: LoadOptions, num_blocks: int) -> dict[str, Any]:
    """Return the options that every node computes with."""
    found: dict[str, Any] = {"num_blocks": num_blocks}
    for part in (options.device, options.cache, options.batch):
        found |= {key: getattr(part, key) for key in _SAME_EVERYWHERE if hasattr(part, key)}
    return found


def opener(
    settings: Settings,
    *,
    model: str = "",
    threads: int = 0,
    devices: NodeDevices | None = None,
) -> Callable[[AskOpen], AnyStage]:
    """Return what opens stages on this node.

    Args:
        settings: Of this node.
        model: Where its copy of the model is, whatever the front calls it; empty: as the front.
        threads: That compute on a CPU; 0: as many as are good.
        devices: What computes; None: the processor.
    """
    here, owned = settings.serve.load, devices or NodeDevices()
    own = {name: getattr(here.device, name) for name in _OWN}
    own["rank_timeout_seconds"] = here.ranks.timeout_seconds

    def open_stage(ask: AskOpen) -> AnyStage:
        try:
            return open_kind(ask)
        except OSError as error:  # a full disk, no right to read, no memory
            raise deliberate(error, settings.cache_dir) from error

    def open_kind(ask: AskOpen) -> AnyStage:
        unknown = set(ask.options) - {*_SAME_EVERYWHERE, "num_blocks"}
        if unknown:
            raise MeshError(f"a front asks for options that are not known: {sorted(unknown)}")
        names = owned.first(ask.devices)
        options = load_options(**ask.options)
        options = with_values(options, {**own, "device": names[0], "threads": threads})
        # All of it lies here, whatever computes: a stage is read in place, not as it arrives.
        reader = open_file(model or ask.model, with_values(options, {"device": "cpu"}), settings)
        try:
            opened = open_on(_checked(reader, ask.digest), ask.layers, options, names, settings)
        except BaseException:
            reader.close()
            raise
        if ask.kind not in ("", found := kind_of(opened)):
            opened.close()
            raise MeshError(
                f"this node computes as {found}, the one that it is to stand by for as {ask.kind}",
                hint="A node stands by for those of its own kind: start another one like that.",
            )
        return opened

    return open_stage


def open_on(
    reader: ZSEReader,
    layers: tuple[int, int],
    options: LoadOptions,
    devices: Sequence[str],
    settings: Settings,
) -> AnyStage:
    """Return some layers on one device, or on several that share each of them."""
    if len(devices) == 1:
        return open_part(reader, layers, options, cache_dir=settings.cache_dir)
    from zse.mesh.shared_stage import open_shared_stage

    return open_shared_stage(reader, layers, options, devices, cache_dir=settings.cache_dir)


def _checked(reader: ModelFile, digest: str) -> ZSEReader:
    """Return a file that is the front's, too."""
    if not isinstance(reader, ZSEReader):
        raise UnsupportedModelError(f"{reader.path} is no file of this machine")
    if (found := digest_of(reader)) != digest:
        raise MeshError(
            f"{reader.path} has other weights than the front's file: "
            f"{found[:12]}, expected {digest[:12]}",
            hint="Copy the file to this node, or name the right one with --model.",
        )
    return reader


def kind_of(stage: AnyStage) -> str:
    """Return what two stages have in common of which one can go on with the other's work.

    How their blocks lie, and what rounds their numbers: a processor with other instructions, or
    another GPU, adds up in another order, and a text could go on as another one.
    """
    return f"{stage.layout} by {stage.computed_by}"
