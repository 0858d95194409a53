"""When a prefix that is kept can still be found, by hand: vLLM 0.33, v1/core/block_pool.py and kv_cache_manager.py.

`get_new_blocks` takes the block that was unused for longest and forgets its prefix at once, `cache_blocks` names a
block when its tokens are computed.
"""

import numpy as np
import pytest
from workload.stepwise import layout_of_blocks

from kvcalc.workload.metrics import metrics_of
from kvcalc.workload.simulate import Setting, simulate
from kvcalc.workload.steptime import FixedCost
from kvcalc.workload.trace import Trace

KEPT = [(0, 4, 1, [1]), (0, 4, 1, [2]), (0, 4, 1, [3])]
"""Three requests of a block each, which leave them behind at second 1, the first one's the oldest."""


def served(requests, **more):
    """What becomes of (arrival, prompt, output, ids of full blocks of 4 tokens) in six blocks, a second a step."""
    arrivals, prompts, outputs, ids = zip(*requests, strict=True)
    trace = Trace(
        name="small",
        prompt_tokens=np.array(prompts),
        output_tokens=np.array(outputs),
        arrival_seconds=np.array(arrivals, dtype=float),
        prefix_ids=np.array([one for own in ids for one in own]),
        prefix_ends=np.cumsum([len(own) for own in ids]),
        prefix_tokens=4,
    )
    blocks = {"layout": layout_of_blocks(), "pool_units": 24}
    return simulate(trace, Setting(**blocks, prefix_caching=True, cost=FixedCost(1.0), **more))


@pytest.mark.parametrize(("sought", "hits"), [(1, 0), (2, 4), (3, 4)])
def test_who_is_admitted_first_in_a_step_pushes_out_what_the_next_one_seeks(sought, hits):
    """Four blocks beside three in six: the oldest goes. Nobody needs more until the second one has looked."""
    found = served([*KEPT, (5, 16, 1, [4, 5, 6, 7]), (5, 5, 1, [sought])])
    assert found.requests.admitted_seconds[3:].tolist() == [5, 5]
    assert found.requests.hit_tokens[4] == hits


@pytest.mark.parametrize(("sought", "hits"), [(1, 0), (2, 4)])
def test_who_grows_pushes_out_what_a_newcomer_seeks(sought, hits):
    """Three blocks become four when the answer's first token is fed back, in the step that admits the newcomer."""
    found = served([*KEPT, (5, 12, 9, [4, 5, 6]), (6, 5, 1, [sought])])
    assert found.requests.admitted_seconds[4] == 6
    assert found.requests.hit_tokens[4] == hits


def test_of_a_preempted_prompt_what_was_computed_is_found():
    """Four of 16 tokens, a block, when the first request needs a third one: 12 at three a step take four steps more."""
    found = served([(0, 7, 3, [1]), (1, 16, 1, [2, 3, 4, 5])], max_num_batched_tokens=3)
    assert found.requests.preemptions.tolist() == [0, 1]
    assert found.requests.finished_seconds.tolist() == [5, 5 + 4]
    assert metrics_of(found).recomputed_tokens == 0
