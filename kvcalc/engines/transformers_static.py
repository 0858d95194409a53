"""What transformers' StaticCache holds: all of its tokens from the first step on.

Read in transformers 5.24.0: StaticCache of cache_utils.py, _prepare_static_cache of generation/utils.py.
"""

from kvcalc.cache.component import Component
from kvcalc.engines.transformers_dynamic import (
    COMPRESSES,
    INDEXES_EVERY_TOKEN,
    KEEPS_ENGINE_COLUMNS,
    POSITION_AXES,
    STATE_IN_MODEL_FORMAT,
    DynamicHolder,
)
from kvcalc.errors import KvcalcError
from kvcalc.sizing.need import CacheSize
from kvcalc.sizing.stages import components_of

HAVE_THEIR_OWN = {*COMPRESSES, *INDEXES_EVERY_TOKEN, *KEEPS_ENGINE_COLUMNS, *POSITION_AXES, *STATE_IN_MODEL_FORMAT}
"""Types of models whose code fills no static cache as the others do, or none at all."""


class StaticHolder(DynamicHolder):
    """Bytes of one sequence where K and V are made for `max_cache_len` tokens, whatever is in them."""

    def __init__(self, size: CacheSize, max_cache_len: int | None) -> None:
        super().__init__(size, max(size.workload.context_tokens, max_cache_len or 0))
        if self.model_type in HAVE_THEIR_OWN or any(one.span.ratio > 1 for one in components_of(size.layers)):
            message = f"no static cache of transformers is known for {size.spec.name}"
            raise KvcalcError(message, "leave --cache-implementation out for the dynamic one")
        self.rules.append(f"K and V are made for {self.tokens:,} tokens at once, or for a window or chunk if less")

    def entries(self, component: Component) -> int:
        """All tokens that it is made for; a window or chunk keeps its own W, the newest token among them."""
        return int(component.entries(self.tokens))
