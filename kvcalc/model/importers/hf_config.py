"""config.json -> a document of the spec language: fields first, a model type's own structure where none states it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvcalc.errors import SpecError, shorten
from kvcalc.model.importers import feed_forward, mixers, sharing, towers, traits
from kvcalc.model.importers.attention import HEAD_DIM, HEADS, HIDDEN, KV_HEADS
from kvcalc.model.importers.fields import Fields, known_types
from kvcalc.model.importers.layer_words import ATTENDING, CONTEXT, MLP, MOE, layer_words, spelt
from kvcalc.model.importers.unread import unread_cache_fields
from kvcalc.model.resolve import MOST_LAYERS

LAYERS = (
    "decoder_layers",
    "num_decoder_layers",
    "decoder_num_hidden_layers",
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "num_transformer_layers",
    "num_blocks",
)
DRAFTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "mtp_num_layers")

Document = dict[str, Any]
Layer = dict[str, Any]


def config_document(config: Mapping[str, Any], where: str, name: str, assume: bool = False) -> Document:
    """The document that a config describes; SpecError where it is no language model's or contradicts itself.

    Fields that look as if they bear on the cache, and that nothing here knows, are an error; with `assume` they
    are taken to mean nothing, and the document says so.
    """
    fields = towers.language_model(config, where)
    count = layer_count(fields)
    words = layer_words(fields, count)
    layers = build_layers(fields, words[:count])
    drafts = draft_layers(fields, words, count)
    document: Document = {
        "name": name,
        "model_type": fields.word("model_type"),
        "source": f"{Path(where).name} (model_type {shorten(str(fields.word('model_type') or 'not stated'))})",
        "max_context": fields.count(*CONTEXT, least=-1),
        "hidden_size": fields.need(*HIDDEN),
        "vocab_size": fields.count("vocab_size", "padded_vocab_size"),
        "dtype": _dtype(fields.raw("torch_dtype", "dtype") or config.get("torch_dtype") or config.get("dtype")),
        "state_dtype": _dtype(fields.raw("mamba_ssm_dtype", "mamba_ssm_cache_dtype")),
        "tie_embeddings": fields.flag("tie_word_embeddings"),
        "prefill_layers": fields.count("~prefill_layers"),
        "left_out": [
            f"{sense} tower" for sense in ("vision", "audio") if isinstance(config.get(f"{sense}_config"), Mapping)
        ],
        "layers": packed(layers),
        "draft_layers": packed(drafts),
    }
    if (document["max_context"] or 0) < 1:
        document["max_context"] = None
    document["assumed"] = {"cache": _assumptions(fields, where, assume), "weights": traits.assumptions(fields)}
    document["assumed"] = {key: lines for key, lines in document["assumed"].items() if lines}
    document = {key: value for key, value in document.items() if value not in (None, False, [], {})}
    return traits.with_parameters(fields, document)


def layer_count(fields: Fields) -> int:
    """Layers of the decoder."""
    count = fields.count(*LAYERS)
    if count is None:
        stated = fields.raw("layer_types", "layers_block_type", "hybrid_override_pattern")
        count = len(stated) if isinstance(stated, list | str) else 0
    if not count:
        raise SpecError(f"{fields.where}: no num_hidden_layers", "is this a language model's config.json?")
    if count > MOST_LAYERS:
        raise SpecError(f"{fields.where}: {count:,} layers", f"a model has at most {MOST_LAYERS:,}")
    return count


def build_layers(fields: Fields, words: Sequence[str]) -> list[Layer]:
    """Every layer in order: what it mixes with, and its feed-forward part."""
    if not any(word in ATTENDING for word in words):
        fields.means_nothing(*HEADS, *KV_HEADS, *HEAD_DIM)
    parts = [mixers.mixer_of(fields.at(index), word) for index, word in enumerate(words)]
    sources = sharing.shared_sources(fields, words)
    if sources:
        parts = sharing.share(parts, sources)
    sparse = feed_forward.expert_layers(fields, len(words))
    single = MLP in words or MOE in words
    layers = []
    for index, (word, mixer) in enumerate(zip(words, parts, strict=True)):
        alone = word in (MLP, MOE)
        network = _network(fields.at(index), word == MOE if alone else sparse[index]) if alone or not single else None
        layers.append(_layer(mixer, network))
    return looped(fields, layers)


def _network(fields: Fields, has_experts: bool) -> Document | None:
    return feed_forward.sparse(fields) if has_experts else feed_forward.dense(fields)


def _layer(mixer: list[Document], network: Document | None) -> Layer:
    layer: Layer = {}
    if mixer:
        layer["mixer"] = mixer[0] if len(mixer) == 1 else mixer
    return layer if network is None else {**layer, "mlp": network}


def looped(fields: Fields, layers: list[Layer]) -> list[Layer]:
    """A stack whose middle runs several times: a cache for each pass, weights once."""
    passes, end = fields.count("loop_num_passes"), fields.count("loop_layer_index_end")
    start = fields.count("loop_layer_index_start", least=0) or 0
    if passes is None or end is None:
        return layers
    if not start < end <= len(layers) or passes * len(layers) > MOST_LAYERS:
        message = f"{fields.where}: layers {start} to {end} of {len(layers)} run {passes} times"
        raise SpecError(message, "check loop_layer_index_start, loop_layer_index_end and loop_num_passes")
    once = [_labelled(layer, f"loop {index}") for index, layer in enumerate(layers[start:end], start)]
    return [*layers[:start], *once * passes, *layers[end:]]


def _labelled(layer: Layer, label: str) -> Layer:
    """A layer whose weights are counted once however often it stands in the stack."""
    mixer = layer.get("mixer", [])
    parts = [{**part, "weights": f"{label} {part['kind']}"} for part in (mixer if isinstance(mixer, list) else [mixer])]
    network = layer.get("mlp")
    return _layer(parts, None if network is None else {**network, "weights": f"{label} mlp"})


def draft_layers(fields: Fields, words: Sequence[str], count: int) -> list[Layer]:
    """Layers that guess ahead: those that the config lists beyond the stack, else ones like the last full layer."""
    stated = fields.count(*DRAFTS, least=0)
    more = list(words[count:]) or spelt(
        fields.items("mtp_layer_types", "mtp_layers_block_type")
        or list(fields.word("mtp_hybrid_override_pattern") or "")
    )
    if stated == 0 or (stated is None and len(words) == count):
        return []
    if stated is not None and stated > MOST_LAYERS:
        raise SpecError(f"{fields.where}: {stated:,} draft layers", f"a model has at most {MOST_LAYERS:,}")
    kinds = more[:stated] if more else [mixers.draft_word(fields, words[:count])] * (stated or 0)
    sparse = feed_forward.expert_layers(fields, count)[-1]
    last = max((index for index, word in enumerate(words[:count]) if word == kinds[0]), default=count - 1)
    one = fields.at(last)
    return [_layer(mixers.draft_mixer(one, word), _network(one, sparse)) for word in kinds]


def packed(layers: Sequence[Layer]) -> list[Layer]:
    """Equal neighbours as one entry with a repeat."""
    entries: list[Layer] = []
    for layer in layers:
        if entries and {key: value for key, value in entries[-1].items() if key != "repeat"} == layer:
            entries[-1]["repeat"] = entries[-1].get("repeat", 1) + 1
        else:
            entries.append(dict(layer))
    return entries


def _dtype(stated: Any) -> str | None:
    return _DTYPES.get(str(stated).removeprefix("torch."))


_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
_DTYPES |= {form: form for form in ("bf16", "fp16", "fp32")}


def _assumptions(fields: Fields, where: str, assume: bool) -> list[str]:
    model_type = fields.word("model_type")
    unread = unread_cache_fields(fields)
    if unread and not assume:
        named = shorten(", ".join(unread), 200)
        message = f"{where}: what does {named} mean for the cache?"
        raise SpecError(
            message, "--assume takes it to mean nothing; kvcalc models import --assume writes a spec to correct"
        )
    lines = [f"{shorten(name)} is taken to mean nothing for the cache" for name in unread]
    if model_type in known_types().defaults or towers.is_known(model_type):
        return lines
    unknown = (
        f"model_type {shorten(str(model_type))} is not known: its fields are taken to mean what they mean elsewhere"
    )
    return [unknown, *lines]
