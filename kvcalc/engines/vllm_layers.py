"""From a model to the per-layer specs that vLLM would build for it, on one rank.

Read in vLLM 0.33.0: get_kv_cache_spec of model_executor/layers/attention/*.py and layers/mamba/abstract.py,
platforms/interface.py (_align_hybrid_block_size), config/model.py (what a parallel size must divide).
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import msgspec

from kvcalc.cache.component import Attended, Component
from kvcalc.cache.formats import find_format
from kvcalc.cache.sharding import WHOLE, Sharding
from kvcalc.cache.span import State
from kvcalc.engines.vllm_compressed import compressed_of, index_key_bytes
from kvcalc.engines.vllm_drafts import DraftTokens
from kvcalc.engines.vllm_known import Asked, check_release
from kvcalc.engines.vllm_rules import Rules
from kvcalc.engines.vllm_specs import (
    Chunked,
    Full,
    Latent,
    PageSpec,
    Sliding,
    SlidingLatent,
    cdiv,
)
from kvcalc.engines.vllm_states import Encoder, States
from kvcalc.engines.vllm_versions import NEWEST
from kvcalc.errors import KvcalcError
from kvcalc.sizing.need import CacheSize
from kvcalc.sizing.stages import foreign_sources

BLOCK_SIZE, SPARSE_BLOCK_SIZE = 16, 128
"""Tokens of a block: DEFAULT_BLOCK_SIZE, and what index keys beside K and V take
(models/minimax_m3/common/sparse_attention.py); MLA has its own, `Rules.latent_block_size`."""

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""Plain formats by vLLM's names; those of `Rules.formats` are kept as bytes."""

STATES = {("conv", "ssm"), ("conv", "delta"), ("linear",), ("conv",)}
"""States that MambaStateShapeCalculator knows: Mamba, gated delta rules, linear attention, short convolutions."""

REPLICATED_HEADS = {"KV heads", "state groups"}
"""Heads of which every rank keeps at least one; others must divide."""


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM's own flags that decide its layers; a block size of None leaves the choice to it."""

    block_size: int | None
    prefix_caching: bool | None
    """None leaves it to the release."""
    num_speculative_tokens: int = 0
    rules: Rules = NEWEST
    version: str = ""
    """By which errors call the release."""


class Layers(msgspec.Struct, frozen=True, kw_only=True):
    """The specs of a rank in the order of the model, where pipeline stages cut them, and what was decided."""

    specs: tuple[PageSpec, ...]
    stages: tuple[tuple[int, int], ...]
    aligned_states: bool
    encoder_tokens: int
    rules: tuple[str, ...]
    block_outermost: bool = False
    """Whether a block holds the pages of all layers side by side, of whatever size."""


def layers_on_rank(size: CacheSize, flags: Flags) -> Layers:
    """What vLLM keeps for the model of `size`; KvcalcError for what it refuses or what is not known here."""
    components = [one for layer in size.layers for one in layer.components]
    kept = [one for one in components if one.keeps_entries or one.states(WHOLE)]
    _check_known(kept)
    _check_parallel(size, kept)
    asked = Asked(size, kept, flags.rules, flags.prefix_caching, flags.num_speculative_tokens)
    check_release(asked, flags.version)
    builder = _Builder(size, flags, kept)
    # Layers of a repeat are one object, and are kept alike.
    distinct: dict[int, list[PageSpec]] = {}
    for layer in size.layers:
        if id(layer) not in distinct:
            distinct[id(layer)] = builder.specs(layer.components)
    of_layers = [distinct[id(layer)] for layer in size.layers]
    cuts = [sum(map(len, of_layers[:end])) for _, end in size.stages]
    return Layers(
        specs=tuple(spec for specs in of_layers for spec in specs),
        stages=tuple(zip([0, *cuts[:-1]], cuts, strict=True)),
        aligned_states=builder.aligned,
        encoder_tokens=max((int(one.entries(0)) for one in kept if one.is_encoder_fed), default=0),
        rules=tuple(dict.fromkeys([*builder.rules, *builder.drafts.rules(bool(builder.states))])),
        block_outermost=builder.compressed is not None,
    )


