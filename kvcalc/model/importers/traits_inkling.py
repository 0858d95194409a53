"""Inkling and Inkling 2: projected positions, short convolutions everywhere, inputs chosen among earlier layers."""

from kvcalc.model.importers.traits_model import Component, Layer, Model, add, mixers


def inkling(model: Model) -> None:
    """Inkling: a router that scores shared experts too, and biases by distance, as far as a layer sees."""
    fields, hidden = model.fields, model.hidden
    kernel = fields.need("conv_kernel_size")
    for layer in _whole(model):
        attention = _attention(layer)
        far = attention.get("window") or fields.need("rel_extent")
        add(attention, _positions(model, attention, far))
        _convolve(model, layer, attention)
        mlp = layer["mlp"]
        if mlp["kind"] == "moe":
            add(mlp, mlp.get("shared", 0) * hidden + 1)
        add(layer, 2 * hidden * kernel)


def inkling2(model: Model) -> None:
    """Inkling 2: gates, projected sinks, and a learned query for each input; the head leaves out padded rows."""
    fields, hidden = model.fields, model.hidden
    padding = model.vocabulary - (fields.count("unpadded_vocab_size") or model.vocabulary)
    # Norms of the embedding and of the output are counted as final norms; one query chooses the last input.
    model.add(hidden - padding * hidden)
    for index, layer in enumerate(_whole(model)):
        layer["norm_vectors"] = 0
        _inkling2_mixer(model, layer)
        _inkling2_layer(model, layer, index)


def _inkling2_mixer(model: Model, layer: Layer) -> None:
    fields, hidden, attention = model.fields, model.hidden, _attention(layer)
    heads, width = attention["q_heads"], attention["head_dim"]
    add(attention, _positions(model, attention, fields.need("rel_extent")))
    # A norm on queries and one on what positions are projected from, a gate on the output, a projected sink.
    add(attention, heads * (width + fields.need("d_rel")) + hidden * heads * width + hidden * heads)
    _convolve(model, layer, attention)


def _inkling2_layer(model: Model, layer: Layer, index: int) -> None:
    """Norms, convolutions and queries over earlier layers; a global layer normalises q, k and v each on its own."""
    hidden, kernel, attention = model.hidden, model.fields.need("conv_kernel_size"), _attention(layer)
    is_global = "window" not in attention
    queries = 3 if is_global else min(index, 1)
    add(layer, hidden * (1 + queries + (3 if is_global else 1) + 1 + 2 * kernel))
    if is_global:
        # Its convolutions of K and V have weights that a projection makes for every KV head.
        add(layer, 2 * attention["kv_heads"] * kernel * hidden)
    if "weights" in layer["mlp"]:
        rank = model.fields.need("loop_gate_rank")
        add(layer, 4 * 4 * rank * hidden + 4 * hidden)


def _attention(layer: Layer) -> Component:
    return next(one for one in mixers(layer) if one["kind"] == "kv")


def _whole(model: Model) -> list[Layer]:
    """Layers with attention and a feed-forward part, which all of these models' layers are."""
    return [layer for layer in model.layers if "mlp" in layer and any(one["kind"] == "kv" for one in mixers(layer))]


def _positions(model: Model, attention: Component, far: int) -> int:
    """A projection of the hidden state for every query head, and one to biases by distance."""
    width = model.fields.need("d_rel")
    return int(attention["q_heads"] * width * model.hidden + width * far)


def _convolve(model: Model, layer: Layer, attention: Component) -> None:
    """The convolutions of K and V, as the parameters of the state that they keep."""
    kernel = model.fields.need("conv_kernel_size")
    for component in mixers(layer):
        if component["kind"] == "recurrent":
            component["parameters"] = 2 * attention["kv_heads"] * attention["head_dim"] * kernel
