"""What a trait is, and a document under work: its layers one by one, its attentions and its feed-forward parts."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any, Literal

import msgspec

from kvcalc.model.importers.attention import HIDDEN
from kvcalc.model.importers.fields import Fields

Component = dict[str, Any]
Document = dict[str, Any]
Layer = dict[str, Any]
Bias = Literal["none", "qkv", "all"]
QkNorm = Literal["none", "head", "full"]


class Model:
    """A document with every layer on its own, to be edited in place; `document()` packs it again."""

    def __init__(self, fields: Fields, document: Document) -> None:
        self.fields = fields
        self.top = dict(document)
        self.layers = unpacked(document["layers"])
        self.encoder = unpacked(document.get("encoder", []))
        self.drafts = unpacked(document.get("draft_layers", []))

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.fields.need(*HIDDEN)

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding."""
        return int(self.top.get("vocab_size") or 0)

    def all_layers(self) -> list[Layer]:
        """Layers of the decoder, those of the encoder and those that draft."""
        return [*self.layers, *self.encoder, *self.drafts]

    def attentions(self) -> Iterator[Component]:
        """Every component with queries of its own."""
        for layer in self.all_layers():
            for component in mixers(layer):
                if component["kind"] in ("kv", "latent", "cross", "shared"):
                    yield component

    def of_kind(self, *kinds: str) -> Iterator[Component]:
        """Every component of a kind."""
        for layer in self.all_layers():
            yield from (component for component in mixers(layer) if component["kind"] in kinds)

    def mlps(self, *kinds: str) -> Iterator[Component]:
        """Every feed-forward part, of some kinds only where they are given."""
        for layer in self.all_layers():
            if "mlp" in layer and (not kinds or layer["mlp"]["kind"] in kinds):
                yield layer["mlp"]

    def add(self, parameters: int) -> None:
        """Parameters outside the layers."""
        add(self.top, parameters)

    def document(self) -> Document:
        """The document again, equal neighbours as one entry."""
        layers = {"layers": packed(self.layers)}
        others = {"encoder": packed(self.encoder), "draft_layers": packed(self.drafts)}
        return {**self.top, **layers, **{key: value for key, value in others.items() if value}}


Rule = Callable[[Model], None]


class Trait(msgspec.Struct, frozen=True, kw_only=True):
    """How the parameters of one model type differ from a plain Llama's.

    `bias`, `qk_norm` and `mlp_bias` hold always; `switched_bias`, `switched_norm` and `mlp_switch` say what a
    config's own switch means.
    Norms are counted in vectors of the hidden width: a layer norm with a bias is two. Rules `before` build
    layers, which then get biases and norms as all others do; `rules` run last.
    """

    bias: Bias | None = None
    switched_bias: Bias = "all"
    qk_norm: QkNorm | None = None
    switched_norm: QkNorm = "head"
    norms: int | None = None
    final_norms: int | None = None
    gated: bool = True
    mlp_bias: bool = False
    mlp_switch: bool = True
    positions: str | None = None
    position_offset: int = 0
    head_bias: bool = False
    tied: bool | None = None
    before: tuple[Rule, ...] = ()
    rules: tuple[Rule, ...] = ()


def alike(trait: Trait, *names: str) -> dict[str, Trait]:
    """One trait for several model types."""
    return dict.fromkeys(names, trait)


def add(part: dict[str, Any], parameters: int) -> None:
    """Parameters beside those that the fields of a component, a layer or a document imply."""
    total = part.get("extra_parameters", 0) + parameters
    part["extra_parameters"] = total
    if not total:
        del part["extra_parameters"]


def mixers(layer: Layer) -> list[Component]:
    """The components of a layer."""
    mixer = layer.get("mixer", [])
    return [mixer] if isinstance(mixer, dict) else list(mixer)


def unpacked(entries: Sequence[Layer]) -> list[Layer]:
    """Every layer as a copy of its own."""
    return [
        deepcopy({key: value for key, value in entry.items() if key != "repeat"})
        for entry in entries
        for _ in range(entry.get("repeat", 1))
    ]


def packed(layers: Sequence[Layer]) -> list[Layer]:
    """Equal neighbours as one entry with a repeat."""
    entries: list[Layer] = []
    previous: Layer | None = None
    for layer in layers:
        if layer == previous:
            entries[-1]["repeat"] = entries[-1].get("repeat", 1) + 1
        else:
            entries.append(dict(layer))
        previous = layer
    return entries
