"""What each layer of a config mixes its tokens with, one word a layer.

The words are those of transformers' `layer_types`; the many fields that say the same thing in another way
(a period, a string of letters, lists of indices) are turned into them here.
"""

from collections.abc import Callable, Mapping
from typing import Any

from kvcalc.errors import SpecError
from kvcalc.model.importers.fields import Fields, shown

CONTEXT = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
    "max_target_positions",
    "model_max_length",
    "max_context_length",
    "n_ctx",
    "context_length",
)
FULL, SLIDING, CHUNKED, LINEAR = "full_attention", "sliding_attention", "chunked_attention", "linear_attention"
HYBRID, HYBRID_SLIDING, CONV, INDEXED = "hybrid", "hybrid_sliding", "conv", "indexed_attention"
SPARSE_COMPRESSED, HEAVILY_COMPRESSED = "compressed_sparse_attention", "heavily_compressed_attention"
CROSS, TWICE, SHARED, MEMORY, NONE = "cross_attention", "two_attentions", "shared_attention", "gated_memory", "none"
MLP, MOE = "mlp", "moe"  # a layer that is nothing but a feed-forward part

ATTENDING = {FULL, SLIDING, CHUNKED, HYBRID, HYBRID_SLIDING, INDEXED, SPARSE_COMPRESSED, HEAVILY_COMPRESSED, TWICE}

_SPELLINGS = {
    "attention": FULL,
    "full": FULL,
    "global": FULL,
    "self_attention": FULL,
    "sparse_attention": INDEXED,
    "deepseek_sparse_attention": INDEXED,
    "qwen_sparse_attention": INDEXED,
    "minimax_m3_sparse": INDEXED,
    "sparse": INDEXED,
    "reference_sliding_attention": FULL,  # the prompt stays whole; only what is generated slides
    "G": FULL,
    "L": SLIDING,
    "local": SLIDING,
    "sliding": SLIDING,
    "sliding_window": SLIDING,
    "local_attention": SLIDING,
    "swa": SLIDING,
    "chunked": CHUNKED,
    "mamba": LINEAR,
    "mamba1": LINEAR,
    "mamba2": LINEAR,
    "linear": LINEAR,
    "recurrent": LINEAR,
    "kda": LINEAR,
    "gdn": LINEAR,
    "M": LINEAR,
    "*": FULL,
    "-": MLP,
    "E": MOE,
    "short_conv": CONV,
    "hybrid_attention": HYBRID,
}
_RATIOS = {0: SLIDING, 4: SPARSE_COMPRESSED, 128: HEAVILY_COMPRESSED}


def layer_words(fields: Fields, layers: int) -> list[str]:
    """One word for each of `layers` layers, then those of the draft layers where the config has more of them.

    The field that says it decides; where none does, the model type's own pattern, or full attention.
    """
    for read in _READERS:
        words = read(fields, layers)
        if words is not None:
            break
    words = _fitted(words or [FULL] * layers, layers, fields)
    fields.means_nothing(*_SAID_BY_WORDS)
    if not any("sliding" in word for word in words):
        fields.means_nothing(*WINDOW)
    return words


def _fitted(words: list[Any], layers: int, fields: Fields) -> list[str]:
    """Spelt in one way; what is shorter than the stack is a contradiction."""
    if len(words) < layers:
        raise SpecError(f"{fields.where}: {len(words)} layer types for {layers} layers", "one is needed for each layer")
    return spelt(words)


def spelt(words: list[Any]) -> list[str]:
    """Words of any config in the spelling of `layer_types`."""
    return [_SPELLINGS.get(str(word), str(word)) for word in words]


def _stated(fields: Fields, layers: int) -> list[Any] | None:
    return fields.items("layer_types", "layers_block_type")


