"""An image: whether it is ours, starts fast, and holds what its start needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.doctor.findings import Findings, fine, note, problem
from zse.oci.image.facts import NO_BYTE_CODE
from zse.oci.image.inspect import read_image_facts

if TYPE_CHECKING:
    from zse.settings import Settings


def check_image(reference: str, settings: Settings) -> Findings:
    """Look at what the labels of an image say; no layer is fetched."""
    facts = read_image_facts(reference, auth_file=settings.registry_auth_file)
    if not facts.is_ours:
        fix = "Build one with: zse build-image MODEL --output oci:DIR"
        yield problem("image", f"{reference} was not built by zse", fix)
        return
    yield fine("image", f"{reference}: recipe {facts.recipe}, zse {facts.version}")
    if facts.byte_code == NO_BYTE_CODE:
        fix = "Build it where the image's own Python can run: it starts twice as fast."
        yield note("image", "it holds no byte code", fix)
    if facts.device == "cuda" and not facts.kernels:
        fix = "Build it again with --gpu sm_90, or what your GPUs are."
        yield problem("image", "it is for GPUs and holds no kernels", fix)
    elif facts.kernels:
        yield fine("image", f"it holds kernels for {', '.join(facts.kernels)}")
    where = {
        "baked": f"its model is {facts.model_name} ({facts.model_scheme})",
        "volume": "its model must be mounted at /models",
        "url": f"it fetches its model from {facts.model_url} at each start",
    }
    yield fine("image", where.get(facts.weights, "it holds no model"))
