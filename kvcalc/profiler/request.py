"""What a run is asked to measure."""

from typing import Literal

import msgspec

from kvcalc.cache.sharding import Sharding
from kvcalc.model.spec import ModelSpec
from kvcalc.profiler.documents import RequestedDocument
from kvcalc.reference.build import Rank
from kvcalc.sizing.need import CacheSize, Workload, size_workload


class ProfileRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A model, cut to the layers that run, over a grid of contexts and batches; `workload` holds the formats."""

    spec: ModelSpec
    layers_of_model: int
    backend: Literal["reference", "transformers", "openai"] = "reference"
    workload: Workload
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    page: int | None = None
    with_mlp: bool = False
    rank: Rank = Rank()
    seed: int = 0
    seconds_per_point: float = 5.0
    most_steps: int = 32
    skip_what_does_not_fit: bool = False
    notes: tuple[str, ...] = ()

    @property
    def grid(self) -> list[tuple[int, int]]:
        """Every (context, batch), the smallest first."""
        pairs = [(context, batch) for context in self.contexts for batch in self.batches]
        return sorted(pairs, key=lambda pair: (pair[0] * pair[1], pair))

    def size(self, context: int, batch: int) -> CacheSize:
        """What sizing predicts of one point."""
        workload = msgspec.structs.replace(self.workload, context_tokens=context, batch=batch)
        return size_workload(self.spec, workload, Sharding(tp=self.rank.size))

    def document(self) -> RequestedDocument:
        """The request as the run file carries it."""
        size = self.size(self.contexts[0], self.batches[0])
        return {
            "backend": self.backend,
            "contexts": list(self.contexts),
            "batches": list(self.batches),
            "dtype": size.packer.dtype,
            "kv_dtype": self.workload.kv_dtype,
            "layers": len(self.spec.layers),
            "layers_of_model": self.layers_of_model,
            "with_mlp": self.with_mlp,
            "page_tokens": self.page,
            "encoder_tokens": self.workload.encoder_tokens,
            "tp": self.rank.size,
            "seed": self.seed,
            "set": list(self.spec.overrides),
        }
