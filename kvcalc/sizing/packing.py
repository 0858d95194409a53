"""Which format each component takes, and what it then weighs on one rank."""

from collections.abc import Iterable

import msgspec

from kvcalc.cache.component import MODEL_FORMAT, Component
from kvcalc.cache.formats import AUTO, EntryFormat, SplitFormat, find_format
from kvcalc.cache.sharding import WHOLE, Sharding
from kvcalc.cache.span import State
from kvcalc.errors import KvcalcError, UnknownNameError, shorten

DEFAULT_DTYPE = "bf16"
DEFAULT_STATE_DTYPE = "fp32"


_SIDES = ("k", "v")


class FormatRequest(msgspec.Struct, frozen=True):
    """What `--kv-dtype` asks: one format for all, and formats for components or for K and V by name."""

    everywhere: str | None = None
    by_name: dict[str, str] = {}

    @classmethod
    def parse(cls, text: str) -> "FormatRequest":
        """Read `fp8`, `k=q8_0,v=q4_0`, `index=bf16` or `fp8,index=bf16`; `auto` asks for nothing."""
        everywhere, by_name = None, {}
        for item in text.split(","):
            name, equals, value = item.strip().rpartition("=")
            if not value or (equals and not name) or (not equals and everywhere) or name in by_name:
                raise KvcalcError(
                    f"--kv-dtype {shorten(text)!r} cannot be read", "write fp8, k=q8_0,v=q4_0 or index=bf16"
                )
            asked = AUTO if value.casefold() == AUTO else find_format(value).name
            if equals:
                by_name[name.strip()] = asked
            else:
                everywhere = asked
        return cls(None if everywhere == AUTO else everywhere, by_name)

    def for_part(self, component: Component, part: str, dtype: str) -> str:
        """The name of the format of one part: by name, for all, pinned by the spec, or the model's own."""
        side = self.by_name.get(part) if part in _SIDES else None
        asked = side or self.by_name.get(component.name) or self.everywhere
        return component.translated(asked) if asked and asked != AUTO else component.pinned_format() or dtype

    def check_names(self, components: Iterable[Component]) -> None:
        """UnknownNameError where a name reaches nothing of the model."""
        components = list(components)
        known = {one.name for one in components if one.keeps_entries}
        known |= {part.name for one in components for part in one.parts(WHOLE) if part.name in _SIDES}
        for name in self.by_name:
            if name not in known:
                raise UnknownNameError("component in --kv-dtype", name, known, f"this model has {_listed(known)}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "no cache that grows"


class Packer:
    """Formats of one model under one request, and the bytes that follow."""

    def __init__(
        self, request: FormatRequest, dtype: str, state_dtype: str | None, spec_state_dtype: str | None
    ) -> None:
        self.request, self.dtype = request, dtype
        self.asked_state_dtype, self.spec_state_dtype = state_dtype, spec_state_dtype
        self._formats: dict[int, tuple[Component, EntryFormat]] = {}

    def entry_format(self, component: Component) -> EntryFormat:
        """The format of a component's entries; K and V may differ."""
        # The component is kept beside its format so that its id cannot be given to another one.
        if id(component) not in self._formats:
            names = {
                part.name: self.request.for_part(component, part.name, self.dtype) for part in component.parts(WHOLE)
            }
            formats = {part: find_format(name) for part, name in names.items()}
            distinct = set(formats.values())
            chosen = distinct.pop() if len(distinct) == 1 else SplitFormat(formats)
            self._formats[id(component)] = component, chosen
        return self._formats[id(component)][1]

    def entry_bytes(self, component: Component, sharding: Sharding = WHOLE) -> int:
        """Bytes of one entry on one rank; 0 for a component that keeps none."""
        if not component.keeps_entries:
            return 0
        spread = sharding.growing if component.grows else sharding
        return self.entry_format(component).entry_bytes(component.parts(spread), component.name)

    def state_format(self, state: State) -> str:
        """The name of the format of a state: convolutions follow the model, others the state format."""
        if state.format == MODEL_FORMAT:
            return self.dtype
        name = self.asked_state_dtype or state.format or self.spec_state_dtype or DEFAULT_STATE_DTYPE
        return find_format(name).name

    def state_bytes(self, component: Component, sharding: Sharding = WHOLE) -> int:
        """Bytes of a component's states on one rank."""
        return sum(
            find_format(self.state_format(state)).bulk_bytes(state.values, f"state {state.name}")
            for state in component.states(sharding)
        )

    def state_formula(self, state: State) -> str:
        """A state as arithmetic: `32 x 128 x 128 x 4 B`."""
        return f"{' x '.join(map(str, state.shape))} x {find_format(self.state_format(state)).value_bytes()}"

    def format_name(self, component: Component) -> str:
        """How an answer names the component's format: its entries', or its states' where it has only those."""
        if component.keeps_entries:
            return self.entry_format(component).name
        return ",".join(dict.fromkeys(self.state_format(state) for state in component.states(WHOLE)))

    def rank_bytes(self, component: Component, tokens: int, sharding: Sharding) -> int:
        """Bytes that one rank holds of one component for one sequence of `tokens` tokens."""
        entries = component.entries(tokens) if component.keeps_entries else 0
        if component.grows:
            entries = -(-entries // sharding.dcp)
        return int(entries) * self.entry_bytes(component, sharding) + self.state_bytes(component, sharding)
