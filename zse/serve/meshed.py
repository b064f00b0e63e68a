"""A server whose model is computed by the nodes of a mesh; what it needs besides is as ever."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, cast

from zse.errors import UsageError
from zse.mesh.finding import finder_of, secret_of
from zse.option import with_flags

if TYPE_CHECKING:
    from zse.format.model_file import ModelFile
    from zse.models.runner import ModelRunner
    from zse.settings import Settings


def with_mesh(settings: Settings) -> Settings:
    """Return settings for a front end, which computes nothing itself.

    Raises:
        UsageError: Something is asked for that a mesh does not do.
    """
    serve = settings.serve
    secret_of(serve.mesh)
    unusable = {
        "--models": bool(serve.fleet.models),
        "--sleep-after": bool(serve.fleet.sleep_after),
        "--lora": bool(serve.loras),
        "--speculate model": serve.load.speculation.speculate == "model",
        "--speculate mtp": serve.load.speculation.speculate == "mtp",
        "--speculate early-exit": serve.load.speculation.speculate == "early-exit",
        "--draft-model": bool(serve.load.speculation.draft_model),
        "--prefix-store": bool(serve.load.cache.prefix_store),
        "--prefix-host-gib": bool(serve.load.cache.prefix_host_gib),
    }
    for flag, is_asked in unusable.items():
        if is_asked:
            raise UsageError(f"{flag} and --mesh do not go together", hint=f"Leave {flag} out.")
    return with_flags(settings, {"device": "cpu"})


def mesh_runner(settings: Settings, reader: ModelFile) -> ModelRunner:
    """Return a runner over the nodes that the settings name; fails as ``join_mesh``."""
    from zse.mesh.joining import MeshSetup, join_mesh

    options = settings.serve.mesh
    secret = secret_of(options)
    with ExitStack() as open_things:
        later = open_things.enter_context(ExitStack())
        finder = later.enter_context(finder_of(options.mesh, secret))
        runner = join_mesh(
            reader,
            settings.serve.model,
            settings.serve.load,
            MeshSetup(
                secret=secret,
                finder=finder,
                least_nodes=options.mesh_nodes,
                wait_seconds=options.mesh_wait,
                split=options.mesh_split,
                activations=options.mesh_activations,
                on_close=later.close,
            ),
        )
        open_things.pop_all()
    return cast("ModelRunner", runner)