WINDOW = ("sliding_window", "sliding_window_size", "attention_window_size")
# Once the words are known, these have had their say: where two fields speak, the one that is read first decides.
_SAID_BY_WORDS = (
    "sliding_window_pattern",
    "_sliding_window_pattern",
    "global_attn_every_n_layers",
    "full_attention_interval",
    "max_window_layers",
    "attn_layer_period",
    "attn_layer_offset",
    "attn_layer_indices",
    "full_attn_idxs",
    "hybrid_layer_ids",
    "hybrid_override_pattern",
    "hybrid_layer_pattern",
    "local_layer_ids",
    "no_rope_layers",
    "no_rope_layer_interval",
    "layer_group_size",
    "compress_ratios",
    "attn_type_list",
    "block_types",
    "_block_types",
    "attention_chunk_size",
)


def _letters(fields: Fields, layers: int) -> list[Any] | None:
    pattern = fields.word("hybrid_override_pattern")
    return None if pattern is None else list(pattern.replace("|", ""))


def _cyclic(fields: Fields, layers: int) -> list[Any] | None:
    """RecurrentGemma: blocks in turns, and what it calls attention sees a window."""
    blocks = fields.items("block_types", "_block_types")
    if not blocks:
        return None
    if fields.count("attention_window_size") is not None:
        blocks = [SLIDING if block == "attention" else block for block in blocks]
    return [blocks[index % len(blocks)] for index in range(layers)]


def _marks(fields: Fields, layers: int) -> list[Any] | None:
    """A 0 or 1 for each layer: full attention among MiniMax's lightning, windows among MiMo's full attention."""
    marks = fields.counts("attn_type_list")
    if marks is not None:
        return [FULL if mark else LINEAR for mark in marks]
    marks = fields.counts("hybrid_layer_pattern")
    return None if marks is None else [SLIDING if mark else FULL for mark in marks]


def _blocks(fields: Fields, layers: int) -> list[Any] | None:
    """Blocks that a search left with attention, with a linear layer in its place, or with nothing."""
    blocks = fields.items("block_configs")
    if blocks is None:
        return None
    parts = [block.get("attention") if isinstance(block, Mapping) else None for block in blocks]
    if not all(isinstance(part, Mapping) for part in parts):
        raise SpecError(f"{fields.where}: block_configs has a block without attention", "say no_op: true where it is")
    return [NONE if part.get("no_op") or part.get("replace_with_linear") else FULL for part in parts if part]


def _attention_places(fields: Fields, layers: int) -> list[Any] | None:
    """Lists that name the layers with attention; all others are of the linear kind."""
    linear = fields.part("linear_attn_config")
    if linear is not None and (full := linear.counts("full_attn_layers")) is not None:
        linear.means_nothing("kda_layers")
        # Kimi-Linear counts its layers from 1.
        return [FULL if index + 1 in full else LINEAR for index in range(layers)]
    full = fields.counts("attn_layer_indices", "full_attn_idxs")
    if full is None:
        return None
    other = CONV if fields.states("full_attn_idxs") else LINEAR
    return [FULL if index in full else other for index in range(layers)]


def _attention_period(fields: Fields, layers: int) -> list[Any] | None:
    period = fields.count("attn_layer_period")
    if period is not None:
        offset = fields.count("attn_layer_offset", least=0) or 0
        return [FULL if index % period == offset else LINEAR for index in range(layers)]
    interval = fields.count("full_attention_interval", "layer_group_size")
    if interval is not None and fields.count(*_STATE_HEADS) is not None:
        return [FULL if (index + 1) % interval == 0 else LINEAR for index in range(layers)]
    return None


_STATE_HEADS = ("linear_num_value_heads", "linear_num_heads")


def _places(fields: Fields, layers: int) -> list[Any] | None:
    places = fields.counts("hybrid_layer_ids")
    if places is not None:
        return [HYBRID if index in places else LINEAR for index in range(layers)]
    places = fields.counts("cross_attention_layers")
    if places is not None:
        return [CROSS if index in places else FULL for index in range(layers)]
    places = fields.counts("local_layer_ids")
    return None if places is None else [SLIDING if index in places else FULL for index in range(layers)]


