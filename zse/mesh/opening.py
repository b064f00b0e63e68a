"""From a front's words to a stage on this node: the same file, the same options, some layers."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, TypeAlias

from zse.backends import ModelLoad, create_backend
from zse.backends.cpu.stage import CPUStage
from zse.backends.ranks import HostEdges, RankPart
from zse.device.open import runs_on_gpu
from zse.engine.opening import open_file
from zse.errors import MeshError, UnsupportedModelError
from zse.failures import deliberate
from zse.format.reader import ZSEReader
from zse.kernels.native.library import load as load_library
from zse.models.decoder import forward_of
from zse.models.runner import spec_of
from zse.models.stage import stage_of
from zse.models.stage_share import stage_share, whole_share
from zse.option import with_values
from zse.options import load_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.backends.gpu.stage import GPUStage
    from zse.format.model_file import ModelFile
    from zse.mesh.messages import AskOpen
    from zse.models.spec import ModelSpec
    from zse.models.stage import StageSpec
    from zse.options import LoadOptions
    from zse.settings import Settings

AnyStage: TypeAlias = "CPUStage | GPUStage"
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
    settings: Settings, *, model: str = "", threads: int = 0, device: str = "cpu"
) -> Callable[[AskOpen], AnyStage]:
    """Return what opens stages on this node.

    Args:
        settings: Of this node.
        model: Where its copy of the model is, whatever the front calls it; empty: as the front.
        threads: That compute on a CPU; 0: as many as are good.
        device: ``cpu`` or ``cuda[:N]``.
    """
    here = settings.serve.load.device
    own = {name: getattr(here, name) for name in _OWN}

    def open_stage(ask: AskOpen) -> AnyStage:
        try:
            return open_kind(ask)
        except OSError as error:  # a full disk, no right to read, no memory
            raise deliberate(error, settings.cache_dir) from error

    def open_kind(ask: AskOpen) -> AnyStage:
        unknown = set(ask.options) - {*_SAME_EVERYWHERE, "num_blocks"}
        if unknown:
            raise MeshError(f"a front asks for options that are not known: {sorted(unknown)}")
        options = load_options(**ask.options)
        options = with_values(options, {**own, "device": device, "threads": threads})
        # All of it lies here, whatever computes: a stage is read in place, not as it arrives.
        reader = open_file(model or ask.model, with_values(options, {"device": "cpu"}), settings)
        try:
            if not isinstance(reader, ZSEReader):
                raise UnsupportedModelError(f"{reader.path} is no file of this machine")
            if (found := digest_of(reader)) != ask.digest:
                raise MeshError(
                    f"{reader.path} has other weights than the front's file: "
                    f"{found[:12]}, expected {ask.digest[:12]}",
                    hint="Copy the file to this node, or name the right one with --model.",
                )
            spec = spec_of(reader)
            spec = spec.within(options.batch.max_context or spec.max_position)
            stage = stage_of(spec, ask.first_layer, ask.end_layer)
            if runs_on_gpu(device):
                opened = open_on_gpu(reader, spec, stage, options, settings)
            else:
                opened = _Owned(reader, stage, options)
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


def kind_of(stage: AnyStage) -> str:
    """Return what two stages have in common of which one can go on with the other's work.

    How their blocks lie, and what rounds their numbers: a processor with other instructions, or
    another GPU, adds up in another order, and a text could go on as another one.
    """
    return f"{stage.layout} by {stage.computed_by}"


def open_on_gpu(
    reader: ZSEReader, spec: ModelSpec, stage: StageSpec, options: LoadOptions, settings: Settings
) -> AnyStage:
    """Return a stage on a GPU; the file is closed with it.

    Raises:
        DeviceError: The GPU is absent or too small.
        UnsupportedModelError: It does not compute the model.
    """
    from zse.backends.gpu.backend import GPUBackend
    from zse.backends.gpu.stage import AloneLink, GPUStage

    share = stage_share(whole_share(spec), stage.first_layer, stage.end_layer)
    part = RankPart(link=AloneLink(), spec=share.spec, cuts=share.cuts, edges=HostEdges())
    load = ModelLoad(
        reader=reader,
        spec=share.spec,
        part=part,
        options=with_values(options, {"stream": "off"}),
        forward=forward_of(share.spec),
        cache_dir=settings.cache_dir,
    )
    backend = create_backend(load)
    assert isinstance(backend, GPUBackend)
    return GPUStage(stage, backend, load_library(), reader.close)


class _Owned(CPUStage):
    """A stage whose file is closed with it."""

    def __init__(self, reader: ZSEReader, stage: StageSpec, options: LoadOptions) -> None:
        self._reader = reader
        super().__init__(reader, stage, options)

    def close(self) -> None:
        super().close()
        self._reader.close()
