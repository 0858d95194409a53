"""Which part of a config describes the language model, and what its model type makes of it."""

from collections.abc import Mapping
from typing import Any

from kvcalc.errors import SpecError
from kvcalc.model.importers.families import FAMILIES, derived
from kvcalc.model.importers.fields import Fields, known_types, shown

TOWERS = (
    "text_config",
    "llm_config",
    "llm_cfg",
    "language_config",
    "language_model_config",
    "text_model_config",
    "thinker_config",
    "talker_config",
    "decoder",
    "decoder_config",
)
_OTHER_SOFTWARE = {
    "chatglm",
    "internlm2",
    "qwen",
    "hunyuan",
    "step3_text",
    "step3_vl",
    "nemotron-nas",
    "mimo",
    "kimi_k2",
    "kimi_k3",
    "minimax_text_01",
    "openelm",
    "minicpm",
    "minimax_m1",
    "bailing_moe",
    "arctic",
    "grok-1",
    "gpt-sw3",
    "baichuan",
    "deepseek_v41",
}
# Encoders unless their config makes a decoder of them: bidirectional, and without a cache.
_ENCODERS = {
    "bert",
    "bert-generation",
    "big_bird",
    "camembert",
    "data2vec-text",
    "electra",
    "ernie",
    "megatron-bert",
    "rembert",
    "roberta",
    "roberta-prelayernorm",
    "roc_bert",
    "roformer",
    "xlm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
}
_MOST_DEEP = 10


def is_known(model_type: str | None) -> bool:
    """Whether the fields of a model type that transformers does not build are known all the same."""
    return model_type in FAMILIES or model_type in _OTHER_SOFTWARE


def language_model(config: Mapping[str, Any], where: str) -> Fields:
    """The part of a config that describes the language model, with its model type's defaults behind it."""
    if not isinstance(config, Mapping) or not all(isinstance(key, str) for key in config):
        raise SpecError(f"{where}: holds no mapping of fields", "is this a model's config.json?")
    if (kept := _OTHERWISE.get(str(config.get("model_type")))) is not None:
        message = f"{where}: {config['model_type']} keeps {kept}: there is no cache kind for it"
        raise SpecError(message, "write a spec by hand if its states are known: docs/spec.md")
    part, model_type = _innermost(config, where)
    if model_type is not None and not isinstance(model_type, str):
        raise SpecError(f"{where}: model_type {shown(model_type)} is not a word", "is this a model's config.json?")
    inherited = {
        name: config[name]
        for name in ("is_encoder_decoder", "tie_word_embeddings")
        if part is not config and config.get(name) and part.get(name) is None
    }
    if part is not config and config.get("is_encoder_decoder"):
        inherited["is_encoder_decoder"] = True
    known = known_types().defaults.get(str(model_type))
    fields = Fields({**part, **inherited, "model_type": model_type}, where, known)
    _must_be_a_model(fields)
    fields.means_nothing("model_type", *inherited)
    return fields.completed({key: value for key, value in derived(fields).items() if value is not None})


def _innermost(config: Mapping[str, Any], where: str) -> tuple[Mapping[str, Any], Any]:
    types = known_types()
    part, model_type = config, config.get("model_type")
    for _ in range(_MOST_DEEP):
        nested = next((part[key] for key in TOWERS if isinstance(part.get(key), Mapping)), None)
        if nested is None or not nested:
            return part, _text_type(part, model_type)
        outer = model_type
        part = nested
        model_type = nested.get("model_type") or types.text.get(str(outer), outer)
    raise SpecError(f"{where}: configs nest more than {_MOST_DEEP} deep", "is this a model's config.json?")


def _text_type(part: Mapping[str, Any], model_type: Any) -> Any:
    """The type of the text tower for a config that states its fields at the top, or nothing but its type."""
    text = known_types().text.get(str(model_type))
    return text if text is not None and not any(isinstance(part.get(key), Mapping) for key in TOWERS) else model_type


_OTHERWISE = {
    "reformer": "buckets and hidden states",
    "xlnet": "hidden states of earlier segments",
    **dict.fromkeys(
        ("gemma4_assistant", "gemma4_unified_assistant"), "nothing and reads the cache of the Gemma 4 it drafts for"
    ),
}
"""Model types that no cache kind describes, with what they keep (transformers 5.24.0)."""


def _must_be_a_model(fields: Fields) -> None:
    """SpecError for an encoder, and for JSON of another sort: a tokenizer's, a training log's, an adapter's."""
    data = fields.data
    if data.get("model_type") in _ENCODERS and not fields.flag("is_decoder"):
        message = f"{fields.where}: {data['model_type']} is an encoder, and keeps no cache"
        raise SpecError(message, "is_decoder: true makes a decoder of it")
    if fields.defaults or any(name in data for name in _TELLING):
        return
    if data.get("model_type") is not None:
        message = f"{fields.where}: model_type {shown(data['model_type'])} is not known, and no field counts layers"
        raise SpecError(message, "give the model's full config.json")
    raise SpecError(f"{fields.where}: no field of a language model's config", "is this a model's config.json?")


_TELLING = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "decoder_layers",
    "num_decoder_layers",
    "num_transformer_layers",
    "num_blocks",
)
