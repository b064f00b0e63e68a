"""Compose: one service that needs no profile, for what the image is made for; copies that stay."""

from dataclasses import replace

import pytest
import yaml

from zse.deploy.order import ImageLook
from zse.deploy.registry import make_plan
from zse.oci.image.facts import ImageFacts

GPU = ImageFacts(recipe="cuda", device="cuda", kernels=("sm_90",), weights="baked")
CPU = replace(GPU, recipe="cpu", device="cpu", kernels=())


@pytest.fixture
def compose(make_order):
    def make(facts=None, **changes):
        order = make_order("compose", look=ImageLook(facts=facts), **changes)
        return make_plan("compose", order)

    return make


def service_of(plan) -> dict:
    document = yaml.safe_load(plan.files["compose.yaml"])
    (service,) = document["services"].values()
    return service


@pytest.mark.parametrize("facts", [GPU, CPU, None])
def test_up_without_a_profile_starts_the_one_service(facts, compose):
    plan = compose(facts)
    assert "profiles" not in service_of(plan)
    assert plan.commands == (("docker", "compose", "up", "--detach", "--wait"),)


def test_the_image_says_whether_a_gpu_is_reserved(compose):
    assert "deploy" in service_of(compose(GPU))
    assert "deploy" not in service_of(compose(CPU))
    assert "deploy" not in service_of(compose(None, gpu="none"))
    unknown = compose(None)
    assert "deploy" in service_of(unknown)
    assert "--gpu none" in unknown.to_text()


@pytest.mark.parametrize(
    ("facts", "changes"),
    [
        (GPU, {"model": "s3://models/qwen.zse"}),
        (None, {"model": "https://models.example/qwen.zse"}),
        (replace(GPU, weights="url", model_url="s3://models/qwen.zse"), {}),
    ],
)
def test_a_fetched_model_is_kept_on_disk_from_one_start_to_the_next(facts, changes, compose):
    plan = compose(facts, **changes)
    service = service_of(plan)
    assert "copies:/tmp" in service["volumes"]
    assert "tmpfs" not in service
    assert service["environment"]["ZSE_CACHE_DIR"] == "/tmp/zse"
    assert yaml.safe_load(plan.files["compose.yaml"])["volumes"] == {"copies": {}}


def test_a_baked_model_needs_no_volume(compose):
    service = service_of(compose(GPU))
    assert service["tmpfs"] == ["/tmp"]
    assert "volumes" not in service
