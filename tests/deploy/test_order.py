"""Orders: what is refused, and what a container is told."""

import pytest

from zse.deploy.order import Order, parse_pairs, parse_secrets
from zse.deploy.registry import find_target, make_plan
from zse.errors import UsageError
from zse.oci.errors import BadReferenceError

IMAGE = "ghcr.io/acme/Qwen".lower()


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "Upper"},
        {"name": "a_b"},
        {"name": "x" * 53},
        {"name": "-a"},
        {"name": 'a"\nb'},
        {"min_replicas": -1},
        {"max_replicas": 0},
        {"min_replicas": 3, "max_replicas": 2},
        {"concurrency": 0},
        {"idle_seconds": -1},
        {"port": 0},
        {"port": 65536},
        {"model": "gs://models/qwen.zse"},
        {"model": "s3://models/"},
        {"env": {"A B": "1"}},
        {"env": {"PORT": "80"}},
        {"env": {"A": "1"}, "secrets": parse_secrets(("A=b",))},
        {"volume": "a", "bucket": "b"},
    ],
)
def test_values_that_fit_no_platform_are_refused(changes):
    with pytest.raises(UsageError):
        Order(image=IMAGE, **changes)


@pytest.mark.parametrize("image", ["", "a b", "ghcr.io/a\nRUN x", "ghcr.io/a:$(id)", "UPPER"])
def test_an_image_is_a_reference_and_nothing_else(image):
    with pytest.raises(BadReferenceError):
        Order(image=image)


def test_the_name_comes_from_the_image():
    assert Order(image="ghcr.io/acme/my_model.v2:1").name == "my-model-v2"


def test_the_model_of_a_mount_or_an_address_reaches_the_server():
    assert "ZSE_MODEL" not in Order(image=IMAGE, model="qwen.zse").environment()
    mounted = Order(image=IMAGE, model="some/qwen.zse", volume="models")
    assert mounted.environment()["ZSE_MODEL"] == "/models/qwen.zse"
    remote = Order(image=IMAGE, model="s3://models/qwen.zse")
    assert remote.environment()["ZSE_MODEL"] == "s3://models/qwen.zse"
    hub = Order(image=IMAGE, model="hf://owner/name@v1/qwen.zse")
    assert hub.environment()["ZSE_MODEL"] == "hf://owner/name@v1/qwen.zse"
    here = Order(image=IMAGE, model="file:///some/qwen.zse", volume="models")
    assert here.environment()["ZSE_MODEL"] == "/models/qwen.zse"


def test_a_signed_address_is_whole_in_the_files_and_not_in_the_plan():
    model = "https://models.example/qwen.zse?signature=abc"
    order = Order(image=IMAGE, model=model, gpu="none")
    plan = make_plan("compose", order)
    assert "signature" not in plan.to_text()
    assert model in plan.files["compose.yaml"]


def test_the_servers_drain_ends_before_the_platforms_patience():
    assert Order(image=IMAGE, drain_seconds=10).environment()["ZSE_DRAIN_SECONDS"] == "5"


def test_pairs_are_split_at_the_first_equals_sign():
    assert parse_pairs(("A=b=c", "D="), "--env") == {"A": "b=c", "D": ""}
    for bad in (("A",), ("=x",), ("A=1", "A=2")):
        with pytest.raises(UsageError):
            parse_pairs(bad, "--env")


def test_a_secret_is_named_and_never_repeated_in_an_error():
    (use,) = parse_secrets(("TOKEN=hub:token",))
    assert (use.variable, use.secret, use.key) == ("TOKEN", "hub", "token")
    for bad in ("TOKEN=hf_abc/def+ghi==", "TOKEN=", "hf_canary"):
        with pytest.raises(UsageError) as caught:
            parse_secrets((bad,))
        assert "hf_" not in str(caught.value) + caught.value.hint


def test_an_unknown_target_form_or_setting_says_what_there_is(make_order):
    with pytest.raises(UsageError, match="no target 'heroku'"):
        find_target("heroku")
    with pytest.raises(UsageError) as caught:
        make_plan("modal", make_order("modal", form="pod"))
    assert "server, class" in caught.value.hint
    with pytest.raises(UsageError, match="no form"):
        make_plan("compose", make_order("compose", form="x"))
    with pytest.raises(UsageError, match="no setting colour"):
        make_plan("modal", make_order("modal", extra={"colour": "red"}))


@pytest.mark.parametrize(
    ("target", "changes"),
    [
        ("runpod", {"gpu": "none"}),
        ("vast", {"gpu": "none"}),
        ("vast", {"is_public": False}),
        ("vast", {"volume": "v"}),
        ("vast", {"extra": {"max-usd-per-hour": "cheap"}}),
        ("railway", {"gpu": "L4"}),
        ("railway", {"bucket": "b"}),
        ("render", {"gpu": "L4"}),
        ("render", {"volume": "v"}),
        ("compose", {"bucket": "b"}),
        ("kubernetes", {"bucket": "b"}),
        ("modal", {"gpu": "T4"}),
        *(
            (target, {"secrets": parse_secrets(("TOKEN=hub:other",))})
            for target in ("modal", "runpod", "compose", "railway", "render", "vast")
        ),
    ],
)
def test_what_a_platform_cannot_do_is_refused_with_a_way_out(target, changes, make_order):
    with pytest.raises(UsageError) as caught:
        make_plan(target, make_order(target, **changes))
    assert caught.value.hint or "price" in str(caught.value)
