"""The paged pool, step by step: whatever is done to it, nothing is lost, owned twice or read wrong."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvcalc.engines.vllm_holding import ChunkBlocks, SlidingBlocks
from kvcalc.sizing.blocks import Group, Layout, Pinned, Window
from kvcalc.workload.paged import PagedPool


def layout(*groups, slot_units=0):
    return Layout(groups=groups, slot_units=slot_units, bytes_per_unit=1)


TOKENS = Group(name="tokens", block_tokens=4, units=1)
WINDOW = Window(name="window", block_tokens=4, units=3, cap=6)
RATIO = Group(name="ratio", block_tokens=8, units=2, ratio=2)
LAYOUTS = [
    layout(TOKENS),
    layout(TOKENS, WINDOW),
    layout(RATIO, WINDOW),
    layout(TOKENS, slot_units=5),
    layout(
        Pinned(name="first", block_tokens=4, units=1, cap=3),
        Window(name="window", block_tokens=4, units=1, cap=5, first=3),
    ),
    layout(TOKENS, Group(name="chunk", block_tokens=2, units=1, cap=6)),
    layout(TOKENS, SlidingBlocks.of(4, 3, 8), ChunkBlocks.of(4, 8, 8)),
]


def expected_entries(group, tokens):
    """What a group holds by brute force: every write in turn, less the blocks that were dropped."""
    slots = {}
    for count in range(1, len(tokens) + 1):
        slot = group.slot(count)
        if slot is not None:
            slots[slot] = tokens[count - 1]
    first = group.dropped_blocks(len(tokens)) * group.block_entries
    return [slots[slot] for slot in sorted(slots) if slot >= first]


class Pool(RuleBasedStateMachine):
    """Sequences that come, grow, part, are preempted and go, beside lists of the tokens that they should hold."""

    @initialize(layout=st.sampled_from(LAYOUTS), units=st.integers(10, 60))
    def begin(self, layout, units):
        self.pool = PagedPool(layout, units)
        self.running, self.waiting, self.swapped = [], [], []

    def pick(self, data, held):
        return held.pop(data.draw(st.integers(0, len(held) - 1)))

    @rule(prefix=st.integers(0, 2), length=st.integers(1, 24), tail=st.lists(st.integers(0, 1), max_size=3))
    def add(self, prefix, length, tail):
        tokens = [prefix + place % 5 for place in range(length)] + tail
        table = self.pool.add(tokens)
        if table is not None:
            self.running.append((table, tokens))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 2), min_size=1, max_size=9))
    def grow(self, data, tokens):
        table, held = self.running[data.draw(st.integers(0, len(self.running) - 1))]
        for token in tokens:
            room = self.pool.free_units + self.pool.cached_units
            if self.pool.append(table, token):
                held.append(token)
            else:
                assert room < sum(group.units for group in self.pool.layout.groups)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def fork(self, data):
        table, held = self.running[data.draw(st.integers(0, len(self.running) - 1))]
        twin = self.pool.fork(table)
        if twin is not None:
            self.running.append((twin, list(held)))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data):
        self.pool.free(self.pick(data, self.running)[0])

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def preempt_to_recompute(self, data):
        table, held = self.pick(data, self.running)
        self.pool.free(table)
        self.waiting.append(held)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def recompute(self, data):
        held = self.pick(data, self.waiting)
        table = self.pool.add(held)
        if table is None:
            self.waiting.append(held)
        else:
            self.running.append((table, held))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def preempt_by_swapping(self, data):
        table, held = self.pick(data, self.running)
        self.swapped.append((self.pool.swap_out(table), held))

    @precondition(lambda self: self.swapped)
    @rule(data=st.data())
    def swap_in(self, data):
        away, held = self.pick(data, self.swapped)
        table = self.pool.swap_in(away)
        if table is None:
            self.swapped.append((away, held))
        else:
            self.running.append((table, held))

    def blocks(self):
        return [block for table, _ in self.running for block in table.all_blocks()]

    @invariant()
    def references_are_the_sequences_that_read_a_block(self):
        readers = Counter(map(id, self.blocks()))
        assert all(block.references == readers[id(block)] for block in self.blocks())

    @invariant()
    def used_and_free_and_cached_are_the_pool(self):
        groups, pool = self.pool.layout.groups, self.pool
        used = sum(groups[block.group].units for block in {id(one): one for one in self.blocks()}.values())
        assert pool.used_units == used + len(self.running) * pool.layout.slot_units
        assert pool.cached_units == sum(groups[block.group].units for block in pool._idle.values())
        assert pool.used_units + pool.free_units + pool.cached_units == pool.units
        assert min(pool.used_units, pool.free_units, pool.cached_units) >= 0
        assert all(block.references == 0 for block in pool._idle.values())

    @invariant()
    def a_sequence_reads_what_it_wrote(self):
        for table, held in self.running:
            assert table.tokens == held
            for place, group in enumerate(self.pool.layout.groups):
                entries = self.pool.read(table, place)
                assert entries == expected_entries(group, held)

    @invariant()
    def it_holds_what_the_layout_counts_and_wastes_less_than_a_block(self):
        for table, held in self.running:
            assert self.pool.held_units(table) == self.pool.layout.units(len(held))
            for place, group in enumerate(self.pool.layout.groups):
                room = len(table.blocks[place]) * group.block_entries
                assert 0 <= room - len(self.pool.read(table, place)) < group.block_entries

    def teardown(self):
        if hasattr(self, "pool"):
            held = self.blocks()
            for table, _ in self.running:
                self.pool.free(table)
            assert self.pool.used_units == 0
            assert all(block.references == 0 for block in held)


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_the_last_block_is_copied_when_one_of_two_writes_into_it():
    """Section 4.4, figure 8 of the paper: the full blocks of a prompt stay shared, the last one is copied once."""
    pool = PagedPool(layout(TOKENS), 100)
    first = pool.add([1, 2, 3, 4, 5, 6, 7])
    second = pool.fork(first)
    assert pool.used_units == 2
    assert pool.append(first, 8)
    assert pool.used_units == 3
    assert pool.append(second, 9)
    assert pool.used_units == 3, "the second is alone with the block by now"
    assert pool.read(first, 0) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert pool.read(second, 0) == [1, 2, 3, 4, 5, 6, 7, 9]


def test_a_freed_prompt_is_found_again_by_whole_blocks_but_for_its_last_token():
    pool = PagedPool(layout(TOKENS), 100)
    prompt = [1, 2, 3, 4, 5, 6, 7, 8]
    pool.free(pool.add(prompt))
    assert (pool.used_units, pool.cached_units) == (0, 2)
    again = pool.add(prompt)
    assert (pool.used_units, pool.cached_units) == (2, 1), "the second block is computed anew for its last token"
    longer = pool.add([*prompt, 9])
    assert longer.blocks[0][0] is again.blocks[0][0]
    assert pool.add([2, 2, 3, 4, 5, 6, 7, 8, 9]).blocks[0][1] is not longer.blocks[0][1], "other tokens stand before it"


def test_the_tail_of_a_prefix_is_forgotten_before_its_head():
    pool = PagedPool(layout(TOKENS), 3)
    first = pool.add([1, 2, 3, 4, 5, 6, 7, 8, 9])
    head = first.blocks[0][0]
    pool.free(first)
    assert (pool.free_units, pool.cached_units) == (1, 2)
    other = pool.add([7, 7, 7, 7, 7])
    assert (pool.used_units, pool.cached_units) == (2, 1)
    pool.free(other)
    assert pool.add([1, 2, 3, 4, 9]).blocks[0][0] is head


def test_a_block_of_a_window_is_found_by_all_that_stood_before_it():
    """Equal tokens behind other tokens are other keys and values, even where a window has dropped what was before."""
    pool = PagedPool(layout(Window(name="window", block_tokens=4, units=1, cap=4)), 100)
    first = pool.add([1, 1, 1, 1, 5, 5, 5, 5, 6])
    same = pool.add([1, 1, 1, 1, 5, 5, 5, 5, 7])
    other = pool.add([2, 2, 2, 2, 5, 5, 5, 5, 6])
    assert same.blocks[0][1] is first.blocks[0][1]
    assert other.blocks[0][1] is not first.blocks[0][1]


def test_states_are_a_limit_of_their_own():
    pool = PagedPool(layout(TOKENS, slot_units=5), 13)
    first = pool.add([1])
    assert pool.add([1]) is not None
    assert (pool.add([1]), pool.fork(first)) == (None, None)
    assert not PagedPool(layout(TOKENS, slot_units=5), 13).reuses_prefixes


@pytest.mark.parametrize("groups", [(TOKENS,), (TOKENS, WINDOW)])
def test_without_room_nothing_happens(groups):
    pool = PagedPool(layout(*groups), sum(group.units for group in groups))
    table = pool.add([1, 2, 3, 4])
    assert not pool.append(table, 5)
    assert (table.tokens, pool.free_units) == ([1, 2, 3, 4], 0)
    assert pool.add([9]) is None
    away = pool.swap_out(table)
    blocker = pool.add([9])
    assert pool.swap_in(away) is None
    pool.free(blocker)
    assert pool.read(pool.swap_in(away), 0) == [1, 2, 3, 4]


def test_a_block_that_a_window_drops_makes_room_for_the_next():
    pool = PagedPool(layout(Window(name="window", block_tokens=4, units=1, cap=5)), 2, reuses_prefixes=False)
    table = pool.add(range(30))
    assert pool.read(table, 0)[-5:] == [25, 26, 27, 28, 29]


def test_a_prefix_is_found_by_the_blocks_that_its_window_still_needs():
    pool = PagedPool(layout(Window(name="window", block_tokens=4, units=1, cap=4)), 4)
    first = pool.add(range(13))
    other = pool.add([99] * 5)
    assert pool.cached_units == 0, "what lies behind the window has been forgotten"
    pool.free(other)
    assert pool.add([*range(12), 99]).blocks[0][2] is first.blocks[0][2]
