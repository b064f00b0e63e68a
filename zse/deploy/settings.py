"""Settings that only one target knows (``--set NAME=VALUE``), refused by all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection

    from zse.deploy.order import Order


def take_extra(order: Order, known: Collection[str]) -> dict[str, str]:
    """Return the settings of an order.

    Raises:
        UsageError: One is not known to the target.
    """
    unknown = sorted(order.extra.keys() - set(known))
    if unknown:
        hint = f"It knows {', '.join(known)}." if known else "It has none."
        raise UsageError(f"this target has no setting {', '.join(unknown)}", hint=hint)
    return dict(order.extra)
