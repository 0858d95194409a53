"""Structure of single model families that has parameters of its own: AltUp, embeddings a layer, narrow experts."""

from math import isqrt

from kvcalc.model.importers.traits_model import Model, add, mixers
from kvcalc.model.importers.traits_rules import answer_width


def opt(model: Model) -> None:
    """OPT: a last norm only where norms stand in front, and an embedding that may be narrower than the model."""
    fields, hidden = model.fields, model.hidden
    norm_first = fields.raw("do_layer_norm_before") is not False
    model.top["final_norm_vectors"] = 2 if norm_first and not fields.flag("_remove_final_layer_norm") else 0
    width = fields.count("word_embed_proj_dim") or hidden
    if width != hidden:
        tables = 1 if model.top.get("tie_embeddings") else 2
        model.add(2 * width * hidden - tables * model.vocabulary * (hidden - width))


def falcon(model: Model) -> None:
    """Falcon: one layer norm where attention and the feed-forward part run side by side, else two."""
    fields = model.fields
    if fields.flag("new_decoder_architecture"):
        norms = fields.count("num_ln_in_parallel_attn") or 2
    else:
        norms = 1 if fields.flag("parallel_attn") else 2
    model.top["norm_vectors"] = 2 * norms
    if fields.flag("bias"):
        for component in model.attentions():
            component["bias"] = "all"
        for mlp in model.mlps():
            mlp["bias"] = True


def stablelm(model: Model) -> None:
    """StableLM: a layer norm less where attention and the feed-forward part run side by side."""
    model.top["norm_vectors"] = 2 if model.fields.flag("use_parallel_residual") else 4


def mllama(model: Model) -> None:
    """Llama 3.2 Vision: cross layers normalise heads and have two gates; eight rows more in the embedding."""
    model.add(8 * model.hidden)
    for component in model.of_kind("cross"):
        component["qk_norm"] = "head"
        add(component, 2)


def modernbert(model: Model) -> None:
    """ModernBERT: the first layer has no attention norm, and the head a dense layer with one and a bias."""
    hidden = model.hidden
    model.add(hidden * hidden + model.vocabulary)


def doge(model: Model) -> None:
    """Doge: a mask of one number a KV head, its step from the values, and two residual scales."""
    for component in model.attentions():
        component["qk_norm"] = "head"
        width = component["kv_heads"] * component["head_dim"]
        add(component, component["kv_heads"] * (width + (2 if component.get("bias", "none") != "none" else 1)))
    for mlp in model.mlps("moe"):
        experts = mlp["experts"]
        width = model.fields.need("intermediate_size")
        mlp.clear()
        # One row down and one up an expert, found by two keys: the router scores the square root of their number.
        mlp.update(kind="dense", intermediate_size=width)
        add(mlp, 2 * experts * model.hidden + 2 * isqrt(experts) * model.hidden)


def dory(model: Model) -> None:
    """Dory: learned scales, not norms, of queries and keys, of a gate, of the feed-forward part and of logits."""
    for component in model.attentions():
        add(component, (2 + model.hidden) * answer_width(component))
    for mlp in model.mlps("dense"):
        add(mlp, 2 * mlp["intermediate_size"])
    model.add(model.vocabulary)


def jetmoe(model: Model) -> None:
    """JetMoE: every query head set is an expert of its own, with a router and an output bias."""
    experts, hidden = model.fields.need("num_local_experts"), model.hidden
    active = model.fields.need("num_experts_per_tok")
    for component in model.attentions():
        width = component["kv_heads"] * component["head_dim"]
        inner = 2 * hidden * width
        component["parameters"] = experts * inner + inner + experts * hidden + hidden
        component["q_heads"] = component["kv_heads"] * active
    for mlp in model.mlps("moe"):
        add(mlp, hidden)


def muse_spark(model: Model) -> None:
    """Muse Spark: experts work in a narrower stream between two projections with a norm each; residuals are gated."""
    hidden, width = model.hidden, model.fields.need("moe_hidden_size")
    for mlp in model.mlps("moe"):
        inner = mlp["intermediate_size"]
        mlp["parameters"] = mlp["experts"] * (3 * width * inner + hidden) + 2 * hidden * width + 2 * width
        # As wide as an expert of the model's width would be with as many weights, for those that a token passes.
        mlp["intermediate_size"] = inner * width // hidden


def cpmant(model: Model) -> None:
    """CPM-Ant: prompts beside the words, segments, and a position bias of buckets and pairs of segments."""
    fields, hidden = model.fields, model.hidden
    segments = fields.need("segment_types")
    prompts = fields.need("prompt_types") * fields.need("prompt_length")
    buckets = fields.need("position_bias_num_buckets") + segments**2
    model.add((prompts + segments) * hidden + buckets * fields.need("num_attention_heads"))


def gemma3n(model: Model) -> None:
    """Gemma 3n: embeddings a layer, AltUp over several streams and Laurel beside every feed-forward part."""
    fields, hidden, layers = model.fields, model.hidden, len(model.layers)
    streams, rank = fields.need("altup_num_inputs"), fields.need("laurel_rank")
    width = fields.need("hidden_size_per_layer_input")
    rows = fields.need("vocab_size_per_layer_input")
    model.top["lookup_parameters"] = rows * layers * width
    model.add(layers * width * hidden + width + 2 * (streams - 1) * hidden * hidden)
    scale = hidden if fields.flag("altup_correct_scale") else 0
    beside = scale + streams * hidden + streams**2 + streams**3 + 2 * rank * hidden + 2 * width * hidden
    widths = fields.items("intermediate_size") if isinstance(fields.raw("intermediate_size"), list) else None
    for index, layer in enumerate(model.layers):
        if widths and index < len(widths) and "mlp" in layer:
            layer["mlp"]["intermediate_size"] = widths[index]
        add(layer, beside)


