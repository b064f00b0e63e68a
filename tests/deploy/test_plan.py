"""What a plan says: one unit of memory, whole sentences about money, who may ask."""

import re

import pytest

from zse.deploy.order import SecretUse
from zse.deploy.registry import TARGETS, make_plan
from zse.errors import UsageError
from zse.models.memory import MemoryEstimate


def lines_of(plan, label: str) -> str:
    (line,) = [line for line in plan.to_text().splitlines() if line.startswith(f"  {label} ")]
    return line


def test_memory_is_in_gib_everywhere(make_order):
    need = MemoryEstimate(stored_bytes=6 << 30, weights_bytes=6 << 30, kv_bytes=0, overhead_bytes=0)
    text = make_plan("modal", make_order("modal", need=need)).to_text()
    assert "6.0 GiB of memory" in text
    assert not re.search(r"\d GB\b", text)


def test_a_machine_without_a_list_price_is_one_sentence(make_order):
    extra = {"subscription_id": "s", "resource_group_name": "g"}
    order = make_order(
        "terraform", form="azure-container-apps-gpu", region="westus3", extra=extra, secrets=()
    )
    cost = lines_of(make_plan("terraform", order), "cost")
    assert cost.endswith(
        "no list price on record; see azure.microsoft.com/pricing/details/container-apps"
    )


@pytest.mark.parametrize("target", TARGETS)
def test_the_plan_says_whether_the_server_itself_asks_for_a_key(target, make_order):
    access = lines_of(make_plan(target, make_order(target)), "access")
    asks = "and the server asks for an API key" if target == "vast" else "behind it asks for no key"
    assert access.endswith(asks)
    keys = SecretUse(variable="ZSE_API_KEYS", secret="k", key="ZSE_API_KEYS")
    plan = make_plan(target, make_order(target, secrets=(keys,)))
    assert lines_of(plan, "access").endswith("and the server asks for an API key")
    assert "ZSE_PUBLIC" not in "".join(t for p, t in plan.files.items() if "modules" not in p)


@pytest.mark.parametrize("target", sorted(set(TARGETS) - {"vast", "terraform"}))
def test_a_private_server_is_told_that_its_platform_asks(target, make_order):
    plan = make_plan(target, make_order(target))
    assert "ZSE_PUBLIC" in "".join([*plan.files.values(), *map(str, plan.commands)])


@pytest.mark.parametrize("target", ["modal", "compose", "railway", "render", "vast", "terraform"])
def test_a_public_server_without_keys_is_refused(target, make_order):
    with pytest.raises(UsageError, match="the server has no API keys") as caught:
        make_plan(target, make_order(target, is_public=True, secrets=()))
    assert "--secret ZSE_API_KEYS=" in caught.value.hint
    open_to_all = make_order(target, is_public=True, secrets=(), env={"ZSE_PUBLIC": "1"})
    assert lines_of(make_plan(target, open_to_all), "access").endswith("asks for no key")


@pytest.mark.parametrize("outside", [{"ingress-class": "nginx"}, {"gateway": "edge"}])
def test_what_lets_in_from_outside_a_cluster_needs_keys(outside, make_order):
    order = make_order("kubernetes", form="always-on", extra={"host": "llm.example", **outside})
    with pytest.raises(UsageError, match=r"llm\.example is reachable .* has no API keys"):
        make_plan("kubernetes", order)


@pytest.mark.parametrize("target", ["modal", "compose", "railway", "render", "vast", "terraform"])
def test_a_public_endpoint_is_said_to_be_open_to_anyone(target, make_order):
    plan = make_plan(target, make_order(target, is_public=True))
    assert re.search(r"anyone who .*; and the server asks for", lines_of(plan, "access"))


def test_a_variable_that_the_server_does_not_read_is_noted_and_a_misspelt_key_is_refused(
    make_order,
):
    plan = make_plan("modal", make_order("modal", env={"ZSE_MAX_CONTEX": "512", "MINE": "1"}))
    assert "no variable ZSE_MAX_CONTEX: Did you mean ZSE_MAX_CONTEXT?" in plan.to_text()
    assert "MINE:" not in plan.to_text()
    misspelt = (SecretUse(variable="ZSE_APIKEYS", secret="keys", key="keys"),)
    with pytest.raises(UsageError, match="ZSE_APIKEYS"):
        make_order("modal", secrets=misspelt)
