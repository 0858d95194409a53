"""What every cache kind answers: the questions, with the answers of a component that keeps nothing.

A kind is one frozen struct whose fields are its keys in a spec. Sizing, engines and the reference
ask only what stands on `Component`; none of them knows a kind by name.
"""

import math
from typing import Annotated, Any, Literal, Self

import msgspec

from kvcalc.cache.formats import find_format
from kvcalc.cache.layout import Part
from kvcalc.cache.matrix import Matrix
from kvcalc.cache.sharding import WHOLE, Sharding
from kvcalc.cache.span import Span, State, at_most
from kvcalc.errors import KvcalcError

Count = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
CountOrZero = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
Parameters = Annotated[int, msgspec.Meta(ge=0, le=10**15)]
ExtraParameters = Annotated[int, msgspec.Meta(ge=-(10**15), le=10**15)]
Label = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+/-]{0,99}$")]
Bias = Literal["none", "qkv", "all"]
QkNorm = Literal["none", "head", "full"]
FormatMap = dict[str, str]

MODEL_FORMAT = "model"

RESERVED_LABELS = frozenset({"k", "v", "previous", "kv_cache", "weights"})
"""What `--kv-dtype`, `source:` and the CSV mean by themselves."""

HINT_MARK = " // "


def contradiction(message: str, hint: str) -> str:
    """A complaint that a struct can raise through msgspec, which passes on one string only."""
    return f"{message}{HINT_MARK}{hint}"