def gemma4(model: Model) -> None:
    """Gemma 4: a dense network beside the experts, embeddings a layer, one projection for K and V of global layers."""
    fields, hidden = model.fields, model.hidden
    _gemma4_inputs(model)
    for layer in model.layers:
        mlp = layer.get("mlp", {"kind": "none"})
        if mlp["kind"] == "moe":
            mlp.update(shared=1, shared_intermediate_size=fields.need("intermediate_size"))
            add(mlp, hidden + mlp["experts"])
            layer["norm_vectors"] = model.top["norm_vectors"] + 3
        if (
            fields.flag("use_double_wide_mlp")
            and "mlp" in layer
            and any(one["kind"] == "shared" for one in mixers(layer))
        ):
            key = "intermediate_size" if mlp["kind"] == "dense" else "shared_intermediate_size"
            mlp[key] *= 2
        for component in mixers(layer):
            if fields.flag("attention_k_eq_v") and component["kind"] == "kv" and "window" not in component:
                add(component, -hidden * component["kv_heads"] * component["head_dim"])


def _gemma4_inputs(model: Model) -> None:
    fields, hidden, layers = model.fields, model.hidden, len(model.layers)
    width = fields.count("hidden_size_per_layer_input", least=0)
    if not width:
        return
    rows = fields.count("vocab_size_per_layer_input") or model.vocabulary
    model.top["lookup_parameters"] = rows * layers * width
    model.add(layers * width * hidden + width)
    model.top["norm_vectors"] = 5
    for layer in model.layers:
        add(layer, 2 * width * hidden)


def lfm2(model: Model) -> None:
    """LFM2: a stated feed-forward width is shrunk to two thirds and rounded up, where the config asks for it."""
    fields = model.fields
    if not fields.flag("block_auto_adjust_ff_dim"):
        return
    multiple, factor = fields.need("block_multiple_of"), fields.raw("block_ffn_dim_multiplier")
    for mlp in model.mlps("dense"):
        width = 2 * mlp["intermediate_size"] // 3
        if isinstance(factor, int | float):
            width = int(factor * width)
        mlp["intermediate_size"] = -(-width // multiple) * multiple


def hrm(model: Model) -> None:
    """HRM-Text: two stacks that run again and again, the low one several times for each pass of the high one."""
    low = model.fields.need("L_cycles")
    stack = len(model.layers) // (model.fields.need("H_cycles") * (low + 1))
    for index, layer in enumerate(model.layers):
        turn, place = divmod(index, stack)
        label = f"{'high' if turn % (low + 1) == low else 'low'} {place}"
        for component in mixers(layer):
            component["weights"] = f"{label} attention"
        if "mlp" in layer:
            layer["mlp"]["weights"] = f"{label} mlp"


def molmo2(model: Model) -> None:
    """Molmo 2: rows of the embedding for its image tokens, which the LM head does not have."""
    model.add((model.fields.count("additional_vocab_size", least=0) or 0) * model.hidden)


def ernie_vl(model: Model) -> None:
    """ERNIE 4.5 VL: as many experts for pictures, of another width, stand beside those for text."""
    widths = model.fields.raw("~expert_widths", "moe_intermediate_size")
    if not isinstance(widths, list) or len(widths) < 2:
        return
    for mlp in model.mlps("moe"):
        experts, width = mlp["experts"], widths[1]
        add(mlp, experts * (3 * model.hidden * width + model.hidden + 1))


def zaya(model: Model) -> None:
    """Zaya: convolved queries and keys, a network in the place of a router, and scaled residuals."""
    fields, hidden = model.fields, model.hidden
    rank = fields.need("router_hidden_size")
    for index, layer in enumerate(model.layers):
        attention = next((one for one in mixers(layer) if one["kind"] == "kv"), None)
        if attention is None or "mlp" not in layer:
            continue
        convolved = (attention["q_heads"] + attention["kv_heads"]) * attention["head_dim"]
        kernels = fields.need("cca_time0") + attention["head_dim"] * fields.need("cca_time1")
        for component in mixers(layer):
            if component["kind"] == "recurrent":
                component["parameters"] = convolved * (kernels + 2) + attention["kv_heads"]
        mlp = layer["mlp"]
        if mlp["kind"] != "moe":
            continue
        mlp["router"] = False
        scored = mlp["experts"] + 1
        add(mlp, rank * (hidden + 2 * rank + 4 + scored) + (rank if index else 0))
        add(layer, 8 * hidden)
    model.add(2 * hidden)


def phi4flash(model: Model) -> None:
    """SambaY: differential attention has four vectors and a double norm a layer; a memory unit goes in and out."""
    fields, hidden = model.fields, model.hidden
    width = hidden // fields.need("num_attention_heads")
    for component in model.attentions():
        add(component, 6 * width)
    inner = (fields.count("mamba_expand") or 2) * hidden
    for component in model.of_kind("gmu"):
        component["parameters"] = 2 * hidden * inner


def bert(model: Model) -> None:
    """BERT as a decoder: a table of segments, and a dense layer with a norm before the LM head."""
    segments = model.fields.count("type_vocab_size", least=0) or 0
    model.add((segments + model.hidden + 1) * model.hidden)


def voxtral(model: Model) -> None:
    """Voxtral Realtime: a low-rank network from the delay to the scale of a norm, in every layer."""
    rank = 32  # AdaRmsNorm in modeling_voxtral_realtime.py; no field states it
    for layer in model.layers:
        add(layer, 2 * rank * model.hidden)
