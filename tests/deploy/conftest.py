"""Orders for the tests: one of everything a platform can be asked for."""

import pytest

from zse.deploy.order import Order, SecretUse
from zse.deploy.registry import TARGETS
from zse.models.memory import MemoryEstimate

SEVEN_BILLION = MemoryEstimate(
    stored_bytes=4_400_000_000,
    weights_bytes=4_400_000_000,
    kv_bytes=500_000_000,
    overhead_bytes=488_000_000,
    quantization="int4",
    context_tokens=4096,
)
SECRET = SecretUse(variable="HF_TOKEN", secret="hub", key="HF_TOKEN")
KEYS = SecretUse(variable="ZSE_API_KEYS", secret="server-keys", key="ZSE_API_KEYS")
IMAGE = "registry.example.com/acme/zse-qwen:1"


# What the first form of a target cannot do without.
NEEDED = {"terraform": {"region": "us-central1", "extra": {"project": "p"}}}


def order_for(target: str, **changes) -> Order:
    """Return an order that the target accepts: what anyone reaches has keys."""
    fields = {
        "image": IMAGE,
        "need": SEVEN_BILLION,
        "max_replicas": 3,
        "secrets": (SECRET,),
        "env": {"ZSE_MAX_QUEUE": "64"},
        "is_public": target == "vast",
        **NEEDED.get(target, {}),
        **changes,
    }
    if fields["is_public"] and "secrets" not in changes:
        fields["secrets"] = (*fields["secrets"], KEYS)
    return Order(**fields)


@pytest.fixture(scope="session")
def make_order():
    return order_for


@pytest.fixture(scope="session")
def all_forms() -> list[tuple[str, str]]:
    return [(name, form) for name, target in TARGETS.items() for form in target.forms or ("",)]
