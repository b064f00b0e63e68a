"""What a plan says: one unit of memory, whole sentences about money, who may ask."""

import re

import pytest

from zse.deploy.registry import TARGETS, make_plan
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
def test_the_plan_says_that_the_server_itself_asks_for_no_key(target, make_order):
    access = lines_of(make_plan(target, make_order(target)), "access")
    assert re.search(r"no(thing)? (key is asked for|asks for a key)|asks for no key", access)


@pytest.mark.parametrize("target", ["modal", "compose", "railway", "render", "vast", "terraform"])
def test_a_public_endpoint_is_said_to_be_open_to_anyone(target, make_order):
    plan = make_plan(target, make_order(target, is_public=True))
    assert re.search(r"anyone who .*: nothing asks for a key", lines_of(plan, "access"))
