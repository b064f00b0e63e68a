"""Schemas at random, of every kind that answers are held to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random

NAMES = ["name", "city", "a", "b", "größe", 'qu"ote', "shipping_address", "id"]


def random_schema(draw: random.Random, depth: int = 3) -> dict[str, Any]:
    kinds = ["string", "integer", "boolean", "null", "enum", "array", "object"]
    kind = draw.choice(kinds if depth else kinds[:5])
    if kind == "enum":
        return {"enum": draw.sample(["a", "b", "Paris", 3, None, True, "ü"], draw.randint(1, 4))}
    if kind == "string":
        return {"type": "string", "maxLength": draw.randint(0, 12)}
    if kind == "integer":
        low = draw.randint(-50, 50)
        return {"type": "integer", "minimum": low, "maximum": low + draw.randint(0, 100)}
    if kind == "array":
        least = draw.randint(0, 2)
        most = least + draw.randint(0, 2)
        items = random_schema(draw, depth - 1)
        return {"type": "array", "items": items, "minItems": least, "maxItems": most}
    if kind == "object":
        names = draw.sample(NAMES, draw.randint(0, 4))
        return {
            "type": "object",
            "properties": {name: random_schema(draw, depth - 1) for name in names},
            "required": draw.sample(names, draw.randint(0, len(names))),
            "additionalProperties": False,
        }
    return {"type": kind}
