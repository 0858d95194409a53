"""Parameters of recurrent mixers, where a model type's differ from those that the kind itself counts."""

from kvcalc.model.importers.traits_model import Component, Model, Rule, add, mixers


def kimi_delta(low_rank: bool) -> Rule:
    """Kimi Delta Attention: q, k, v, output, a convolution, beta, a decay and an output gate, low-rank or whole."""

    def rule(model: Model) -> None:
        for component in model.of_kind("gated_delta"):
            component["parameters"] = _kimi_delta(component, model.hidden, low_rank)

    return rule


def _kimi_delta(component: Component, hidden: int, low_rank: bool) -> int:
    heads, width = component["v_heads"], component["v_heads"] * component["v_dim"]
    rank = component["v_dim"]
    gate = rank * (hidden + width) if low_rank else hidden * width
    projected = 4 * hidden * width + 3 * width * component["kernel"] + hidden * heads + 2 * gate
    return int(projected + width + heads + component["v_dim"])


def jamba(model: Model) -> None:
    """Jamba: norms on the step, on B and on C of a Mamba block."""
    for component in model.of_kind("mamba1"):
        rank = component.get("dt_rank") or -(-model.hidden // 16)
        add(component, rank + 2 * component["state"])


def no_gated_norm(model: Model) -> None:
    """Falcon-H1: the norm behind a Mamba-2 block is there only where the config says so."""
    if not model.fields.flag("mamba_rms_norm"):
        for component in model.of_kind("mamba2"):
            add(component, -component["heads"] * component["head_dim"])


def mamba_biases(model: Model) -> None:
    """Biases of a Mamba block's projections, and its convolution's, where the config differs from the usual."""
    fields = model.fields
    projections = fields.flag("use_bias", "mamba_proj_bias", "add_bias_linear")
    # Falcon-H1 has a switch of its own for the way out.
    out = fields.flag("projectors_bias") if fields.raw("projectors_bias") is not None else projections
    convolution = fields.raw("use_conv_bias", "mamba_conv_bias") is not False
    for component in model.of_kind("mamba1", "mamba2"):
        inner, convolved, more = _mamba_widths(component)
        if projections:
            add(component, inner + convolved + more)
        if out:
            add(component, model.hidden)
        if not convolution:
            add(component, -convolved)


def _mamba_widths(component: Component) -> tuple[int, int, int]:
    """Channels, channels that are convolved, and what else the input projection makes."""
    if component["kind"] == "mamba1":
        return component["inner"], component["inner"], 0
    inner = component["heads"] * component["head_dim"]
    return inner, inner + 2 * component["groups"] * component["state"], component["heads"]


def recurrent_gemma(model: Model) -> None:
    """RecurrentGemma: attention has a bias on its output only."""
    for component in model.of_kind("kv"):
        add(component, model.hidden)


def zamba(model: Model) -> None:
    """Zamba, Zamba2: a few shared Transformer blocks in turns before some layers, each pass with a projection."""
    blocks = model.fields.count("num_mem_blocks") or 1
    passes = 0
    for layer in model.layers:
        layer.pop("mlp", None)
        layer["norm_vectors"] = 1
        attention = next((one for one in mixers(layer) if one["kind"] == "kv"), None)
        if attention is None:
            continue
        block = f"shared block {passes % blocks + 1}"
        attention.update(weights=f"{block} attention", parameters=_zamba2_attention(model, attention))
        _zamba2_mlp(model, layer, block)
        passes += 1


def _zamba2_attention(model: Model, attention: Component) -> int:
    """It reads the hidden state beside the embedding: twice the width; its two norms are counted with it."""
    hidden = model.hidden
    inner = model.fields.count("attention_hidden_size") or 2 * hidden
    asked, kept = attention["q_heads"] * attention["head_dim"], attention["kv_heads"] * attention["head_dim"]
    return int(inner * (asked + 2 * kept) + asked * hidden + inner + hidden)


def _zamba2_mlp(model: Model, layer: Component, block: str) -> None:
    inner = model.fields.count("intermediate_size") or 4 * model.hidden
    layer["mlp"] = {"kind": "dense", "intermediate_size": inner, "weights": f"{block} mlp"}
    # Zamba has no adapters, and no field of its config names their rank.
    rank = model.fields.count("adapter_rank") or 0
    adapter = rank * (model.hidden + 2 * inner)
    if model.fields.flag("use_shared_attention_adapter"):
        adapter += 3 * rank * 4 * model.hidden
    add(layer, model.hidden * model.hidden + adapter)


def xlstm(model: Model) -> None:
    """xLSTM: q and k half as wide as v, an output gate, two gates a head with biases, a norm over all heads."""
    fields, hidden = model.fields, model.hidden
    heads = fields.need("num_heads")
    keys, values = (int(hidden * _factor(model, name)) for name in ("qk_dim_factor", "v_dim_factor"))
    inner, step = int(hidden * _factor(model, "ffn_proj_factor")), fields.count("ffn_round_up_to_multiple_of") or 1
    for layer in model.layers:
        layer["mlp"] = {"kind": "dense", "intermediate_size": -(-inner // step) * step}
        for index, component in enumerate(mixers(layer)):
            total = hidden * (2 * keys + 3 * values + 2 * heads) + 2 * heads + values
            component["parameters"] = 0 if index else total


def _factor(model: Model, name: str) -> float:
    value = model.fields.raw(name)
    return float(value) if isinstance(value, int | float) else 1.0


def rwkv4(model: Model) -> None:
    """RWKV-4: mixing weights a channel, four square projections, and a gate beside an ungated feed-forward part."""
    hidden = model.hidden
    inner = model.fields.count("attention_hidden_size") or hidden
    for component in model.of_kind("recurrent"):
        component["parameters"] = 2 * inner + 3 * hidden + 4 * hidden * inner
    for mlp in model.mlps():
        add(mlp, hidden * hidden + 2 * hidden)
    model.add(2 * hidden)


def rwkv6(model: Model) -> None:
    """RWKV-6: five projections, low-rank mixing and decay, a bonus and a group norm; a gated squared-ReLU network."""
    hidden = model.hidden
    # Ranks of the training code (BlinkDL/RWKV-LM, RWKV-v5/src/model.py): doubled from a width of 4096 on.
    mixing, decay = (64, 128) if hidden >= 4096 else (32, 64)
    for component in model.of_kind("rwkv"):
        component["parameters"] = hidden * (5 * hidden + 6 + 10 * mixing + 1 + 2 * decay + 3)
    for mlp in model.mlps():
        add(mlp, hidden * hidden + 2 * hidden)
    model.add(2 * hidden)
