"""A batch of sequences with their caches: prefill, chunks, decode, and which tokens the caches were built from."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kvcalc.errors import KvcalcError
from kvcalc.reference.cache import EntryCache, Plan
from kvcalc.reference.layer import Part
from kvcalc.reference.mixer import Mixer
from kvcalc.reference.model import ReferenceModel
from kvcalc.reference.numbers import torch_dtype
from kvcalc.reference.projections import Keeper
from kvcalc.reference.step import Place, Step
from kvcalc.reference.store import Held

if TYPE_CHECKING:
    from torch import Tensor


class StalePrefixError(KvcalcError):
    """A prompt that does not begin with the tokens that the cache was built from."""


class Allocated(NamedTuple):
    """One tensor of a session: the place it belongs to, None for what serves all layers."""

    place: Place | None
    held: Held


class Session:
    """Caches for `batch` sequences of up to `capacity` tokens, all of the same length."""

    def __init__(
        self,
        model: ReferenceModel,
        batch: int,
        capacity: int,
        page: int | None = None,
        encoded: "Tensor | None" = None,
    ) -> None:
        import torch

        self.model, self.batch, self.capacity, self.page = model, batch, capacity, page
        self.encoded = encoded
        self.caches: dict[Place, EntryCache] = {}
        self.states: dict[Place, dict[str, Tensor]] = {}
        for part in model.parts:
            self._allocate(part)
        self.log = torch.zeros(batch, capacity, dtype=torch.long)
        self.length = self.passes = 0
        self.is_torn = False
        """Whether a pass failed half-way, after some layers had kept its tokens."""

    def _allocate(self, part: Part) -> None:
        if part.keeper is not None:
            self.caches[part.place] = part.reference.cache(self._plan(part, part.keeper))
        if part.mixer is not None:
            self.states[part.place] = self._states(part, part.mixer)

    def _plan(self, part: Part, keeper: Keeper) -> Plan:
        model, form = self.model, self.model.packer.entry_format(part.reference.component)
        shapes = keeper.shapes(part.reference.rotary_part())
        return Plan(
            vectors=[(shape, form.name_for(shape.name)) for shape in shapes],
            tokens=self.capacity,
            batch=self.batch,
            device=model.options.device,
            dtype=model.dtype,
            exact=model.options.exact,
            page=self.page,
        )

    def _states(self, part: Part, mixer: Mixer) -> "dict[str, Tensor]":
        import torch

        formats = {state.name: self.model.packer.state_format(state) for state in part.states}
        exact, device = self.model.options.exact, self.model.options.device
        return {
            name: torch.zeros(
                self.batch, *shape, dtype=exact or torch_dtype(formats[name], "--state-dtype"), device=device
            )
            for name, shape in mixer.state_shapes().items()
        }

    def prefill(self, tokens: "Tensor", chunk: int | None = None) -> "Tensor":
        """Pass new `tokens` (batch, tokens), `chunk` at once: hidden states (batch, tokens or fewer, hidden).

        Where a model's upper layers skip a prompt, states come back of the tokens that reached the top.
        """
        import torch

        self._check_rows(tokens)
        if chunk is not None and chunk < 1:
            raise KvcalcError(f"a chunk of {chunk} tokens", "pass at least one token at once, or leave chunk out")
        total = tokens.shape[1]
        size = chunk or total
        outputs = []
        for at in range(0, total, size):
            part = tokens[:, at : at + size]
            upper = max(0, min(part.shape[1], at + part.shape[1] - (total - self.model.replay)))
            out = self._pass(part, upper if self.model.lower < len(self.model.layers) else part.shape[1])
            outputs.append(out if upper or self.model.lower == len(self.model.layers) else out[:, :0])
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)

    def decode(self, tokens: "Tensor") -> "Tensor":
        """One step: `tokens` (batch, 1) in, hidden states (batch, 1, hidden) out."""
        return self._pass(tokens, 1)

    def resume(self, prompt: "Tensor") -> "Tensor":
        """Continue with a whole `prompt` whose beginning is cached; StalePrefixError where it is another beginning."""
        import torch

        self._check_rows(prompt)
        shared = min(prompt.shape[1], self.length)
        if prompt.shape[1] <= self.length or not torch.equal(prompt[:, :shared], self.log[:, :shared]):
            differs = (prompt[:, :shared] != self.log[:, :shared]).any(0).nonzero()
            where = (
                f"differs from token {int(differs[0])} on" if len(differs) else f"ends within the {self.length} cached"
            )
            raise StalePrefixError(f"the prompt {where}: the cache was built from other tokens", "start a new session")
        return self.prefill(prompt[:, self.length :])

    def reset(self) -> None:
        """Forget every token; what was allocated stays."""
        self.length, self.is_torn = 0, False
        for cache in self.caches.values():
            cache.reset()
        for states in self.states.values():
            for state in states.values():
                state.zero_()

    def rewind(self, tokens: int) -> None:
        """Let the last `tokens` tokens be written again, for timing: states and rings keep what they have."""
        self.length -= tokens
        self._seek()

    def _seek(self) -> None:
        for cache in self.caches.values():
            cache.seek(self.length)

    def repeatable(self, tokens: "Tensor") -> "Callable[[], Tensor]":
        """A decode step that stays at its place: it overwrites what it wrote, however often it is called."""
        step_tokens = tokens.to(self.model.options.device)

        def step() -> "Tensor":
            try:
                return self.model.forward(step_tokens, self.caches, self.states, Step(self.length, 1, self.encoded), 1)
            finally:
                self._seek()

        return step

    def _pass(self, tokens: "Tensor", upper: int) -> "Tensor":
        self._check_pass(tokens)
        end = self.length + tokens.shape[1]
        self.log[:, self.length : end] = tokens
        self.is_torn = True
        step = Step(self.length, tokens.shape[1], self.encoded)
        out = self.model.forward(tokens.to(self.model.options.device), self.caches, self.states, step, upper)
        self.length, self.passes, self.is_torn = end, self.passes + 1, False
        return out

    def _check_rows(self, tokens: "Tensor") -> None:
        if tokens.shape[0] != self.batch or tokens.shape[1] == 0:
            raise KvcalcError(
                f"{tokens.shape[0]} x {tokens.shape[1]} tokens come to a session of {self.batch} sequences",
                "pass one row of tokens a sequence, and at least one token",
            )

    def _check_pass(self, tokens: "Tensor") -> None:
        """KvcalcError, before anything is written, where the pass would not end well."""
        self._check_rows(tokens)
        if self.length + tokens.shape[1] > self.capacity:
            raise KvcalcError(
                f"{self.length} tokens are cached and {tokens.shape[1]} more come, with room for {self.capacity}",
                "allocate the session for a longer context",
            )
        if self.is_torn:
            raise KvcalcError("a pass failed half-way: the caches hold a part of its tokens", "reset the session")
        if self.length == 0:
            self._check_encoded()

    def _check_encoded(self) -> None:
        held = None if self.encoded is None else tuple(self.encoded.shape[:2])
        for part in self.model.parts:
            component = part.reference.component
            if component.is_encoder_fed and held != (self.batch, component.span.cap):
                raise KvcalcError(
                    f"`{part.name}` keeps {self.batch} x {component.span.cap} encoder tokens, and is handed {held}",
                    "give the session encoded= (batch, encoder tokens, hidden)",
                )

    def allocated(self) -> list[Allocated]:
        """Every tensor that the session holds, each storage once."""
        found = [Allocated(place, held) for place, cache in self.caches.items() for held in cache.held()]
        for place, states in self.states.items():
            found += [Allocated(place, Held("states", one, one.untyped_storage().nbytes())) for one in states.values()]
        handed = [] if self.encoded is None else [Allocated(None, Held("encoder input", self.encoded, 0))]
        return [*found, *handed, Allocated(None, Held("token log", self.log, 0))]

    def read_bytes(self) -> dict[Place, int]:
        """Bytes of entries and states that passes have read so far, by place."""
        read = {place: sum(store.read_bytes for store in cache.stores) for place, cache in self.caches.items()}
        for place, states in self.states.items():
            read[place] = self.passes * sum(state.numel() * state.element_size() for state in states.values())
        return read
