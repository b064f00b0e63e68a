"""What to type next: the commands that run an image that was just built, where it was put."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from zse.oci.image.options import ModelMode
from zse.records import record

if TYPE_CHECKING:
    from zse.oci.image.options import BuildOptions
    from zse.oci.recipe import Recipe

_SHORT = ("docker.io/library/", "docker.io/")
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL")
_COMPONENT = re.compile(r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*")
_QUESTION = '{"model": "default", "messages": [{"role": "user", "content": "Hello"}]}'


@record
class NextStep:
    """One thing to do."""

    purpose: str
    command: str


def next_steps(recipe: Recipe, options: BuildOptions, reference: str) -> tuple[NextStep, ...]:
    """Return how the image is loaded, run and asked, in the order that they are typed."""
    name = next((reference.removeprefix(x) for x in _SHORT if reference.startswith(x)), reference)
    kind, _, path = options.output.partition(":")
    tag = reference.rpartition(":")[2]
    steps = []
    if kind == "tar":
        steps.append(_step("load it with docker", "docker", "load", "-i", path))
        steps.append(_step("load it with podman", "podman", "load", "-i", path))
    elif kind == "oci":
        place, daemon = f"oci:{path}:{tag}", f"docker-daemon:{name}"
        steps.append(_step("hand it to docker", "skopeo", "copy", place, daemon))
    in_podman = reference
    if kind == "oci" and _podman_runs(path):
        in_podman = f"oci:{path}:{tag}"
    elif kind == "oci":
        store = f"containers-storage:{reference}"
        steps.append(_step("hand it to podman", "skopeo", "copy", f"oci:{path}:{tag}", store))
    steps.append(_run("docker", "--gpus=all", name, recipe, options))
    steps.append(_run("podman", "--device=nvidia.com/gpu=all", in_podman, recipe, options))
    address = f"http://127.0.0.1:{recipe.port}/v1/chat/completions"
    ask = ["curl", "-s", "--retry", "60", "--retry-delay", "1", "--retry-connrefused", address]
    ask += ["-H", "authorization: Bearer KEY", "-H", "content-type: application/json"]
    steps.append(_step("ask it, with the KEY that its start prints", *ask, "-d", _QUESTION))
    if options.is_pushed:
        model = [options.shown_model_url] if options.model_mode is ModelMode.URL else []
        steps.append(
            _step("run it in Kubernetes", "zse", "deploy", "kubernetes", *model, "--image", name)
        )
    return tuple(steps)


def _podman_runs(layout: str) -> bool:
    """Whether podman runs a layout where it lies: it makes the path a name, of lower case."""
    return all(_COMPONENT.fullmatch(part) for part in layout.strip("/").split("/"))


def _run(program: str, gpu: str, name: str, recipe: Recipe, options: BuildOptions) -> NextStep:
    words = [program, "run", "--rm", "-p", f"{recipe.port}:{recipe.port}"]
    if recipe.env.get("ZSE_DEVICE", "cpu") != "cpu":
        words.append(gpu)
    if options.model_mode is ModelMode.VOLUME:
        words += ["-v", "./models:/models:ro"]  # a folder that holds model.zse
    if options.model_url.startswith("s3://"):
        words += [word for key in _KEYS for word in ("-e", key)]
    return _step(f"run it with {program}", *words, name)


def _step(purpose: str, *words: str) -> NextStep:
    return NextStep(purpose=purpose, command=shlex.join(words))
