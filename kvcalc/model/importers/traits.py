"""What a model's parameters are beyond the shapes of its caches: fields first, then what its type adds."""

from kvcalc.errors import shorten
from kvcalc.model.importers.fields import Fields, known_types
from kvcalc.model.importers.traits_model import Bias, Component, Document, Model, QkNorm, Trait, add, mixers
from kvcalc.model.importers.traits_rules import uncounted
from kvcalc.model.importers.traits_table import TRAITS


def with_parameters(fields: Fields, document: Document) -> Document:
    """The document with everything that its parameter count needs."""
    trait = TRAITS.get(str(fields.word("model_type")), Trait())
    model = Model(fields, document)
    for rule in trait.before:
        rule(model)
    _set_attention(model, trait)
    _set_feed_forward(model, trait)
    _set_outside(model, trait)
    for rule in trait.rules:
        rule(model)
    _count_passes_once(model)
    if fields.flag("is_encoder_decoder") and not model.encoder:
        uncounted(model)  # an encoder of unknown size makes the count unknown, never short
    return model.document()


def assumptions(fields: Fields) -> list[str]:
    """What a count rests on where no rule says how the model type is built."""
    model_type = str(fields.word("model_type"))
    if model_type in TRAITS or model_type in known_types().defaults:
        return []
    return [f"how model_type {shorten(model_type)} is built is not known: a gated network and plain norms are counted"]


def _count_passes_once(model: Model) -> None:
    """A later pass through layers whose weights are held already has the same norms too."""
    held: set[str] = set()
    for layer in model.layers:
        labels = [part.get("weights") for part in [*mixers(layer), *([layer["mlp"]] if "mlp" in layer else [])]]
        if labels and all(label in held for label in labels):
            layer["norm_vectors"] = 0
            layer.pop("extra_parameters", None)
        held.update(label for label in labels if label is not None)


def _set_attention(model: Model, trait: Trait) -> None:
    bias, qk_norm = attention_bias(model.fields, trait), _qk_norm(model.fields, trait)
    for component in model.attentions():
        if component["kind"] == "latent":
            if model.fields.data.get("q_lora_rank", True) is None:
                component.pop("q_rank", None)
            if bias != "none":
                add(component, _latent_bias(model, component))
            continue
        if bias != "none":
            component["bias"] = bias
        if qk_norm != "none":
            component["qk_norm"] = qk_norm


def attention_bias(fields: Fields, trait: Trait) -> Bias:
    """Which projections of attention have biases: the type's own, or what the config switches on."""
    if trait.bias is not None:
        return trait.bias
    if fields.flag("attention_bias", "use_bias", "enable_bias", "use_attention_bias"):
        return trait.switched_bias
    return "qkv" if fields.flag("qkv_bias", "use_qkv_bias", "add_qkv_bias") else "none"


def _latent_bias(model: Model, component: Document) -> int:
    """DeepSeek's MLA: biases on both down projections and on the output."""
    down = component["latent_dim"] + component.get("rope_dim", 0) + component.get("q_rank", 0)
    return int(down + model.hidden)


def _qk_norm(fields: Fields, trait: Trait) -> QkNorm:
    if trait.qk_norm is not None:
        return trait.qk_norm
    return trait.switched_norm if fields.flag("use_qk_norm", "qk_layernorm", "qk_norm") else "none"


def _set_feed_forward(model: Model, trait: Trait) -> None:
    switched = trait.mlp_switch and model.fields.flag("mlp_bias", "use_mlp_bias", "use_bias", "enable_bias")
    for mlp in model.mlps():
        if not trait.gated:
            mlp["gated"] = False
        if trait.mlp_bias or (switched and mlp["kind"] == "dense"):
            mlp["bias"] = True
        elif switched and mlp.get("shared"):
            add(mlp, _shared_bias(model, mlp))


def _shared_bias(model: Model, mlp: Component) -> int:
    """A switch gives biases to dense and shared networks; routed experts and their router have none."""
    width = mlp["shared"] * (mlp.get("shared_intermediate_size") or mlp.get("intermediate_size", 0))
    return int((2 if mlp.get("gated", True) else 1) * width + model.hidden)


def _set_outside(model: Model, trait: Trait) -> None:
    norms = {"norm_vectors": trait.norms, "final_norm_vectors": trait.final_norms}
    model.top.update({key: value for key, value in norms.items() if value is not None})
    if trait.positions is not None:
        model.top["position_embeddings"] = model.fields.need(trait.positions) + trait.position_offset
    if trait.tied is not None:
        model.top["tie_embeddings"] = trait.tied
    if trait.head_bias or model.fields.flag("lm_head_bias"):
        model.add(model.vocabulary)