class _Builder:
    """Specs of one model, and the rules that were met on the way."""

    def __init__(self, size: CacheSize, flags: Flags, kept: Sequence[Component]) -> None:
        self.size, self.ranks, self.release = size, Sharding(tp=size.sharding.tp), flags.rules
        self.rules: list[str] = []
        tokens = flags.num_speculative_tokens or size.workload.draft_layers
        self.compressed = compressed_of(size, flags.block_size, tokens)
        self.drafts = DraftTokens(size, tokens, self.compressed is None or self.compressed.chains_drafts, flags.rules)
        self.attention = [one for one in kept if one.keeps_entries and not one.selects]
        self.states = [one for one in kept if one.states(WHOLE)]
        cached = self.release.caches_states_by_default if flags.prefix_caching is None else flags.prefix_caching
        keeps_ends = self.release.cached_states == "align"
        self.aligned = cached and keeps_ends and bool(self.states) and bool(self.attention)
        self.has_latent = any(_is_latent(one) for one in self.attention)
        self.has_index = any(one.selects for one in kept)
        self.block_size = flags.block_size or self._own_block_size()
        self.state_page: int | None = None
        if self.attention and self.states:
            self._meet_states()

    def _meet_states(self) -> None:
        """Attention blocks grown until their page holds a state, and the state padded to it."""
        token_bytes = self._entries(self.attention[0], block_size=1).page_bytes
        largest = max(self._state_bytes(one) for one in self.states)
        step = self.release.latent_state_step if self.has_latent else BLOCK_SIZE
        if self.release.grows_in_block_size:
            step = max(step, self.block_size)
        grown = step * cdiv(largest, step * token_bytes)
        if grown > self.block_size:
            self.rules.append(f"attention blocks grow to {grown:,} tokens so that a page holds a state")
            self.rules += self._narrowed()
            self.block_size = grown
        self.state_page = self.block_size * token_bytes

    def _narrowed(self) -> list[str]:
        """What a format of fewer bytes than the model's buys where a block has to hold a state."""
        form, own = self.size.packer.entry_format(self.attention[0]), find_format(self.size.packer.dtype)
        parts = self.attention[0].parts(self.ranks)
        if form.entry_bytes(parts, form.name) >= own.entry_bytes(parts, own.name):
            return []
        return [f"{form.name} makes such a block longer and no smaller: a state is as large as before"]

    def _own_block_size(self) -> int:
        """Tokens of a block where nothing asks for others: what the kernels of all its layers take."""
        if self.has_latent:
            return self.release.latent_block_size
        return SPARSE_BLOCK_SIZE if self.has_index else BLOCK_SIZE

    def specs(self, components: Sequence[Component]) -> list[PageSpec]:
        """The specs of one layer."""
        kept = [one for one in components if one.keeps_entries or one.states(WHOLE)]
        if self.compressed is None:
            specs = [self._spec(one) for one in kept]
        else:
            self.rules += self.compressed.rules()
            specs = self.compressed.specs(kept)
        return [one.retaining(self.drafts.retained_tokens) for one in specs]

    def _spec(self, component: Component) -> PageSpec:
        if component.states(WHOLE):
            return self._state_spec(component)
        return self._index(component) if component.selects else self._entries(component, self.block_size)

    def _state_spec(self, component: Component) -> PageSpec:
        self.rules.append(
            "prefix caching keeps a state at a block's end beside the running one"
            if self.aligned
            else "a state takes one block of its group"
        )
        states = self._states_of(component)
        # The Mamba-2 mixer, whose state has three axes, may export one more from inside a prefill.
        exports = any(state.name == "ssm" and len(state.shape) == 3 for state in states)
        return States(
            block_size=self.block_size if self.aligned else self.size.workload.context_tokens,
            values_bytes=self._state_bytes(component),
            shapes=tuple(state.shape for state in states),
            padded_bytes=self.state_page,
            checkpoint_blocks=self.release.mamba_checkpoints if exports else 0,
            speculative_blocks=self.drafts.state_blocks,
        )

    def _states_of(self, component: Component) -> list[State]:
        """States on one rank; convolutions keep a column for every draft token too, but for Mamba-1's."""
        states = component.states(self.ranks)
        if any(state.name == "ssm" and len(state.shape) == 2 for state in states):
            return list(states)
        return [self.drafts.widened(state) for state in states]

    def _state_bytes(self, component: Component) -> int:
        """Bytes of a layer's states: convolutions in the model's format, others as asked, stated or the model's."""
        packer, spec = self.size.packer, self.size.spec
        own = "fp32" if spec.model_type in self.release.fp32_states else packer.dtype
        named = packer.asked_state_dtype or packer.spec_state_dtype or own
        self.rules.append(f"states are kept in {find_format(named).name}, their convolutions in {packer.dtype}")
        return sum(
            find_format(packer.dtype if state.is_convolution else named).bulk_bytes(prod(state.shape), state.name)
            for state in self._states_of(component)
        )

    def _index(self, component: Component) -> PageSpec:
        """The indexer's own cache: DeepseekV32IndexerCache beside MLA, MiniMaxM3IndexerCache beside K and V."""
        if self.has_latent:
            self.rules.append("index keys are FP8 with an fp32 scale per 128 values, whatever --kv-dtype says")
            width, dtype = index_key_bytes(self.size, component), "uint8"
        else:
            dtype = self._index_dtype(component)
            self.rules.append(f"index keys are {dtype}, whatever --kv-dtype says of K and V")
            (part,) = component.parts(WHOLE)
            width = part.width
        return Latent(block_size=self.block_size, kv_heads=1, head_size=width, dtype=dtype)

    def _index_dtype(self, component: Component) -> str:
        """bf16, or FP8 where that is asked by name (`--attention-config '{"indexer_kv_dtype": "fp8"}'`)."""
        asked = self.size.packer.request.by_name.get(component.name, "bf16")
        if asked not in {"bf16", "fp8"}:
            raise KvcalcError(f"vLLM keeps `{component.name}` beside K and V in bf16 or fp8, not {asked}", "use fp8")
        return DTYPES.get(asked, "uint8")

    def _entries(self, component: Component, block_size: int) -> PageSpec:
        """K and V or a latent, for the whole context, a window, a chunk or the encoder's tokens."""
        fields = {"block_size": block_size, **self._widths(component)}
        latent = _is_latent(component)
        if component.is_encoder_fed:
            return Encoder(**fields)
        if isinstance(component, Attended) and component.window is not None and self.release.windows != "kept":
            return (SlidingLatent if latent else Sliding)(window=component.window, **fields)
        if isinstance(component, Attended) and component.chunk is not None and self.release.chunks != "kept":
            return Chunked(chunk=component.chunk, **fields)
        if component.span.cap is not None:
            self.rules.append("windows and chunks keep the whole context: this release has no blocks of their own")
        return Latent(layout=fields["dtype"], **fields) if latent else Full(**fields)

    def _widths(self, component: Component) -> dict[str, Any]:
        form = self.size.packer.entry_format(component)
        if form.name not in DTYPES and form.name not in self.release.formats:
            known = ", ".join(sorted(self.release.formats)) or "nothing else"
            raise KvcalcError(f"--engine vllm does not know --kv-dtype {form.name}", f"use bf16, or {known}")
        parts = component.parts(self.ranks)
        heads = parts[0].heads
        latent = _is_latent(component)
        return {
            "kv_heads": heads,
            "head_size": sum(part.width for part in parts) if latent else parts[0].width,
            "head_size_v": None if latent else parts[1].width,
            "dtype": DTYPES.get(form.name, form.name),
            "state_bytes": self._entry_bytes(component, form.entry_bytes(parts, component.name)) // heads,
        }

    def _entry_bytes(self, component: Component, bare_bytes: int) -> int:
        """A latent's bytes with the values to which a release rounds it up."""
        if not _is_latent(component):
            return bare_bytes
        width = sum(part.width for part in component.parts(WHOLE))
        return bare_bytes * cdiv(width, self.release.latent_values) * self.release.latent_values // width


