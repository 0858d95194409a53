"""An architecture: the spec language as structs, and the model that a spec describes.

`Document` is a spec as it stands in a file, with names, patterns and repeats; `ModelSpec` is the
model itself, every layer in order and every reader paired with the cache that it reads.
"""

from functools import cached_property
from typing import Annotated

import msgspec

from kvcalc.cache.component import Component, Count, CountOrZero, ExtraParameters, Parameters, contradiction
from kvcalc.cache.kinds import AnyComponent
from kvcalc.model.feed_forward import AnyMlp, Mlp
from kvcalc.model.memo import Memo

Mixer = AnyComponent | str | list[AnyComponent | str]
Text = Annotated[str, msgspec.Meta(pattern=r"^[^\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]*$")]
"""One line without control characters: it will stand on somebody's terminal."""
Name = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[^\x00-\x20\x7f-\x9f\u202a-\u202e\u2066-\u2069][^\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]{0,99}$"
    ),
]


_SOME = msgspec.Meta(min_length=1)


class LayerEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One item under `layers:` or `blocks:`: a layer, or a pattern of them, `repeat` times."""

    repeat: Count = 1
    pattern: "Annotated[str, _SOME] | Annotated[list[LayerEntry | str], _SOME] | None" = None
    mixer: Mixer | None = None
    mlp: AnyMlp | str | None = None
    norm_vectors: CountOrZero | None = None
    extra_parameters: ExtraParameters = 0

    def __post_init__(self) -> None:
        of_a_layer = [key for key in ("mixer", "mlp", "norm_vectors") if getattr(self, key) is not None]
        if self.pattern is not None and (of_a_layer or self.extra_parameters):
            keys = ", ".join([*of_a_layer, *(["extra_parameters"] if self.extra_parameters else [])])
            message = f"a pattern beside {keys}, which belong to one layer"
            raise ValueError(contradiction(message, "put the layer under blocks: and name it in the pattern"))


class Assumed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a spec states without a source that could be read, by what rests on it."""

    cache: tuple[Text, ...] = ()
    reads: tuple[Text, ...] = ()
    weights: tuple[Text, ...] = ()
    other: tuple[Text, ...] = ()


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A spec as it stands in a YAML file."""

    name: Name
    layers: Annotated[list[LayerEntry | str], msgspec.Meta(min_length=1)]
    aliases: list[Name] = []
    source: Text | None = None
    model_type: Name | None = None
    assumed: Assumed = Assumed()
    max_context: Count | None = None
    hidden_size: Count | None = None
    vocab_size: Count | None = None
    dtype: str | None = None
    state_dtype: str | None = None
    tie_embeddings: bool = False
    position_embeddings: CountOrZero = 0
    norm_vectors: CountOrZero = 2
    final_norm_vectors: CountOrZero = 1
    extra_parameters: ExtraParameters = 0
    lookup_parameters: Parameters = 0
    prefill_layers: Count | None = None
    left_out: tuple[Text, ...] = ()
    published_weights: Name | None = None
    blocks: dict[str, LayerEntry] = {}
    mixers: dict[str, Mixer] = {}
    mlps: dict[str, AnyMlp] = {}
    encoder: list[LayerEntry | str] = []
    draft_layers: list[LayerEntry | str] = []


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One layer: the components of its mixer in order, its feed-forward part, its norms."""

    components: tuple[Component, ...] = ()
    mlp: Mlp | None = None
    norm_vectors: int | None = None
    extra_parameters: int = 0

    @property
    def shares_weights(self) -> bool:
        """Whether some of its weights are another layer's too."""
        return any(one.weights for one in self.components) or bool(self.mlp and self.mlp.weights)

    @property
    def stated_parameters(self) -> int:
        """How many of its parameters a spec states as a number, without saying what they are."""
        mixers = sum(one.stated_parameters for one in self.components)
        return mixers + (self.mlp.stated_parameters if self.mlp else 0) + abs(self.extra_parameters)


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """Component `reader` of layer `layer` reads component `owner` of layer `owner_layer`, kept there."""

    layer: int
    reader: int
    owner_layer: int
    owner: int


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Weights as they lie in files: bytes of all tensors, and the formats that they are in, largest share first."""

    bytes: int
    formats: tuple[str, ...]
    source: str
    parameters: int | None = None


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """An architecture, ready for arithmetic. Draft layers stand behind the model's own in `all_layers`."""

    name: str
    layers: tuple[Layer, ...]
    draft_layers: tuple[Layer, ...] = ()
    encoder: tuple[Layer, ...] = ()
    reads: tuple[Read, ...] = ()
    aliases: tuple[str, ...] = ()
    source: str | None = None
    model_type: str | None = None
    assumed: Assumed = Assumed()
    max_context: int | None = None
    hidden_size: int | None = None
    vocab_size: int | None = None
    dtype: str | None = None
    state_dtype: str | None = None
    tie_embeddings: bool = False
    position_embeddings: int = 0
    norm_vectors: int = 2
    final_norm_vectors: int = 1
    extra_parameters: int = 0
    lookup_parameters: int = 0
    prefill_layers: int | None = None
    left_out: tuple[str, ...] = ()
    """Parts that a server loads beside this model, and whose size the spec does not state."""
    published_weights: str | None = None
    """The format of most weights of the published checkpoint, where it is not that of the model."""
    overrides: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = None

    def __repr__(self) -> str:
        """One line: a model's layers are too many to read."""
        return f"ModelSpec({self.name}, {len(self.layers)} layers)"

    @cached_property
    def memo(self) -> Memo:
        """What is derived of the model alone, or under a key that says of what else."""
        return Memo()

    @property
    def all_layers(self) -> tuple[Layer, ...]:
        """The model's layers, then its draft layers."""
        return self.layers + self.draft_layers

    def component(self, layer: int, position: int) -> Component:
        """The component at a place among `all_layers`."""
        layers = self.layers if layer < len(self.layers) else self.draft_layers
        return layers[layer if layer < len(self.layers) else layer - len(self.layers)].components[position]

    def source_of(self) -> dict[tuple[int, int], Component]:
        """For each place that reads another one's cache, the component that keeps it."""
        return {(read.layer, read.reader): self.component(read.owner_layer, read.owner) for read in self.reads}
