from __future__ import annotations

import random

from zse.mesh.duties import Duty, after_loss, move_to_free, moved_bytes, next_standby


def duties_of(*rows):
    return tuple(
        Duty(first_layer=place, end_layer=place + 1, node=node, standby=standby)
        for place, (node, standby) in enumerate(rows)
    )


READY = {(place, place + 1) for place in range(9)}


def test_a_standby_takes_the_place_of_who_is_lost():
    before = duties_of(("a", "c"), ("b", "a"), ("c", "b"))
    after = after_loss(before, "b", READY)
    assert after == duties_of(("a", "c"), ("a", ""), ("c", ""))


def test_a_stage_that_nobody_else_has_is_lost():
    before = duties_of(("a", "b"), ("b", ""))
    assert after_loss(before, "b", READY) is None
    assert after_loss(duties_of(("a", "b"), ("b", "a")), "b", READY - {(1, 2)}) is None


def test_the_node_before_stands_by_where_nobody_is_free():
    assert next_standby(duties_of(("a", ""), ("b", "")), ["a", "b"]) == (0, "b")
    assert next_standby(duties_of(("a", "b"), ("b", "")), ["a", "b"]) == (1, "a")
    assert next_standby(duties_of(("a", "b"), ("b", "a")), ["a", "b"]) is None
    assert next_standby(duties_of(("a", "")), ["a"]) is None
    assert next_standby(duties_of(("a", ""), ("b", "a")), ["a", "b"], {("b", 0)}) is None


def test_a_free_node_takes_a_stage_of_a_crowded_one():
    crowded = duties_of(("a", "c"), ("a", "c"), ("c", "a"))
    place, node = next_standby(crowded, ["a", "b", "c"])
    assert node == "b"
    standing_by = (*crowded[:place], crowded[place].__class__(
        first_layer=place, end_layer=place + 1, node="a", standby="b"), *crowded[place + 1 :])  # fmt: skip
    moved = move_to_free(standing_by, READY)
    assert moved[place].node == "b"
    assert moved[place].standby == "a"
    assert move_to_free(standing_by, set()) is None


def test_losses_and_joins_in_any_order_leave_every_stage_with_somebody():
    """And a loss that leaves standbys moves nothing that was not there already."""
    rng = random.Random(5)
    for _ in range(200):
        nodes = [f"n{number}" for number in range(rng.randint(2, 5))]
        stages = rng.randint(1, len(nodes))
        duties, alive = duties_of(*((nodes[place], "") for place in range(stages))), list(nodes)
        sizes = {duty.layers: 10 for duty in duties}
        for _ in range(12):
            for _ in range(20):
                found = next_standby(duties, alive)
                if found is None:
                    break
                place, name = found
                old = duties[place]
                new = Duty(
                    first_layer=old.first_layer,
                    end_layer=old.end_layer,
                    node=old.node,
                    standby=name,
                )
                duties = (*duties[:place], new, *duties[place + 1 :])
                moved = move_to_free(duties, READY)
                if moved is not None:
                    assert moved_bytes(duties, moved, sizes) == 0
                    duties = moved
            else:
                raise AssertionError("standbys are never settled")
            if len(alive) > 1 and rng.random() < 0.6:
                lost = rng.choice(alive)
                alive.remove(lost)
                after = after_loss(duties, lost, READY)
                assert after is not None
                assert moved_bytes(duties, after, sizes) == 0
                duties = after
            elif len(alive) < len(nodes):
                alive.append(rng.choice([one for one in nodes if one not in alive]))
            assert all(duty.node in alive for duty in duties)
            assert [duty.layers for duty in duties] == list(sizes)
