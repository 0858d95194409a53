"""The choices in which releases of vLLM differ; `vllm_versions` says which release makes which."""

from fractions import Fraction
from typing import Literal

import msgspec


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The choices of one release; the defaults are those of 0.2.0."""

    gpu_memory_utilization: float = 0.9
    rounds_share_up: bool = False
    """Whether the share of the card is rounded up to whole bytes before the rest is taken off."""
    profiles_graphs: bool = False
    """Whether the memory of CUDA graphs is taken off the pool."""

    one_table: bool = True
    """V0: one block table for all layers of attention, blocks on the CPU, no null block."""
    windows: Literal["kept", "checked", "grouped"] = "kept"
    """Whether a window keeps every token, does so but is charged less in the check, or has blocks of its own."""
    chunks: Literal["kept", "grouped"] = "kept"
    chunks_in_groups: bool = True
    """Whether the hybrid manager stays on beside chunks where nothing is asked."""
    counts_overlapping_batches: bool = False

    knows_mixed_widths: bool = False
    """Whether layers of one type and different widths make one group."""
    knows_split_widths: bool = False
    """Whether V may be narrower than K."""
    group_slack: Fraction = Fraction(1)
    """Groups are as large as the commonest kind has layers where that is less than this many times the rarest."""
    merges_kinds: bool = False
    """Whether unequal specs that merge share groups."""
    splits_mixed_groups: bool = False
    """Whether a group of unequal widths weighs the layers of its pipeline stage, or those of the whole model."""
    groups_stages_alone: bool = False
    """Whether each pipeline stage groups its own layers."""
    grows_pages: bool = False
    """Whether a page takes more tokens to become as large as another's."""
    pads_states: bool = False
    pads_attention: bool = False
    """Whether a page is padded to the largest where no whole number of its blocks fills that."""
    keeps_windows_beside_latent: bool = False
    """Whether windows whose page MLA's cannot meet are kept like full attention."""

    check: Literal["tokens", "layers", "first group", "groups"] = "tokens"
    """What one request is held against: tokens of the pool, pages of layers, of the first group, or of all groups."""
    checks_whole_model: bool = False
    """Whether the pool of one stage is held against the layers of all."""
    counts_null_block: bool = False
    adjusts_pool_to_override: bool = False
    """Whether `--num-gpu-blocks-override` changes the pool that the check sees, or only the blocks."""
    tokens: Literal["blocks", "requests"] = "blocks"
    """Whether the log's tokens are blocks / groups x tokens of a block, or concurrency x the longest request."""
    concurrency: Literal["tokens", "requests"] = "tokens"
    """Whether the log's concurrency is tokens / the longest request, or blocks / blocks of one request."""
    prints_concurrency: bool = False

    formats: frozenset[str] = frozenset()
    """Formats of a KV cache beside the plain ones, by kvcalc's names."""
    knows_latent: bool = False
    latent_values: int = 1
    """Values to whose multiple an entry of MLA is rounded up."""
    latent_block_size: int = 16
    knows_index: bool = False
    knows_dcp: bool = False
    knows_encoder: bool = False
    knows_newest_kinds: bool = False
    """Compressed entries, windows of latents, index keys beside K and V: read in the newest alone."""
    drafts: Literal["none", "attention", "delta", "states"] = "none"
    """Beside what draft layers share the model's pool: nothing (V0), attention, the delta rule's states, or all."""
    counts_draft_states: bool = False
    """Whether the blocks that states take for draft tokens count among those of a request."""
    retains_draft_tokens: bool = False
    """Whether a window keeps the tokens that chained draft layers fill again."""

    knows_states: bool = False
    fp32_states: frozenset[str] = frozenset({"kimi_linear", "kimi_k3"})
    """Model types whose states are fp32 where nothing says otherwise; of others they follow the model's format."""
    caches_states_by_default: bool = False
    cached_states: Literal["off", "align"] = "off"
    """What `--enable-prefix-caching` does to states beside attention; Mamba's differ: `cached_mamba`."""
    cached_mamba: Literal["off", "all", "align"] = "off"
    mamba_checkpoints: int = 0
    """Further states of Mamba-2 that a request may hold, exported from inside a prefill."""
    grows_in_block_size: bool = False
    """Whether attention beside states grows in steps of --block-size, or of 16 tokens."""
    latent_state_step: int = 16
    """The least step in which MLA beside states grows, in tokens."""
