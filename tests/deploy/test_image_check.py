"""An image that cannot do what is asked is refused in the plan, with the line that builds another."""

import hashlib
from dataclasses import replace

import pytest
from broken_rules import breaks

from zse.cli import run
from zse.deploy.errors import DeployRule
from zse.deploy.order import ImageLook
from zse.deploy.registry import make_plan
from zse.oci.image.facts import ImageFacts

BAKED = ImageFacts(
    recipe="cuda",
    device="cuda",
    kernels=("sm_80", "sm_86", "sm_90"),
    weights="baked",
    model_name="Qwen/Qwen2.5-7B-Instruct",
    model_scheme="int4",
    model_sha256="ab" * 32,
)
FETCHING = replace(BAKED, weights="url", model_url="s3://models/qwen.zse")
MOUNTED = replace(BAKED, weights="volume", model_sha256="")
ON_CPU = replace(BAKED, recipe="cpu", device="cpu", kernels=())


@pytest.fixture
def plan_with(make_order):
    """Plan for an image of these facts."""

    def plan(target, facts, **changes):
        return make_plan(target, make_order(target, look=ImageLook(facts=facts), **changes))

    return plan


def test_an_image_reads_object_storage_whatever_else_it_holds(plan_with):
    for facts in (BAKED, FETCHING):
        plan = plan_with("modal", facts, model="s3://models/other.zse")
        assert "read from s3://models/other.zse" in plan.to_text()
        assert "needs a kernel pack" not in plan.to_text()


@pytest.mark.parametrize("target", ["modal", "runpod", "kubernetes", "vast", "terraform"])
def test_a_cpu_image_is_refused_where_there_is_a_gpu(target, plan_with):
    with breaks(DeployRule.UNFIT_IMAGE, match="is a CPU image") as caught:
        plan_with(target, ON_CPU)
    assert "--recipe cuda" in caught.value.hint
    assert ("--gpu none" in caught.value.hint) == (target in ("modal", "kubernetes"))


@pytest.mark.parametrize(
    ("target", "changes"), [("render", {}), ("railway", {}), ("modal", {"gpu": "none"})]
)
def test_a_gpu_image_is_refused_where_there_is_none(target, changes, plan_with):
    with breaks(DeployRule.UNFIT_IMAGE, match="is a GPU image") as caught:
        plan_with(target, BAKED, **changes)
    assert "--recipe cpu" in caught.value.hint
    assert plan_with(target, ON_CPU, **changes).files


def test_kernels_must_run_on_whatever_the_machine_may_have(plan_with):
    # Code for 8.6 runs on an L4 (8.9); code for 9.0 runs on nothing else.
    assert plan_with("modal", BAKED, gpu="L4").machine.name == "L4"
    with breaks(DeployRule.UNFIT_IMAGE, match="no kernels for sm_100, which B200") as caught:
        plan_with("modal", BAKED, gpu="B200")
    assert "--gpu sm_100" in caught.value.hint
    only_hopper = replace(BAKED, kernels=("sm_90",))
    with breaks(DeployRule.UNFIT_IMAGE, match="sm_86"):
        plan_with("runpod", only_hopper, gpu="AMPERE_24")


def test_a_mount_would_hide_a_baked_model(plan_with):
    with breaks(DeployRule.UNFIT_IMAGE, match="the mount would hide it"):
        plan_with("modal", BAKED, volume="models", model="qwen.zse")
    assert plan_with("modal", MOUNTED, volume="models", model="qwen.zse").files


def test_an_image_without_a_model_must_get_one(plan_with):
    with breaks(DeployRule.UNFIT_IMAGE, match="holds no model"):
        plan_with("modal", MOUNTED)
    assert plan_with("modal", MOUNTED, model="https://models.example/qwen.zse").files


def test_another_model_than_the_one_in_the_image_is_refused(plan_with, tmp_path):
    path = tmp_path / "qwen.zse"
    path.write_bytes(b"another")
    with breaks(DeployRule.UNFIT_IMAGE, match="another model than MODEL"):
        plan_with("modal", BAKED, model=str(path))
    same = replace(BAKED, model_sha256=hashlib.sha256(b"another").hexdigest())
    assert plan_with("modal", same, model=str(path)).files
    with breaks(DeployRule.UNFIT_IMAGE, match="another model"):
        plan_with("modal", BAKED, model="Qwen/Qwen3-8B")
    assert plan_with("modal", BAKED, model="Qwen/Qwen2.5-7B-Instruct").files


def test_the_plan_says_what_the_image_holds(plan_with):
    assert "in the image: Qwen/Qwen2.5-7B-Instruct int4" in plan_with("modal", BAKED).to_text()
    assert (
        "fetched by the image from s3://models/qwen.zse" in plan_with("modal", FETCHING).to_text()
    )
    unread = plan_with("modal", BAKED, model="https://models.example/qwen.zse").to_text()
    assert "also holds Qwen/Qwen2.5-7B-Instruct, which nothing reads" in unread


def test_an_image_that_was_not_read_is_told_and_never_in_the_way(make_order):
    look = ImageLook(why_not="the registry cannot be reached")
    plan = make_plan("modal", make_order("modal", look=look, model="s3://models/qwen.zse"))
    text = plan.to_text()
    assert "not looked into: the registry cannot be reached" in text


@pytest.mark.usefixtures("unread_images")
def test_an_unreachable_registry_is_a_note_of_the_plan(capsys):
    assert run(["deploy", "modal", "tiny", "--image", "ghcr.io/acme/qwen:1", "--dry-run"]) == 0
    assert "not looked into: no test asks for ghcr.io/acme/qwen:1" in capsys.readouterr().out


def test_a_place_that_was_named_must_be_there(tmp_path, capsys):
    place = f"oci:{tmp_path / 'absent'}"
    order = ["deploy", "modal", "tiny", "--image", "ghcr.io/acme/qwen:1", "--dry-run"]
    assert run([*order, "--image-labels", place]) == 3
    assert "absent" in capsys.readouterr().err
    assert run([*order, "--image-labels", "none"]) == 0
