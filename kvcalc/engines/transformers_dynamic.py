"""What transformers' DynamicCache holds after a prefill.

Read in transformers 5.24.0, cache_utils.py and the code of the models named.

The cache is in the model's own format whatever a spec pins, recurrent states in fp32. It differs from the
need by habit (a window keeps the W - 1 past tokens that the next one will see, a convolution keeps all of
its columns) and in a few models by their own code.
"""

from collections.abc import Iterator

from kvcalc.cache.component import Component
from kvcalc.cache.formats import find_format
from kvcalc.cache.sharding import WHOLE
from kvcalc.cache.span import State
from kvcalc.model.spec import Layer
from kvcalc.sizing.need import CacheSize, layers_of

REPEATS_KV_HEADS = {"falcon"}
"""falcon with new_decoder_architecture expands its KV heads to the query heads before caching them."""

KEEPS_ENGINE_COLUMNS = {"recurrent_gemma"}
"""Keeps kernel - 1 columns, in the module and not in the cache object."""

STATE_IN_MODEL_FORMAT = {"minimax", "xlstm"}
"""Keep the recurrent state in the model's format."""

CONVOLUTIONS_IN_FP32 = {"inkling_text", "inkling2_text", "inkling2_loop_text"}
"""Keep the columns of convolutions in fp32."""

INDEX_IN_FP32 = {"dots3_note_text"}
"""Keeps index keys in fp32."""

INDEXES_EVERY_TOKEN = {"glm5_next_text": (2, 1), "qwen4_exp_text": (1, 0)}
"""Pool index keys when they are used and keep them of every token: how many vectors as wide as a key (GLM-5-Next has
a gate beside it), and how many more numbers."""

POSITION_AXES = {"qwen4_exp_text": 3}
"""Keeps the positions of all tokens, an int64 an axis (time, height, width), once for all layers."""

KEEPS_WHOLE_WINDOW = {"mimo_v2_flash"}
"""Means W past tokens and the new one by a window of W."""

COMPRESSES = {"deepseek_v4"}
"""Holds open rows of its compressors, and K and V of a layer that only slides as two equal tensors."""


class DynamicHolder:
    """Bytes of one sequence, layer by layer, and the rules that were met on the way."""

    def __init__(self, size: CacheSize, tokens: int | None = None) -> None:
        self.size = size
        self.tokens = tokens or size.workload.context_tokens
        self.model_type = size.spec.model_type or ""
        self.format = find_format(size.packer.dtype)
        self.rules: list[str] = []

    def held_bytes(self) -> int:
        """What the cache of the whole batch holds."""
        layers = layers_of(self.size.spec, self.size.workload)
        return self.size.workload.batch * (self.position_bytes() + sum(self.layer_bytes(layer) for layer in layers))

    def position_bytes(self) -> int:
        """What is held beside the layers."""
        axes = POSITION_AXES.get(self.model_type, 0)
        if axes:
            self.rules.append(f"positions of all tokens are kept, an int64 for each of {axes} axes")
        return self.tokens * axes * 8

    def layer_bytes(self, layer: Layer) -> int:
        """Everything that one layer holds."""
        own = sum(self._component_bytes(one) for one in layer.components)
        return own + (sum(self._open_bytes(layer)) if self.model_type in COMPRESSES else 0)

    def _component_bytes(self, component: Component) -> int:
        if component.selects and self.model_type in {*INDEX_IN_FP32, *INDEXES_EVERY_TOKEN}:
            return self._index_bytes(component)
        states = sum(self._state_bytes(state) for state in component.states(WHOLE))
        return self.entries(component) * self._entry_bytes(component) + states if component.keeps_entries else states

    def _index_bytes(self, component: Component) -> int:
        (part,) = component.parts(WHOLE)
        if self.model_type in INDEX_IN_FP32:
            self.rules.append("index keys are kept in fp32")
            return int(component.entries(self.tokens)) * part.width * 4
        vectors, numbers = INDEXES_EVERY_TOKEN[self.model_type]
        self.rules.append("index keys are pooled when they are used: what is pooled is kept of every token")
        return self.tokens * self.format.bulk_bytes(vectors * part.width + numbers, component.name)

    def entries(self, component: Component) -> int:
        """Entries that one layer keeps of one sequence."""
        entries, cap = int(component.entries(self.tokens)), component.span.cap
        if cap is None or component.is_encoder_fed or self.tokens < cap:
            return entries
        if self.model_type in KEEPS_WHOLE_WINDOW:
            return entries
        self.rules.append("a window or chunk of W keeps the last W - 1 tokens")
        return entries - 1

    def _entry_bytes(self, component: Component) -> int:
        packed = self.format.entry_bytes(component.parts(WHOLE), component.name)
        group = component.query_group
        if self.model_type not in REPEATS_KV_HEADS or group == 1 or not component.queries:
            return packed
        self.rules.append("KV heads are repeated to the query heads before they are cached")
        return packed // group * component.queries

    def _state_bytes(self, state: State) -> int:
        if state.is_convolution:
            form = find_format("fp32") if self.model_type in CONVOLUTIONS_IN_FP32 else self.format
            return form.bulk_bytes(state.values + self._extra_column(state), state.name)
        in_model_format = self.model_type in STATE_IN_MODEL_FORMAT or state.format == "model"
        if self.model_type in STATE_IN_MODEL_FORMAT:
            self.rules.append("the recurrent state is kept in the model's format")
        form = self.format if in_model_format else find_format("fp32")
        return form.bulk_bytes(state.values, state.name)

    def _extra_column(self, state: State) -> int:
        if self.model_type in KEEPS_ENGINE_COLUMNS:
            return 0
        self.rules.append("a convolution keeps all of its columns, one more than it needs")
        return state.width

    def _open_bytes(self, layer: Layer) -> Iterator[int]:
        """What compressors hold beside their entries; and the twin of a window in a layer that only slides."""
        compressed = [one for one in layer.components if one.span.ratio > 1]
        if not compressed:
            self.rules.append("a layer that only slides holds its vector twice, as K and as V")
            yield from (self.entries(one) * self._entry_bytes(one) for one in layer.components)
        for one in compressed:
            self.rules.append("compressors hold their open rows and gates, overlapping ones the last whole rows too")
            yield self._compressor_bytes(one)

    def _compressor_bytes(self, component: Component) -> int:
        """Tokens of an unfinished entry with their gates; where entries overlap, one more entry with gates in fp32."""
        ratio, width = component.span.ratio, sum(part.width for part in component.parts(WHOLE))
        open_values = self.tokens % ratio * width * (2 if component.overlaps else 1)
        held = 2 * self.format.bulk_bytes(open_values, component.name)
        if component.overlaps and self.tokens >= ratio:
            held += self.format.bulk_bytes(ratio * width, component.name) + ratio * width * 4
        return held
