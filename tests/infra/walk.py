"""A check of HCL against the committed schemas that needs no Terraform."""

from collections.abc import Iterator

from modules import label, own
from schema import Block

META_ARGUMENTS = {"count", "for_each", "provider", "depends_on", "lifecycle", "provisioner"}


def check(body: dict, block: Block, where: str, *, is_top: bool = True) -> Iterator[str]:
    """Say what is unknown, missing, computed, or there too often."""
    counts: dict[str, int] = {}
    for name, value in own(body):
        if is_top and name in META_ARGUMENTS:
            continue
        if name == "dynamic":
            for one in value:
                for kind, dynamic in own(one):
                    counts[label(kind)] = counts.get(label(kind), 0) + 1
                    yield from check_dynamic(label(kind), dynamic, block, where)
        elif name in block.blocks:
            counts[name] = counts.get(name, 0) + len(value)
            for one in value:
                yield from check(one, block.blocks[name], f"{where}.{name}", is_top=False)
        elif name not in block.attributes:
            yield f"{where}: there is no {name}"
        elif block.attributes[name].mode == "computed":
            yield f"{where}: {name} cannot be set"
    yield from check_counts(body, counts, block, where)


def check_dynamic(kind: str, dynamic: dict, block: Block, where: str) -> Iterator[str]:
    if kind not in block.blocks:
        yield f"{where}: there is no block {kind}"
        return
    if "for_each" not in dynamic:
        yield f"{where}: dynamic {kind} has no for_each"
    for content in dynamic.get("content", []):
        yield from check(content, block.blocks[kind], f"{where}.{kind}", is_top=False)


def check_counts(body: dict, counts: dict[str, int], block: Block, where: str) -> Iterator[str]:
    for name, attribute in block.attributes.items():
        if attribute.mode == "required" and name not in body:
            yield f"{where}: {name} is missing"
    has_dynamic = "dynamic" in body
    for name, nested in block.blocks.items():
        count = counts.get(name, 0)
        if count < nested.min_items:
            yield f"{where}: a block {name} is missing"
        if nested.max_items and count > nested.max_items and not has_dynamic:
            yield f"{where}: {count} blocks {name}, {nested.max_items} at most"
