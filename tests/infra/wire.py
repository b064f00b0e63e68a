"""Terraform's plugin protocol 5, as much of it as says what a provider allows."""

import json

from schema import Attribute, Block

NESTINGS = {"single": 1, "list": 2, "set": 3, "map": 4, "group": 5}


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def number_field(index: int, number: int) -> bytes:
    return varint(index << 3) + varint(number) if number else b""


def bytes_field(index: int, data: bytes) -> bytes:
    return varint(index << 3 | 2) + varint(len(data)) + data


def attribute_message(name: str, attribute: Attribute) -> bytes:
    modes = attribute.mode.split("+")
    return b"".join(
        [
            bytes_field(1, name.encode()),
            bytes_field(2, json.dumps(attribute.type).encode()),
            *(
                number_field(index, 1)
                for index, mode in ((4, "required"), (5, "optional"), (6, "computed"))
                if mode in modes
            ),
        ]
    )


def block_message(block: Block) -> bytes:
    attributes = [
        bytes_field(2, attribute_message(name, one)) for name, one in block.attributes.items()
    ]
    nested = [
        bytes_field(
            3,
            bytes_field(1, name.encode())
            + bytes_field(2, block_message(one))
            + number_field(3, NESTINGS[one.nesting])
            + number_field(4, one.min_items)
            + number_field(5, one.max_items),
        )
        for name, one in block.blocks.items()
    ]
    return b"".join([*attributes, *nested])


def schema_message(block: Block) -> bytes:
    return bytes_field(2, block_message(block))


def provider_message(types: dict[str, Block]) -> bytes:
    """Return the answer to GetSchema."""
    parts = [bytes_field(1, schema_message(types.get("provider", Block())))]
    for name, block in types.items():
        if name != "provider":
            index = 3 if name.startswith("data.") else 2
            entry = bytes_field(1, name.removeprefix("data.").encode())
            parts.append(bytes_field(index, entry + bytes_field(2, schema_message(block))))
    return b"".join(parts)
