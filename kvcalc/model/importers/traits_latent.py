"""Structure beside latent attention: output groups, pools, indexers, hyper-connections, gated norms."""

from kvcalc.model.importers.traits_model import Component, Model, Rule, add, mixers
from kvcalc.model.importers.traits_rules import answer_width, index_without_weights, uncounted


def mistral_large4(model: Model) -> None:
    """Mistral Large 4: softmax scales a head, in attention and in its indexer, with a layer norm on what it asks."""
    rotary = model.fields.need("qk_rope_head_dim")
    model.add(rotary // 2)
    for component in model.of_kind("latent"):
        if not component.get("rope_dim") and "nope_head_dim" in component:
            component["nope_head_dim"] += rotary
        add(component, 2 * component["q_heads"])
    for component in model.of_kind("index"):
        add(component, 2 * component["q_heads"] + 2 * model.hidden)


def glm5_index(model: Model) -> None:
    """GLM-5-Next: the indexer pools its keys by learned weights, a position's and a projected gate."""
    pool = model.fields.need("index_kpool")
    for component in model.of_kind("index"):
        add(component, component["head_dim"] * (pool + model.hidden))


def hyper_connections(mixes: bool) -> Rule:
    """Two connections a layer over several streams: weights into and out of them and, if it `mixes`, between them."""

    def rule(model: Model) -> None:
        streams = model.fields.count("hc_mult", "hc_count") or 1
        rows, scales = (streams * (2 + streams), 3) if mixes else (2 * streams, 2)
        for layer in model.layers:
            add(layer, 2 * (rows * streams * model.hidden + rows + scales))

    return rule


def hyper_head(model: Model) -> None:
    """The last hyper-connection, which joins the streams: a row a stream, a number a stream and one scale."""
    streams = model.fields.need("hc_mult")
    model.add(streams * streams * model.hidden + streams + 1)


def qwen4_exp(model: Model) -> None:
    """Qwen4-exp: low-rank hyper-connections, one more that joins the streams, index keys and queries of one matrix."""
    index_without_weights(model)
    wide, rank = model.fields.need("hc_count") * model.hidden, model.fields.need("hc_lowrank")
    joined = wide + 2 * rank * wide
    for layer in model.layers:
        add(layer, 2 * (joined + model.fields.need("hc_count") * wide))
    model.add(joined)
    if model.fields.raw("ple_layer_ids"):
        uncounted(model)


def axk2(model: Model) -> None:
    """A.X K2: queries and an output gate from a doubled low rank, and norms that a low-rank network scales."""
    rank = model.fields.need("gated_norm_rank")
    for layer in model.layers:
        for component in mixers(layer):
            if component["kind"] == "latent" and {"nope_head_dim", "q_rank"} <= set(component):
                queries = component["q_heads"] * (component["nope_head_dim"] + component.get("rope_dim", 0))
                add(component, component["q_rank"] * (queries + 2 * answer_width(component)))
        gated = 2 if layer.get("mlp", {}).get("kind") == "moe" else 1
        add(layer, gated * 2 * rank * model.hidden)


def longcat(model: Model) -> None:
    """LongCat-Flash: two dense networks in a layer beside the experts, and experts that do nothing but are scored."""
    fields, hidden = model.fields, model.hidden
    idle = fields.count("zero_expert_num", least=0) or 0
    for layer in model.layers:
        layer["norm_vectors"] = 4
        add(layer, 2 * 3 * hidden * fields.need("ffn_hidden_size") + idle * hidden)


def deepseek_v4(model: Model) -> None:
    """DeepSeek-V4: one vector is K and V, outputs are projected by groups, pools compress entries and index keys."""
    for layer in model.layers:
        for component in mixers(layer):
            if component["kind"] == "index":
                component["parameters"] = _v4_index(model, component)
            elif component.get("ratio"):
                component["parameters"] = _v4_pool(model.hidden, component, _v4_width(component))
            else:
                component["parameters"] = _v4_attention(model, component)


def _v4_width(component: Component) -> int:
    return int(component["latent_dim"] + component.get("rope_dim", 0))


def _v4_attention(model: Model, component: Component) -> int:
    fields, hidden, width, heads = model.fields, model.hidden, _v4_width(component), component.get("q_heads", 0)
    queries = fields.need("q_lora_rank") * (hidden + 1 + heads * width)
    inner = fields.need("o_groups") * fields.need("o_lora_rank")
    output = heads * width * fields.need("o_lora_rank") + inner * hidden
    return int(queries + heads + width * (hidden + 1) + output)


def _v4_pool(hidden: int, component: Component, width: int) -> int:
    """A vector and a gate a token, positions within the pool, a norm; overlapping pools are twice as wide."""
    wide = 2 * width if component.get("overlap") else width
    return int(2 * wide * hidden + component["ratio"] * wide + width)


def _v4_index(model: Model, component: Component) -> int:
    heads, width = component["q_heads"], component["head_dim"]
    queries = heads * width * model.fields.need("q_lora_rank") + heads * model.hidden
    return _v4_pool(model.hidden, component, width) + int(queries)


def dots3(model: Model) -> None:
    """dots3: a norm on the rotary key."""
    for component in model.of_kind("latent"):
        add(component, component.get("rope_dim", 0))
