"""Paged stores against contiguous ones, shared prefixes, and copies on write."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from tiny import BATCH, MODELS, TOKENS, build, in_passes, near, tokens  # noqa: E402

from kvcalc.errors import KvcalcError  # noqa: E402
from kvcalc.reference.attend import attend  # noqa: E402
from kvcalc.reference.codecs import VectorShape  # noqa: E402
from kvcalc.reference.paged import NO_BLOCK  # noqa: E402
from kvcalc.reference.seen import Rule, Seen, Stored  # noqa: E402
from kvcalc.reference.store import Room, make_store  # noqa: E402

ENTRIES, HEADS, WIDTH = 23, 2, 32
SHAPE = VectorShape("k", HEADS, WIDTH)
# One of every way to lay entries out: plain, along a head, scales outside, over a row.
LAYOUTS = ["fp32", "bf16", "fp8", "mxfp4", "int8", "int4_per_token_head", "q8_0", "q4_1"]


def store(page, form="fp32", entries=ENTRIES, batch=BATCH, exact=None):
    """An empty store, paged unless `page` is None."""
    return make_store(form, SHAPE, Room(batch, entries, "cpu", page), exact or torch.float32, exact)


def values(count, seed=0, dtype=torch.float32, batch=BATCH):
    return torch.randn(batch, HEADS, count, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def filled(page, count=ENTRIES, form="fp32", exact=None):
    made = store(page, form, exact=exact)
    made.write(slice(0, count), values(count, dtype=exact or torch.float32))
    return made


@given(
    form=st.sampled_from(LAYOUTS),
    page=st.integers(1, ENTRIES + 2),
    ends=st.sets(st.integers(1, ENTRIES), min_size=1, max_size=5),
    data=st.data(),
)
@settings(max_examples=60)
def test_what_is_read_is_what_a_contiguous_store_holds(form, page, ends, data):
    paged, plain = store(page, form), store(None, form)
    ends = sorted(ends)
    for start, end in zip([0, *ends], ends, strict=False):
        new = values(end - start, seed=end)
        paged.write(slice(start, end), new)
        plain.write(slice(start, end), new)
    last = ends[-1]
    start = data.draw(st.integers(0, last - 1))
    slots = slice(start, data.draw(st.integers(start + 1, last)))
    assert torch.equal(paged.read(slots), plain.read(slots))
    index = torch.tensor(
        data.draw(st.lists(st.lists(st.integers(0, last - 1), min_size=4, max_size=4), min_size=2, max_size=2))
    )
    assert torch.equal(paged.gather(index), plain.gather(index))
    assert paged.read_bytes == plain.read_bytes > 0
    assert paged.blocks_in_use == BATCH * -(-last // page)


@pytest.mark.parametrize("form", LAYOUTS)
def test_single_slots_are_written_wherever_they_are(form):
    paged, plain, slots = store(4, form), store(None, form), torch.tensor([17, 2, 9, 3])
    for one in (paged, plain):
        one.scatter(slots, values(4))
    index = slots.expand(BATCH, -1)
    assert torch.equal(paged.gather(index), plain.gather(index))
    assert (paged.table != NO_BLOCK).tolist() == [[True, False, True, False, True, False]] * BATCH


def test_entries_lie_where_the_block_table_says():
    """Block by block out of the pool by hand: entry j in block table[j // page] at j % page."""
    paged = filled(5)
    for row in range(BATCH):
        by_hand = [paged.buffers["entries"][paged.table[row, j // 5], :, j % 5] for j in range(ENTRIES)]
        assert torch.equal(torch.stack(by_hand, dim=1), values(ENTRIES)[row])
    assert len(set(paged.table.flatten().tolist())) == paged.table.numel()


@pytest.mark.parametrize("page", [1, 4, 7, 64])
@pytest.mark.parametrize("queries", [1, 6])
def test_attention_block_by_block(page, queries):
    """The definition, softmax(q K / sqrt(width)) V with later entries left out, over entries in pages."""
    exact = torch.float64
    q = torch.randn(BATCH, 4, queries, WIDTH, dtype=exact, generator=torch.Generator().manual_seed(5))
    k, v = (values(ENTRIES, seed, exact) for seed in (0, 1))
    stores = [store(page, exact=exact) for _ in range(2)]
    for one, new in zip(stores, (k, v), strict=True):
        one.write(slice(0, ENTRIES), new)
    past = ENTRIES - queries
    found = attend(q, [Seen((Stored(stores, ENTRIES),), Rule())], past, WIDTH**-0.5, exact)
    scores = torch.einsum("bgitw,bgew->bgite", q.unflatten(1, (HEADS, -1)), k) / WIDTH**0.5
    later = torch.arange(ENTRIES) > torch.arange(past, ENTRIES)[:, None]
    weights = scores.masked_fill(later, float("-inf")).softmax(-1)
    near(found, torch.einsum("bgite,bgew->bgitw", weights, v).flatten(1, 2), 1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_a_paged_session_computes_what_a_contiguous_one_does(name):
    model, ids = build(MODELS[name]), tokens()
    sizes = [TOKENS - 8, 5, 1, 1, 1]
    expected = in_passes(model, ids, sizes)
    near(in_passes(model, ids, sizes, page=5), expected, 1e-12)


# ---- sharing


def shared(count, prefix, page=4):
    """A store of two sequences with `count` entries each; then the second is new and begins with a prefix of the first."""
    made = filled(page, count)
    made.release(1)
    made.share(0, 1, prefix)
    return made


def entries_of(paged, row, count):
    return paged.read(slice(0, count))[row]


def test_a_shared_prefix_lies_in_the_same_blocks():
    made = filled(4, 10)
    assert made.blocks_in_use == 6
    made.release(1)
    assert made.blocks_in_use == 3
    made.share(0, 1, 8)
    assert made.blocks_in_use == 3
    assert made.table.tolist()[1][:3] == [*made.table.tolist()[0][:2], NO_BLOCK]
    assert torch.equal(entries_of(made, 1, 8), values(10)[0, :, :8])
    assert torch.equal(made.gather(torch.tensor([[7, 0], [7, 0]]))[1], values(10)[0, :, [7, 0]])


@pytest.mark.parametrize(("prefix", "blocks"), [(8, 2 + 2), (10, 2 + 2), (6, 1 + 2)])
def test_who_writes_into_a_shared_block_gets_a_copy_of_it(prefix, blocks):
    """Both go on differently behind the prefix. Blocks that the prefix fills stay shared; a partly filled one does not."""
    made, new = shared(prefix, prefix), values(2, seed=9)
    assert made.blocks_in_use == -(-prefix // 4)
    made.write(slice(prefix, prefix + 2), new)
    assert made.blocks_in_use == blocks
    for row in range(BATCH):
        expected = torch.cat([values(prefix)[0], new[row]], dim=1)
        assert torch.equal(entries_of(made, row, prefix + 2), expected)


def test_what_a_reader_overwrites_stays_with_the_source():
    """Entries 4 and 5 stand in a block of the source that the reader shares as far as entry 4."""
    made = shared(6, 5)
    made.scatter(torch.tensor([5]), values(1, seed=3))
    kept = values(6)[0, :, :5]
    for row in range(BATCH):
        assert torch.equal(entries_of(made, row, 6), torch.cat([kept, values(1, seed=3)[row]], dim=1))


def test_a_released_block_is_used_again_and_a_shared_one_kept():
    made = shared(8, 8)
    made.release(0)
    assert made.blocks_in_use == 2
    assert torch.equal(entries_of(made, 1, 8), values(8)[0])
    made.release(1)
    assert made.blocks_in_use == 0
    made.write(slice(0, ENTRIES), values(ENTRIES, seed=2))
    assert made.blocks_in_use == len(made.references) == BATCH * 6
    assert torch.equal(made.read(slice(0, ENTRIES)), values(ENTRIES, seed=2))


def test_packed_entries_and_their_scales_are_shared_together():
    made = filled(4, 10, "int8")
    expected = made.read(slice(0, 10))[0]
    made.release(1)
    made.share(0, 1, 10)
    made.write(slice(10, 11), values(1, seed=4))
    assert torch.equal(made.read(slice(0, 10)), torch.stack([expected, expected]))


def test_a_prefix_that_nobody_holds_is_not_shared():
    made = filled(4, 10)
    with pytest.raises(KvcalcError, match="sequence 1 holds entries already"):
        made.share(0, 1, 4)
    made.release(1)
    with pytest.raises(KvcalcError, match="sequence 0 does not hold 13 entries"):
        made.share(0, 1, 13)
    with pytest.raises(KvcalcError, match=f"sequence 0 does not hold {ENTRIES + 1} entries"):
        filled_up = filled(4)
        filled_up.release(1)
        filled_up.share(0, 1, ENTRIES + 1)
    assert made.blocks_in_use == 3
