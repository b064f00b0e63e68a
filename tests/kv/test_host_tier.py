from __future__ import annotations

import random

import pytest

from zse.kv.cache import KVCache
from zse.kv.host_tier import HostTier, digest_behind, digest_of_root
from zse.kv.prefix import PUBLIC
from zse.kv.table import BlockTable

SIZE = 4


class Memory:
    """A pool's blocks and the host's slots, with what was computed into them."""

    def __init__(self, num_blocks: int, most_slots: int) -> None:
        self.pool: list[object] = [None] * num_blocks
        self.slots: list[object] = [None] * most_slots
        self.num_slots = self.most_slots = most_slots

    def open_slots(self) -> int:
        return self.num_slots

    def keep(self, blocks, slots) -> None:
        assert list(slots) == sorted(set(slots))
        for block, slot in zip(blocks, slots, strict=True):
            self.slots[slot] = self.pool[block]

    def bring(self, slots, blocks) -> None:
        for slot, block in zip(slots, blocks, strict=True):
            self.pool[block] = self.slots[slot]


class Engine:
    """A cache whose blocks are computed at once."""

    def __init__(self, num_blocks: int = 8, most_slots: int = 16) -> None:
        self.memory = Memory(num_blocks, most_slots)
        self.tier = HostTier(self.memory)
        self.cache = KVCache(num_blocks=num_blocks, block_size=SIZE, tier=self.tier)

    def ask(self, tokens: list[int], namespace="") -> BlockTable | None:
        """Open a table, look at what it reuses, and compute the rest."""
        table = self.cache.open_table(tokens, namespace=namespace)
        if table is None:
            return None
        for index in range(len(tokens) // SIZE):
            meant = (namespace, tuple(tokens[: (index + 1) * SIZE]))
            block = table.blocks[index]
            if index < table.num_reused_tokens // SIZE:
                assert self.memory.pool[block] == meant
            else:
                self.memory.pool[block] = meant
        given_up = self.cache.commit(table, tokens, num_computed=len(tokens))
        self.cache.close_table(BlockTable(blocks=given_up))
        return table

    def answer(self, tokens: list[int], namespace="") -> int:
        """Ask and end; return how many tokens were reused."""
        table = self.ask(tokens, namespace)
        assert table is not None
        self.cache.close_table(table)
        return table.num_reused_tokens


def text(seed: int, length: int = 20) -> list[int]:
    return [seed * 100 + number for number in range(length)]


def test_what_the_pool_gives_up_comes_back_from_the_host() -> None:
    engine = Engine()
    assert engine.answer(text(1)) == 0
    engine.answer(text(2))
    engine.answer(text(3))  # the pool holds no more than one and a half of them
    assert engine.answer(text(1)) == 16
    assert engine.tier.hit_tokens == 16


def test_what_came_back_is_not_copied_again() -> None:
    engine = Engine()
    for _ in range(3):
        for seed in (1, 2, 3):
            engine.answer(text(seed))
    assert engine.tier.kept_blocks <= 15


def test_a_salt_does_not_open_what_another_one_left() -> None:
    engine = Engine(most_slots=40)
    engine.answer(text(1), "ann")
    engine.answer(text(2), "ann")
    engine.answer(text(3), "ann")
    assert engine.answer(text(1), "bob") == 0
    assert engine.answer(text(1)) == 0
    assert engine.answer(text(1), "ann") == 16
    assert engine.answer(text(1), (0, "ann")) == 0  # with an adapter


def test_a_text_is_restored_behind_what_is_left_of_it() -> None:
    engine = Engine(num_blocks=6)
    engine.answer(text(1))
    engine.answer([7, 7, 7, 7, 7])  # takes an end away
    assert engine.answer(text(1)) == 16


def test_the_least_recently_used_ends_go_first() -> None:
    engine = Engine(num_blocks=5, most_slots=6)
    engine.answer(text(1))
    engine.answer(text(2))
    engine.answer(text(3))  # 15 blocks in all, of which the host has 6
    engine.tier.check_consistency()
    assert engine.tier.num_used == 6
    assert engine.answer(text(2)) > 0


def test_what_all_may_share_is_everybodys_from_the_host_too() -> None:
    engine = Engine()
    table = engine.cache.open_table(text(1, 8), namespace=PUBLIC)
    assert table is not None
    for index, block in enumerate(table.blocks):
        engine.memory.pool[block] = index
    engine.cache.commit(table, text(1, 8), num_computed=8)
    engine.cache.close_table(table)
    engine.answer(text(2))
    engine.answer(text(3))
    for namespace in ("ann", "bob"):
        table = engine.cache.open_table([*text(1, 8), 5], namespace=namespace)
        assert table is not None
        assert table.num_reused_tokens == 8
        assert [engine.memory.pool[block] for block in table.blocks[:2]] == [0, 1]
        engine.cache.close_table(table)


def test_forgetting_forgets_the_host_too() -> None:
    engine = Engine()
    for seed in (1, 2, 3):
        engine.answer(text(seed))
    engine.cache.flush()
    assert engine.tier.num_used == 0
    assert [engine.answer(text(seed)) for seed in (1, 2)] == [0, 0]


def test_nothing_is_kept_before_there_is_memory() -> None:
    engine = Engine()
    engine.memory.num_slots = 0
    for seed in (1, 2, 3):
        engine.answer(text(seed))
    assert engine.tier.num_used == 0
    engine.memory.num_slots = 16
    for seed in (1, 2, 3):
        engine.answer(text(seed))
    assert engine.tier.num_used > 0


def test_a_table_without_room_lets_go_of_what_it_found() -> None:
    engine = Engine(num_blocks=6)
    engine.answer(text(1))
    running = engine.ask(text(2))
    assert running is not None
    assert engine.ask(text(1)) is None
    assert not engine.tier._held
    engine.cache.close_table(running)
    assert engine.answer(text(1)) == 16


@pytest.mark.parametrize("seed", range(6))
def test_content_is_always_that_of_its_text_over_random_requests(seed: int) -> None:
    rng = random.Random(seed)
    engine = Engine(num_blocks=10, most_slots=rng.choice([1, 4, 9, 30]))
    tables: list[BlockTable] = []
    for _ in range(400):
        if tables and rng.random() < 0.5:
            engine.cache.close_table(tables.pop(rng.randrange(len(tables))))
        tokens = [rng.choice((1, 2)) for _ in range(rng.randrange(1, 24))]
        table = engine.ask(tokens, rng.choice(("", "ann")))
        if table is not None:
            tables.append(table)
        if rng.random() < 0.01:
            engine.cache.flush()
        engine.tier.check_consistency()
        engine.cache.check_consistency(tables)
    assert engine.tier.hit_tokens > 0


def test_digests_tell_texts_owners_and_cuts_apart() -> None:
    root = digest_of_root("")
    found = {
        root,
        digest_of_root("a"),
        digest_of_root(PUBLIC),
        digest_of_root((0, "a")),
        digest_behind(root, "", (1, 2)),
        digest_behind(root, "", (2, 1)),
        digest_behind(root, "a", (1, 2)),
        digest_behind(root, "", (1, 2, 0)),
        digest_behind(digest_behind(root, "", (1,)), "", (2,)),
    }
    assert len(found) == 9
