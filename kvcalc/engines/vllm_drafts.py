"""What speculative decoding adds to vLLM's caches: blocks and columns of states, and tokens that windows retain.

Read in vLLM 0.33.0: config/speculative.py (the default of num_speculative_tokens, use_multi_module_mtp), config/vllm.py
(num_prefill_lookahead_tokens), v1/core/kv_cache_planning.py (get_global_kv_cache_groups), model_executor/layers/mamba
(MambaSpec.num_speculative_blocks, MambaStateShapeCalculator). A draft layer is a layer like any other: `is_draft` is no
part of what makes specs equal, so it joins the groups of the model.
"""

from collections.abc import Iterator

from kvcalc.cache.span import State
from kvcalc.engines.vllm_rules import Rules
from kvcalc.sizing.need import CacheSize


class DraftTokens:
    """The tokens that one step drafts; `chained` is whether draft layers run one behind the other (MTP)."""

    def __init__(self, size: CacheSize, tokens: int, chained: bool, release: Rules) -> None:
        self.layers, self.tokens = size.workload.draft_layers, tokens
        self.is_chain = release.retains_draft_tokens and chained and min(self.layers, self.tokens) > 1
        self.state_blocks = tokens if release.counts_draft_states else 0

    @property
    def retained_tokens(self) -> int:
        """Tokens that a window keeps beside its own: several draft layers in a chain fill them again."""
        return self.tokens - 1 if self.is_chain else 0

    def widened(self, state: State) -> State:
        """A convolution with a column more for every draft token; another state as it is."""
        if not state.is_convolution:
            return state
        *width, columns = state.shape
        return state._replace(shape=(*width, columns + self.tokens))

    def rules(self, states: bool) -> Iterator[str]:
        """What an answer should say; `states` is whether the model keeps any."""
        if self.layers:
            yield f"the groups of the model's own layers take in the draft layers: {self.layers}"
        if self.tokens and states:
            blocks = "so many blocks more of every state, and" if self.state_blocks else "so many"
            yield f"{self.tokens} draft tokens a step: {blocks} columns of convolutions"
        if self.retained_tokens:
            yield f"a window keeps {self.retained_tokens} tokens more, which chained draft layers fill again"