def _is_latent(component: Component) -> bool:
    """Whether an entry is one vector, without a V of its own: MLA and its kin."""
    return "v" not in {part.name for part in component.parts(WHOLE)}


def _check_known(kept: Sequence[Component]) -> None:
    """KvcalcError, by name, for what is not known here: sinks, states of other kinds."""
    for one in kept:
        states = tuple(state.name for state in one.states(WHOLE))
        if isinstance(one, Attended) and one.sinks:
            what = f"sinks beside a window (`{one.name}`)"
        elif states and states not in STATES:
            what = f"the states {' and '.join(states)} of `{one.name}`"
        else:
            continue
        raise KvcalcError(f"--engine vllm does not know {what}", "leave --engine out for the need")


def _check_parallel(size: CacheSize, kept: Sequence[Component]) -> None:
    """KvcalcError where vLLM would not start on these ranks."""
    tp, dcp = size.sharding.tp, size.sharding.dcp
    for component in kept:
        for name, heads in (*component.shared_heads(), ("query heads", component.queries or tp)):
            if heads % tp and not (name in REPLICATED_HEADS and tp % heads == 0):
                raise KvcalcError(f"--tp {tp} does not divide {heads} {name}", "vLLM needs a --tp that does")
    if tp % dcp:
        raise KvcalcError(f"--dcp {dcp} does not divide --tp {tp}", "vLLM takes decode-context ranks from the tp ranks")
    for component in kept:
        kv_heads = dict(component.shared_heads()).get("KV heads")
        if dcp > 1 and kv_heads is not None and dcp > tp // kv_heads:
            raise KvcalcError(f"--dcp {dcp} over {kv_heads} KV heads needs --tp {kv_heads * dcp} or more", "raise --tp")
        if dcp > 1 and component.span.cap is not None and not component.is_encoder_fed:
            raise KvcalcError("vLLM takes no --dcp beside windows or chunks", "leave --dcp out")
    if dcp > 1 and size.workload.draft_layers:
        raise KvcalcError("what --dcp makes of draft layers is not known here", "leave --dcp or --draft-layers out")
    if any(foreign_sources(size.spec, size.stages)):
        # validate_kv_sharing_target of layers/attention/attention.py; models/deepseek_v41/attention.py
        raise KvcalcError(
            f"--pp {size.sharding.pp} parts layers from the cache that they share: vLLM refuses to start",
            "use fewer --pp",
        )
