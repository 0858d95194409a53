"""Rules of attention and feed-forward parts that no field of a component expresses: gates, sinks, norms, odd biases."""

from kvcalc.model.importers.traits_model import Component, Model, Rule, add, mixers


def _queries(component: Component) -> int:
    return int(component.get("q_heads") or 0)


def answer_width(component: Component) -> int:
    """Width of what all query heads answer, in numbers."""
    return _queries(component) * int(component.get("v_head_dim") or component.get("head_dim") or 0)


def output_gate(model: Model) -> None:
    """A gate on every number that attention answers, projected from the hidden state."""
    for component in model.attentions():
        add(component, model.hidden * answer_width(component))


def fused_gate(model: Model) -> None:
    """The same gate, made by the query projection and so with a bias where that has one."""
    output_gate(model)
    for component in model.attentions():
        if component.get("bias", "none") != "none":
            add(component, answer_width(component))


def head_gate(model: Model) -> None:
    """One gate a query head, projected from the hidden state."""
    for component in model.attentions():
        add(component, model.hidden * _queries(component))


def laguna_gate(model: Model) -> None:
    """Laguna: a gate a query head, or one for every number."""
    (head_gate if model.fields.raw("gating") in (True, "per-head") else output_gate)(model)


def sinks(model: Model) -> None:
    """One learned number a query head: a sink, or the bias of a gate."""
    for component in model.attentions():
        add(component, _queries(component))


def window_sinks(model: Model) -> None:
    """A learned sink a query head, in sliding layers only."""
    for component in model.attentions():
        if component.get("window"):
            add(component, _queries(component))


def output_bias(model: Model) -> None:
    """A bias on the output projection of attention, where the config asks for no biases on all of them."""
    for component in model.attentions():
        if component.get("bias") != "all":
            add(component, model.hidden)


def switched_output_bias(model: Model) -> None:
    """Seed-OSS: a switch of its own for the bias of the output projection."""
    if model.fields.flag("attention_out_bias"):
        output_bias(model)


def no_key_bias(model: Model) -> None:
    """Whisper: every projection has a bias but that of the keys."""
    for component in model.attentions():
        if component.get("bias") == "all":
            add(component, -component["kv_heads"] * component["head_dim"])


def norm_biases(model: Model) -> None:
    """The norms of queries and keys are layer norms with a bias, one for all heads."""
    for component in model.attentions():
        if component.get("qk_norm") == "head":
            add(component, 2 * component["head_dim"])


def answer_norm(model: Model) -> None:
    """BitNet: a norm on what attention answers and one inside the feed-forward part."""
    for component in model.attentions():
        add(component, answer_width(component))
    for mlp in model.mlps("dense"):
        add(mlp, mlp.get("intermediate_size", 0))


def vectors_per_head(count: int) -> Rule:
    """`count` vectors as wide as a head in every attention."""

    def rule(model: Model) -> None:
        for component in model.attentions():
            add(component, count * component["head_dim"])

    return rule


def norms_where(field: str, on: int, off: int) -> Rule:
    """Norm vectors of a layer by a switch of the config."""

    def rule(model: Model) -> None:
        model.top["norm_vectors"] = on if model.fields.flag(field) else off

    return rule


def gate_where(field: str) -> Rule:
    """A gate a query head where the config switches it on."""

    def rule(model: Model) -> None:
        if model.fields.flag(field):
            head_gate(model)

    return rule


def sparse_norms(vectors: int) -> Rule:
    """Norm vectors of the layers with experts, where they differ from the others'."""

    def rule(model: Model) -> None:
        for layer in model.layers:
            if layer.get("mlp", {}).get("kind") == "moe":
                layer["norm_vectors"] = vectors

    return rule


def shared_expert_gate(model: Model) -> None:
    """One number that gates the shared expert, projected from the hidden state."""
    for mlp in model.mlps("moe"):
        if mlp.get("shared"):
            add(mlp, model.hidden)


def one_shared_expert(model: Model) -> None:
    """Llama 4: an expert that every token passes stands beside the routed ones, and no field counts it."""
    for mlp in model.mlps("moe"):
        mlp["shared"] = 1


def selection_bias(model: Model) -> None:
    """A learned number an expert that corrects which ones are chosen."""
    for mlp in model.mlps("moe"):
        add(mlp, mlp["experts"])


def biased_head(model: Model) -> None:
    """ERNIE 4.5 with experts: the switch for biases is the LM head's too."""
    if model.fields.flag("use_bias"):
        model.add(model.vocabulary)


def index_without_weights(model: Model) -> None:
    """MiniMax-M3: the index has no weight a query head, and norms on both its sides."""
    for component in model.of_kind("index"):
        add(component, -model.hidden * component["q_heads"])


def activation(numbers: int) -> Rule:
    """Learned numbers of the activation function (xIELU has two)."""

    def rule(model: Model) -> None:
        for mlp in model.mlps():
            add(mlp, numbers)

    return rule


def half_width(model: Model) -> None:
    """The config counts the gate and the value of a feed-forward part together."""
    for mlp in model.mlps("dense"):
        if "intermediate_size" in mlp:
            mlp["intermediate_size"] //= 2


def without_mlp(model: Model) -> None:
    """Layers are a mixer and nothing else."""
    for layer in model.layers:
        layer.pop("mlp", None)


def norm_a_part(model: Model) -> None:
    """A norm before a mixer and one before a feed-forward part; a layer may have either or both."""
    for layer in model.layers:
        layer["norm_vectors"] = bool(mixers(layer)) + ("mlp" in layer)


def attention_switch(field: str) -> Rule:
    """A switch for the biases of attention, which says nothing of the feed-forward part."""

    def rule(model: Model) -> None:
        if model.fields.flag(field):
            for component in model.attentions():
                component["bias"] = "all"

    return rule


def convolution_bias(model: Model) -> None:
    """LFM2: a switch for the biases of a short convolution and of the projections around it."""
    if model.fields.flag("conv_bias"):
        for component in model.of_kind("short_conv"):
            add(component, 4 * component["width"] + model.hidden)


def more_rows(rows: int) -> Rule:
    """Rows of the input embedding that the LM head does not have."""

    def rule(model: Model) -> None:
        add(model.top, rows * model.hidden)

    return rule


def uncounted(model: Model) -> None:
    """A model with parts that nothing here counts: a feed-forward part without a size makes the total unknown."""
    for layer in model.layers[:1]:
        layer["mlp"] = {"kind": "dense"}