class Component(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """One thing that a layer keeps or reads. This base keeps nothing."""

    id: Label | None = None
    parameters: Parameters | None = None
    extra_parameters: ExtraParameters = 0
    weights: Annotated[str, msgspec.Meta(min_length=1, max_length=100)] | None = None

    def __post_init__(self) -> None:
        if self.id in RESERVED_LABELS:
            raise ValueError(contradiction(f"id: {self.id} has a meaning of its own", "choose another label"))

    @property
    def kind(self) -> str:
        """The kind as a spec names it."""
        return str(self.__struct_config__.tag)

    @property
    def name(self) -> str:
        """The name of its row in an answer, and its name in `--kv-dtype NAME=FORMAT`."""
        return self.id or self.default_name

    @property
    def default_name(self) -> str:
        """The name where no id is given."""
        return "state" if self.states(WHOLE) else self.kind

    def parts(self, sharding: Sharding) -> tuple[Part, ...]:
        """What one entry is made of on one rank."""
        return ()

    @property
    def span(self) -> Span:
        """How entries follow from tokens."""
        return Span()

    @property
    def top_k(self) -> int | None:
        """The most entries that one decode step reads, None for all of them."""
        return None

    @property
    def selects(self) -> bool:
        """Whether its entries are keys by which others are chosen."""
        return False

    @property
    def overlaps(self) -> bool:
        """Whether a compressed entry looks back over the tokens of the one before it."""
        return False

    def states(self, sharding: Sharding) -> tuple[State, ...]:
        """What a sequence keeps on one rank however long it is."""
        return ()

    @property
    def keeps_entries(self) -> bool:
        """Whether tokens leave entries behind, as opposed to a state or nothing."""
        return bool(self.parts(WHOLE))

    @property
    def grows(self) -> bool:
        """Whether another token adds to it, however long the context."""
        return self.keeps_entries and self.span.cap is None

    def entries(self, tokens: Any) -> Any:
        """How many entries one sequence of `tokens` tokens keeps; an array where `tokens` is one."""
        return self.span.entries(tokens)

    def tokens_in_sight(self, tokens: Any) -> Any:
        """How many of `tokens` tokens the last one's query can see before any window: those of its chunk, or all."""
        return tokens

    def entries_read(self, tokens: Any) -> Any:
        """How many entries one decode step of its own layer reads."""
        return at_most(self.entries(tokens), self.top_k)

    def pairs(self, tokens: Any, limit: int | None = None) -> Any:
        """Pairs of a query and an entry that `tokens` tokens make as each reads what stands before it."""
        return self.span.pairs(tokens, limit)

    @property
    def geometry(self) -> str:
        """Its shape in words, as a person names it: `8 KV heads x 128`."""
        shapes = [state.shape for state in self.states(WHOLE)]
        return " x ".join(map(str, max(shapes, key=math.prod))) if shapes else ""

    def pinned_format(self) -> str | None:
        """The format that the spec pins, where it pins one."""
        return None

    def translated(self, requested: str) -> str:
        """What a requested format name means for this component."""
        return requested

    @property
    def source_label(self) -> str | None:
        """The label of the cache that it reads in another place, where it keeps none of its own."""
        return None

    @property
    def is_default_source(self) -> bool:
        """Whether `source: previous` may mean this component."""
        return False

    def read_limit(self, source: "Component") -> int | None:
        """The most entries that it reads of `source`, None for all of them."""
        return None

    @property
    def in_heads(self) -> "Component | None":
        """What an engine without latents keeps in its place: K and V of every head; None where the spec lacks them."""
        return self

    def with_encoder(self, tokens: int) -> Self:
        """The same component for an encoder input of `tokens` tokens."""
        return self

    def unbounded(self) -> Self:
        """The same component without the window or chunk that bounds it."""
        return self

    @property
    def is_encoder_fed(self) -> bool:
        """Whether it keeps the encoder's tokens rather than the context's."""
        return False

    @property
    def needs_encoder_tokens(self) -> bool:
        """Whether its size is unknown until the encoder's tokens are given."""
        return False

    @property
    def queries(self) -> int | None:
        """Query heads that it owns, None where another component of the layer asks."""
        return None

    @property
    def query_group(self) -> int:
        """What the query heads that read it must be a multiple of."""
        return 1

    def shared_heads(self) -> tuple[tuple[str, int], ...]:
        """Named head counts that tensor parallelism divides."""
        return ()

    def query_parameters(
        self, hidden: int, q_heads: int, bias: Bias, qk_norm: QkNorm, sharding: Sharding
    ) -> int | None:
        """Parameters that one rank holds of the Q and O projections of `q_heads` heads that read this cache."""
        return None

    def projection_parameters(self, hidden: int, source: "Component | None", sharding: Sharding) -> int | None:
        """Parameters of its own projections on the fullest rank, None where its kind gives no formula."""
        return None

    def parameter_count(self, hidden: int, source: "Component | None" = None, sharding: Sharding = WHOLE) -> int | None:
        """Parameters on the fullest rank in a model `hidden` wide, what is stated as a number cut; None: unknown."""
        if self.parameters is not None:
            return sharding.share(self.parameters + self.extra_parameters)
        own = self.projection_parameters(hidden, source, sharding)
        return None if own is None else own + sharding.share(self.extra_parameters)

    def matrices(self, hidden: int, source: "Component | None", sharding: Sharding) -> tuple[Matrix, ...]:
        """What one token is multiplied with on the fullest rank: here all its parameters as a matrix in and one out."""
        inner = (self.parameter_count(hidden, source, sharding) or 0) // (2 * hidden)
        return (Matrix(inner, hidden), Matrix(hidden, inner)) if inner else ()

    def query_matrices(self, hidden: int, q_heads: int, sharding: Sharding) -> tuple[Matrix, ...]:
        """The Q and O projections of `q_heads` heads that read this cache, on one rank."""
        return ()

    def pair_flops(self, q_heads: int, is_prompt: bool) -> int:
        """FLOPs of one token's `q_heads` query heads with one entry: scores and weighted sum.

        A decode step works on what is kept; a prompt may be spelled out first (`is_prompt`).
        """
        return 0

    def adapted_widths(self, hidden: int, source: "Component | None", sharding: Sharding) -> int | None:
        """Numbers in and out of its linear layers on a rank: a LoRA of rank 1 has a weight for each. None: unknown."""
        return None

    @property
    def stated_parameters(self) -> int:
        """How many of its parameters a spec states as a number, without saying what they are."""
        return (self.parameters or 0) + abs(self.extra_parameters)


class Attended(Component, frozen=True, kw_only=True):
    """A cache of entries that a span bounds and a format packs."""

    window: Count | None = None
    sinks: CountOrZero = 0
    chunk: Count | None = None
    ratio: Count | None = None
    overlap: bool = False
    format: str | None = None
    formats: FormatMap = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [name for name in ("window", "chunk", "ratio") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(contradiction(f"{' and '.join(given)} stand together", "a cache has one span: keep one"))
        if self.sinks and self.window is None:
            raise ValueError(contradiction("sinks need a window", "add window:, or remove sinks:"))
        if self.overlap and self.ratio is None:
            raise ValueError(contradiction("overlap needs a ratio", "add ratio:, or remove overlap:"))
        for name in [self.format, *self.formats, *self.formats.values()]:
            check_format(name)

    @property
    def keeps_entries(self) -> bool:
        return True

    @property
    def default_name(self) -> str:
        return "window" if self.window is not None else self.kind

    @property
    def overlaps(self) -> bool:
        return self.overlap

    @property
    def span(self) -> Span:
        if self.window is not None:
            return Span(cap=self.window + self.sinks, slides=True, pinned=self.sinks)
        return Span(cap=self.chunk, ratio=self.ratio or 1)

    def tokens_in_sight(self, tokens: Any) -> Any:
        return tokens if self.chunk is None else (tokens - 1) % self.chunk + 1

    def pairs(self, tokens: Any, limit: int | None = None) -> Any:
        if self.chunk is None:
            return self.span.pairs(tokens, limit)
        rest = tokens % self.chunk
        return tokens // self.chunk * self.span.pairs(self.chunk, limit) + self.span.pairs(rest, limit)

    def unbounded(self) -> Self:
        return msgspec.structs.replace(self, window=None, chunk=None, sinks=0)

    def pinned_format(self) -> str | None:
        return self.format

    def translated(self, requested: str) -> str:
        meaning = {find_format(name).name: target for name, target in self.formats.items()}
        return meaning.get(find_format(requested).name, requested)


def check_format(name: str | None) -> None:
    """ValueError where a spec names a format that does not exist."""
    if name is None:
        return
    try:
        find_format(name, "format:")
    except KvcalcError as error:
        raise ValueError(contradiction(error.message, error.hint)) from error
