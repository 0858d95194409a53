"""--layers: which layers of a model are kept, for every model of the catalogue and for made-up ones."""

from collections import Counter
from itertools import combinations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import models

import kvcalc
from kvcalc.cache.sharding import WHOLE
from kvcalc.errors import KvcalcError
from kvcalc.model.catalog import load
from kvcalc.model.resolve import resolve
from kvcalc.model.spec import Document
from kvcalc.model.subset import keep_layers
from kvcalc.sizing.need import Workload, size_workload

KV = {"kind": "kv", "q_heads": 4, "kv_heads": 2, "head_dim": 32}


def least_of(spec):
    """The smallest count of layers that is not refused."""
    return next(count for count in range(1, len(spec.layers) + 1) if not refused(spec, count))


def refused(spec, count):
    try:
        keep_layers(spec, count)
    except KvcalcError:
        return True
    return False


def places(spec, cut):
    """Which layers of the whole model those of the cut are: the same objects, in order."""
    found, start = [], 0
    for layer in cut.layers:
        start = next(place for place in range(start, len(spec.layers)) if spec.layers[place] is layer) + 1
        found.append(start - 1)
    return found


def sorts(layers):
    return Counter(msgspec.json.encode(layer) for layer in layers)


def check(spec, cut, count):
    """What holds of every cut."""
    assert len(cut.layers) == count
    assert sorts(cut.layers).keys() == sorts(spec.layers).keys()
    for read in cut.reads:
        # A reader keeps a source of the sort that it had, in an earlier layer or its own.
        assert read.owner_layer <= read.layer < count
        assert cut.layers[read.owner_layer].components[read.owner].keeps_entries
    readers = {(read.layer, read.reader) for read in cut.reads}
    labelled = {
        (at, place)
        for at, layer in enumerate(cut.layers)
        for place, one in enumerate(layer.components)
        if one.source_label
    }
    assert readers == labelled
    size_workload(cut, Workload(context_tokens=64, encoder_tokens=10), WHOLE)


@pytest.mark.parametrize("name", kvcalc.models())
def test_every_model_of_the_catalogue_keeps_all_its_sorts_and_sources(name):
    spec = load(name)
    least, total = least_of(spec), len(spec.layers)
    for count in sorted({least, min(least + 1, total), total}):
        check(spec, keep_layers(spec, count), count)
    assert least <= len(sorts(spec.layers)) * 3


@settings(max_examples=60)
@given(models(), st.data())
def test_made_up_models_keep_all_their_sorts_and_sources_at_every_count(spec, data):
    count = data.draw(st.integers(least_of(spec), len(spec.layers)))
    cut = keep_layers(spec, count)
    check(spec, cut, count)
    assert places(spec, cut) == sorted(places(spec, cut))


@settings(max_examples=60)
@given(models())
def test_no_fewer_layers_would_show_them_all(spec):
    """Against every smaller set of layers, tried one after another."""
    if len(spec.layers) > 9:
        return
    sources = {}
    for read in spec.reads:
        sources.setdefault(read.layer, set()).add(read.owner_layer)
    whole = sorts(spec.layers).keys()
    smaller = combinations(range(len(spec.layers)), least_of(spec) - 1)
    for kept in smaller:
        shows = sorts(spec.layers[place] for place in kept).keys() == whole
        assert not (shows and all(sources.get(place, set()) <= set(kept) for place in kept))


def model(*mixers, **keys):
    document = {"name": "made up", "hidden_size": 64, "layers": [{"mixer": one} for one in mixers]} | keys
    return resolve(msgspec.convert(document, Document))


def test_all_layers_are_the_model_itself():
    spec = load("deepseek-v4.1-flash")
    cut = keep_layers(spec, len(spec.layers))
    assert cut == msgspec.structs.replace(spec, draft_layers=(), checkpoint=None, reads=cut.reads)
    assert set(cut.reads) == {read for read in spec.reads if read.layer < len(spec.layers)}


def test_layers_keep_their_order_and_their_proportions():
    window = {**KV, "window": 8}
    spec = model(*[window] * 18, *[KV] * 6)
    cut = keep_layers(spec, 8)
    # Three of four layers keep a window.
    assert ["window" if layer.components[0].window else "full" for layer in cut.layers].count("window") == 6
    assert places(spec, cut) == sorted(places(spec, cut))


def test_readers_follow_their_source_to_its_new_place():
    """Layers 0 to 5: window, full, reader of 1, window, full, reader of 4."""
    one = [{**KV, "window": 8}, KV, {"kind": "shared", "source": "previous", "q_heads": 4}]
    cut = keep_layers(model(*one, *one), 3)
    assert [(read.layer, read.owner_layer) for read in cut.reads] == [(2, 1)]
    both = keep_layers(model(*one, *one), 6)
    assert [(read.layer, read.owner_layer) for read in both.reads] == [(2, 1), (5, 4)]


def test_layers_that_a_prompt_passes_are_counted_anew():
    """Six layers below the line and six readers above it, of which three and one are kept."""
    reader = {"kind": "shared", "source": "previous", "q_heads": 4}
    spec = model(*[{**KV, "window": 8}] * 5, KV, *[reader] * 6, prefill_layers=6)
    kept = places(spec, keep_layers(spec, 4))
    cut = keep_layers(spec, 4)
    assert cut.prefill_layers == sum(place < 6 for place in kept)
    assert 0 < cut.prefill_layers < 4
    assert keep_layers(spec, 12).prefill_layers == 6
    assert keep_layers(model(KV, KV), 1).prefill_layers is None


def test_deepseek_v4_1_is_cut_to_eight():
    spec = load("deepseek-v4.1-flash")
    cut = keep_layers(spec, 8)
    check(spec, cut, 8)
    assert cut.prefill_layers is None or cut.prefill_layers <= 8
    assert size_workload(cut, Workload(), WHOLE).total_bytes < size_workload(spec, Workload(), WHOLE).total_bytes


def test_too_few_layers_name_the_fewest():
    spec = model(KV, {**KV, "window": 8}, {"kind": "shared", "source": "previous", "q_heads": 4})
    with pytest.raises(KvcalcError) as found:
        keep_layers(spec, 2)
    assert found.value.message == "--layers 2: made up needs 3 to show every distinct layer and every source read"
    assert found.value.hint == "use --layers 3 or more"


@pytest.mark.parametrize("count", [0, -1, 3])
def test_counts_that_the_model_does_not_have_are_refused(count):
    with pytest.raises(KvcalcError) as found:
        keep_layers(model(KV, KV), count)
    assert (found.value.message, found.value.hint) == (f"--layers {count}: made up has 2 layers", "use --layers 1 to 2")


def test_weights_in_files_are_of_the_whole_model_and_draft_layers_are_left_out():
    spec = load("deepseek-v3")
    assert spec.draft_layers
    cut = keep_layers(spec, 2)
    assert (cut.draft_layers, cut.checkpoint) == ((), None)


def test_a_reader_decides_which_of_two_alike_owners_is_kept():
    """Two layers of one sort, of which the second is read: the first shows nothing that the second does not."""
    owner = {"kind": "kv", "q_heads": 4, "kv_heads": 2, "head_dim": 32}
    spec = model(owner, owner, {"kind": "shared", "source": "previous", "q_heads": 4})
    assert least_of(spec) == 2
    assert places(spec, keep_layers(spec, 2)) == [1, 2]
