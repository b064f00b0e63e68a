"""Whether an image can do what an order asks of it, by what its labels say, before it is started.

A serving image has no shell and no package manager: what was left out when it was built cannot be
put right where it runs.
"""

from __future__ import annotations

import hashlib
import shlex
from typing import TYPE_CHECKING

from zse.deploy.errors import DeployRule
from zse.kernels.targets import target_named, targets_for
from zse.store.location import is_hub_id, parse_location

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.deploy.order import Order
    from zse.deploy.plan import Plan
    from zse.deploy.registry import Target
    from zse.errors import UsageError
    from zse.oci.image.facts import ImageFacts


def check_image(plan: Plan, target: Target) -> tuple[str, ...]:
    """Refuse a plan whose image cannot do it; return what is to be said otherwise.

    Raises:
        UsageError: The image cannot read the model, is made for other hardware, or holds
            another model.
    """
    order = plan.order
    if facts := order.look.facts:
        _check_device(plan, target, facts)
        _check_kernels(plan, facts)
        _check_source(order, facts)
        _check_model(order, facts)
    return tuple(_notes(order, facts))


def _notes(order: Order, facts: ImageFacts | None) -> Iterator[str]:
    if order.look.why_not:
        yield (
            f"the image was not looked into: {order.look.why_not}; "
            "--image-labels oci:DIR or tar:FILE reads it from here"
        )
    if facts is None:
        return
    if facts.weights == "baked" and order.model_place:
        yield f"the image also holds {facts.model_name}, which nothing reads"
    if facts.weights == "url" and not order.model_place and order.is_mounted:
        yield f"nothing reads the mount: the image fetches {facts.model_url}"


def _check_device(plan: Plan, target: Target, facts: ImageFacts) -> None:
    order = plan.order
    on_gpu = target.has_gpus and (order.wants_gpu if target.follows_image else order.has_gpu)
    if on_gpu and facts.device == "cpu":
        other = " Or give --gpu none to serve on a CPU." if target.has_cpus else ""
        raise DeployRule.UNFIT_IMAGE(
            f"{order.image} is a CPU image (recipe {facts.recipe}), and the plan has a GPU",
            hint=f"Build it with: {_build_line(order, facts, recipe='cuda')}.{other}",
        )
    if not on_gpu and facts.device == "cuda":
        raise DeployRule.UNFIT_IMAGE(
            f"{order.image} is a GPU image (recipe {facts.recipe}), and the plan has no GPU",
            hint=f"Build it with: {_build_line(order, facts, recipe='cpu')}.",
        )


def _check_kernels(plan: Plan, facts: ImageFacts) -> None:
    if plan.machine is None or not (facts.device == "cuda" or facts.kernels):
        return
    for name in plan.machine.architectures:
        usable = {target.name for target in targets_for(target_named(name).name)}
        if not usable & set(facts.kernels):
            held = ", ".join(facts.kernels) or "none"
            raise DeployRule.UNFIT_IMAGE(
                f"{plan.order.image} holds no kernels for {name}, which {plan.machine.name} may"
                f" have; it holds {held}",
                hint=f"Build it with --gpu {name}, or name another machine with --gpu TYPE.",
            )


def _check_source(order: Order, facts: ImageFacts) -> None:
    if facts.weights == "baked" and order.is_mounted:
        raise DeployRule.UNFIT_IMAGE(
            f"{order.image} holds its model, {facts.model_name}, and the mount would hide it",
            hint="Leave --volume and --bucket out, or build the image with --model volume.",
        )
    if facts.weights == "volume" and not order.is_mounted and not order.model_place:
        raise DeployRule.UNFIT_IMAGE(
            f"{order.image} was built with --model volume and holds no model",
            hint="Give --volume NAME, or the model's address as MODEL.",
        )


def _check_model(order: Order, facts: ImageFacts) -> None:
    """Compare MODEL with what is in the image, when that is what will be served."""
    if facts.weights != "baked" or order.model_place or not order.model:
        return
    if is_hub_id(order.model) and is_hub_id(facts.model_name):
        if order.model != facts.model_name:
            raise _another_model(order, facts, order.model)
        return
    path = parse_location(order.model).path
    if path.suffix == ".zse" and path.is_file() and facts.model_sha256:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != facts.model_sha256:
            raise _another_model(order, facts, f"{path}, sha256 {digest[:12]}")


def _another_model(order: Order, facts: ImageFacts, asked: str) -> UsageError:
    return DeployRule.UNFIT_IMAGE(
        f"{order.image} holds another model than MODEL: {facts.model_name} {facts.model_scheme},"
        f" sha256 {facts.model_sha256[:12]}; MODEL is {asked}",
        hint=f"Build it again with: {_build_line(order, facts)}",
    )


def _build_line(order: Order, facts: ImageFacts, *, recipe: str = "") -> str:
    """Return the command that builds an image that does what is asked."""
    model = str(order.address) if order.address else order.model or facts.model_url or "MODEL"
    words = ["zse", "build-image", model, "--recipe", recipe or facts.recipe]
    mode = "url" if order.address else facts.weights
    words += ["--model", mode] if mode != "baked" else []
    return shlex.join([*words, "--name", order.image, "--push"])