def _compressed(fields: Fields, layers: int) -> list[Any] | None:
    ratios = fields.counts("compress_ratios")
    if ratios is None:
        return None
    if fields.items("kv_source_layer_ids") is not None:
        return [SLIDING if ratio == 0 else SPARSE_COMPRESSED for ratio in ratios]
    unknown = [ratio for ratio in ratios if ratio not in _RATIOS]
    if unknown:
        raise SpecError(f"{fields.where}: compress_ratios has a {unknown[0]}", "known: 0, 4 and 128, DeepSeek-V4's")
    return [_RATIOS[ratio] for ratio in ratios]


def _sparse_marks(fields: Fields, layers: int) -> list[Any] | None:
    """MiniMax-M3: a 0 or 1 for each layer, whether an index selects what its attention reads."""
    nested = fields.part("sparse_attention_config")
    marks = nested.counts("sparse_attention_freq") if nested else None
    if nested is not None and nested.raw("use_sparse_attention") is False:
        return [FULL] * layers
    return None if marks is None else [INDEXED if mark else FULL for mark in marks]


def _chunked(fields: Fields, layers: int) -> list[Any] | None:
    """Llama 4: the layers with rotary positions attend in chunks, those without attend to everything."""
    if fields.count("attention_chunk_size") is None or not fields.states("no_rope_layers", "no_rope_layer_interval"):
        return None
    marks = fields.counts("no_rope_layers")
    if marks:
        return [CHUNKED if mark else FULL for mark in marks]
    interval = fields.count("no_rope_layer_interval") or 4
    return [FULL if (index + 1) % interval == 0 else CHUNKED for index in range(layers)]


def _window_pattern(fields: Fields, layers: int) -> list[Any] | None:
    """A period (every p-th layer is global), a string of letters, or a list, repeated over the stack."""
    if window(fields) is None:
        return None
    pattern = fields.raw("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers")
    if pattern is None:
        return None
    if isinstance(pattern, int) and not isinstance(pattern, bool) and pattern >= 1:
        return [FULL if (index + 1) % pattern == 0 else SLIDING for index in range(layers)]
    if isinstance(pattern, str) and pattern and set(pattern) <= {"L", "G"}:
        words: list[Any] = [pattern[index % len(pattern)] for index in range(layers)]
        return [*words[:-1], FULL]
    if isinstance(pattern, list) and pattern:
        return [SLIDING if pattern[index % len(pattern)] else FULL for index in range(layers)]
    raise SpecError(f"{fields.where}: sliding_window_pattern {shown(pattern)} is no pattern", "a number or LLLG")


def _typical(fields: Fields, layers: int) -> list[Any] | None:
    """The pattern of the model type itself, where its configuration class makes one up."""
    pattern = fields.defaults.get("~pattern")
    if pattern is None:
        return None
    words = [pattern[index % len(pattern)] for index in range(layers)]
    return [*words[:-1], fields.defaults.get("~last", words[-1])]


def _indexed(fields: Fields, layers: int) -> list[Any] | None:
    """A latent beside an index key, and nothing that says which layers have one: all of them."""
    if fields.count("kv_lora_rank") is None or fields.count("index_head_dim") is None:
        return None
    return [INDEXED] * layers


def _all_sliding(fields: Fields, layers: int) -> list[Any] | None:
    """A window and nothing else: every layer slides, or those from max_window_layers on."""
    first, width, context = fields.count("max_window_layers", least=0), window(fields), fields.count(*CONTEXT)
    if width is None or (context is not None and width >= context):
        return None  # a window as wide as the context never closes
    first = first if fields.states("use_sliding_window") else None
    return [SLIDING if index >= (first or 0) else FULL for index in range(layers)]


def window(fields: Fields) -> int | None:
    """The window in tokens; None where it is off, absent or zero."""
    if fields.raw("use_sliding_window") is False:
        return None
    value = fields.count(*WINDOW, least=-1)
    return value if value and value > 0 else None


_READERS: tuple[Callable[[Fields, int], list[Any] | None], ...] = (
    _stated,
    _letters,
    _cyclic,
    _marks,
    _blocks,
    _compressed,
    _attention_places,
    _places,
    _attention_period,
    _sparse_marks,
    _chunked,
    _window_pattern,
    _typical,
    _indexed,
    _all_sliding,
)
