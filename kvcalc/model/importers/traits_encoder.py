"""Encoders of encoder-decoder models: what they add to the parameters; they keep no cache of their own."""

from typing import Any

from kvcalc.errors import SpecError
from kvcalc.model.importers.attention import Component
from kvcalc.model.importers.traits_model import Layer, Model, Rule, Trait, alike, mixers
from kvcalc.model.importers.traits_rules import no_key_bias
from kvcalc.model.resolve import MOST_LAYERS

_BART: dict[str, Any] = {"norms": 6, "gated": False, "mlp_bias": True, "bias": "all"}


def _encoder_layers(model: Model, heads: int, width: int, inner: int, norms: int) -> list[Layer]:
    """As many equal layers as the config gives the encoder."""
    fields = model.fields
    count = fields.need("encoder_layers", "num_encoder_layers", "num_layers", "num_hidden_layers")
    if count > MOST_LAYERS:
        raise SpecError(f"{fields.where}: {count:,} encoder layers", f"a model has at most {MOST_LAYERS:,}")
    mixer: Component = {"kind": "kv", "q_heads": heads, "kv_heads": heads, "head_dim": width}
    mlp = {"kind": "dense", "intermediate_size": inner}
    return [{"mixer": dict(mixer), "mlp": dict(mlp), "norm_vectors": norms} for _ in range(count)]


def bart_encoder(model: Model) -> None:
    """An encoder with heads and a feed-forward width of its own, two layer norms a layer."""
    heads = model.fields.need("encoder_attention_heads")
    inner = model.fields.need("encoder_ffn_dim")
    model.encoder = _encoder_layers(model, heads, model.hidden // heads, inner, 4)


def bart(offset: int | None, embedding_norm: bool, last_norm: bool) -> Rule:
    """Both stacks with learned positions, `offset` rows more than stated, and layer norms before and behind them."""

    def rule(model: Model) -> None:
        if offset is not None:
            rows = model.fields.need("max_position_embeddings") + offset
            model.top["position_embeddings"] = 2 * rows
        model.top["final_norm_vectors"] = 4 * (embedding_norm + last_norm)

    return rule


def whisper(model: Model) -> None:
    """Two convolutions over three frames of sound and learned positions before the encoder; keys have no bias."""
    fields, hidden = model.fields, model.hidden
    convolutions = hidden * (fields.need("num_mel_bins") + hidden) * 3 + 2 * hidden
    model.add(convolutions + fields.need("max_source_positions") * hidden)
    no_key_bias(model)


def t5_encoder(model: Model) -> None:
    """An encoder like the decoder without its cross attention."""
    fields = model.fields
    model.encoder = _encoder_layers(model, fields.need("num_heads"), fields.need("d_kv"), fields.need("d_ff"), 2)


def t5(every_layer: bool) -> Rule:
    """Biases by relative position, one table a stack or one a layer; gated where the activation says so."""

    def rule(model: Model) -> None:
        fields = model.fields
        tables = len(model.layers) + len(model.encoder) if every_layer else 2
        model.add(tables * fields.need("relative_attention_num_buckets") * fields.need("num_heads"))
        if not (fields.word("feed_forward_proj") or "").startswith("gated"):
            for mlp in model.mlps():
                mlp["gated"] = False

    return rule


def t5gemma(model: Model) -> None:
    """An encoder like the decoder, without its cross attention."""
    for layer in model.layers:
        own = [dict(one) for one in mixers(layer) if one["kind"] != "cross"]
        network = {"mlp": dict(layer["mlp"])} if "mlp" in layer else {}
        model.encoder.append({"mixer": own, **network, "norm_vectors": 4})
    assumed = model.top.setdefault("assumed", {})
    assumed["weights"] = [*assumed.get("weights", []), "the encoder is taken to be as large as the decoder"]


def t5gemma1(model: Model) -> None:
    """T5Gemma: encoder and decoder have an embedding each."""
    model.add(model.vocabulary * model.hidden)


def t5gemma2(model: Model) -> None:
    """T5Gemma 2: one attention over both sides, so cross attention has no projections of its own."""
    model.add(model.hidden)
    for component in model.of_kind("cross"):
        component["parameters"] = 0


def _t5(every_layer: bool) -> Trait:
    return Trait(norms=3, final_norms=2, tied=True, before=(t5_encoder,), rules=(t5(every_layer),))


def _bart(offset: int | None, embedding_norm: bool, last_norm: bool, **more: Any) -> Trait:
    rules = (bart(offset, embedding_norm, last_norm),)
    return Trait(**{**_BART, **more}, before=(bart_encoder,), rules=rules)


ENCODER_DECODERS: dict[str, Trait] = {
    **alike(_bart(2, True, False), "bart", "mvp", "plbart"),
    **alike(_bart(2, True, True), "mbart"),
    **alike(_bart(0, False, True), "pegasus", "blenderbot"),
    **alike(_bart(None, False, True), "m2m_100", "nllb"),
    "blenderbot-small": _bart(0, True, False),
    "marian": _bart(0, False, False),
    "bigbird_pegasus": _bart(0, True, False, bias=None),
    "whisper": Trait(
        **_BART, final_norms=4, positions="max_target_positions", before=(bart_encoder,), rules=(whisper,)
    ),
    **alike(_t5(every_layer=False), "t5", "mt5", "longt5"),
    "t5_gemma_module": Trait(norms=6, final_norms=2, before=(t5gemma,), rules=(t5gemma1,)),
    "t5gemma2_decoder": Trait(norms=4, final_norms=2, qk_norm="head", before=(t5gemma,), rules=(t5gemma2,)),
    "umt5": _t5(every_layer=True),
}
