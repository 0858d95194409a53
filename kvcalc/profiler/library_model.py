"""transformers' own model as it runs: a pass of tokens, what it reads of its weights, and the tensors of its cache."""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kvcalc.errors import KvcalcError
from kvcalc.model.feed_forward import Moe
from kvcalc.profiler.device import Device
from kvcalc.profiler.library_build import in_short
from kvcalc.sizing.need import CacheSize

if TYPE_CHECKING:
    from torch import Tensor

CACHES = ("cache", "past_key_values", "cache_params", "state")
"""What models call their cache, in what they return and in what they take."""


Shape = Sequence[int]


class Pass(NamedTuple):
    """What one forward pass leaves: the logits of the last token, and the cache under the model's own name for it."""

    logits: "Tensor"
    name: str
    cache: Any

    @property
    def tokens(self) -> "Tensor":
        """The likeliest next tokens (batch, 1)."""
        return self.logits[:, -1].argmax(-1, keepdim=True)


class LibraryModel:
    """A model of the library on a device."""

    def __init__(self, model: Any, device: Device) -> None:
        self.model, self.device = model, device
        self.type = str(model.config.model_type)
        takes = inspect.signature(model.forward).parameters
        # As the library's own generation does: else a long prompt's logits are larger than its cache.
        self.options = {"use_cache": True, **({"logits_to_keep": 1} if "logits_to_keep" in takes else {})}

    @property
    def vocabulary(self) -> int:
        """How many tokens it knows."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    def forward(self, tokens: "Tensor", before: Pass | None = None) -> Pass:
        """Pass `tokens` (batch, tokens) behind what an earlier pass cached; KvcalcError where the model does not run.

        Running out of memory is the error that it was.
        """
        import torch

        cached = {} if before is None else {before.name: before.cache}
        try:
            with torch.inference_mode():
                out = self.model(input_ids=tokens, **cached, **self.options)
        except Exception as error:
            if self.device.is_out_of_memory(error):
                raise
            raise KvcalcError(
                f"{self.type} of transformers does not run: {in_short(error)}", "use --backend reference"
            ) from error
        for name in CACHES:
            if out.get(name) is not None:
                return Pass(out["logits"], name, out[name])
        raise KvcalcError(f"{self.type} of transformers returns no cache", "use --backend reference")

    @property
    def weight_bytes(self) -> int:
        """Bytes of all parameters, tied ones once."""
        return sum(weight.nbytes for weight in self.model.parameters())

    def step_weight_bytes(self, size: CacheSize) -> int:
        """Bytes of the parameters that a decode step reads, for the batch of `size`.

        Those of the decoder and the LM head, but for tables of which it looks up a row, such as the input embedding
        unless it is the head too, and experts that no sequence is expected to be routed to, each choosing at random.
        """
        import torch

        decoder, head = self.model.get_decoder(), self.model.get_output_embeddings()
        multiplied = set() if head is None else set(head.parameters())
        tables = {module.weight for module in decoder.modules() if isinstance(module, torch.nn.Embedding)}
        read = (set(decoder.parameters()) - tables) | multiplied
        return sum(weight.nbytes for weight in read) - self._idle_bytes(size)

    def _idle_bytes(self, size: CacheSize) -> int:
        """Of the experts that `batch` tokens leave out: (1 - active / experts) ** batch of all."""
        idle = 0.0
        for layer in size.spec.layers:
            mlp = layer.mlp
            if isinstance(mlp, Moe) and mlp.experts and mlp.active:
                by_one = mlp.idle_parameters(size.spec.hidden_size or 0) or 0
                idle += by_one * (1 - mlp.active / mlp.experts) ** (size.workload.batch - 1)
        return int(idle) * int(self.model.dtype.itemsize)


def cache_tensors(cache: object) -> "list[Tensor]":
    """Every tensor that can be reached from a cache, once each, but for counters, of fewer than two dimensions."""
    import torch

    found: list[Tensor] = []
    seen: set[int] = set()
    waiting: list[Any] = [cache]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type):
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            found.append(one)
        elif isinstance(one, list | tuple):
            waiting += one
        else:
            waiting += (one if isinstance(one, dict) else getattr(one, "__dict__", {})).values()
    return [tensor for tensor in found if tensor.dim() > 1]


def storage_bytes(tensors: "list[Tensor]") -> int:
    """Bytes of the storages behind tensors, each once: more than the tensors' own where they are views."""
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}
    return sum(storages.values())


def counted(run: Callable[[], Pass]) -> tuple[Pass, int]:
    """A pass and its FLOPs: matrix products, attention over every pair of tokens, and experts of routed tokens.

    Counted by torch.utils.flop_counter, told of what it does not know: a CPU's attention, grouped products, and in
    older releases that several query heads share a KV head.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    aten = torch.ops.aten
    more = {getattr(aten, name): rule for name, rule in _MORE_FLOPS.items() if hasattr(aten, name)}
    with FlopCounterMode(display=False, custom_mapping=more) as counter:
        out = run()
    return out, int(counter.get_total_flops())


def _attention_flops(query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    """Scores (queries x keys) and their product with the values, for each query head."""
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _grouped_flops(rows: Shape, matrices: Shape, *_: Any, **__: Any) -> int:
    """Each row (..., inner) times one of `matrices` (groups, inner, outer)."""
    return 2 * math.prod(rows) * matrices[-1]


_ATTENTIONS = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
_MORE_FLOPS: dict[str, Callable[..., int]] = {"_grouped_mm": _grouped_flops}
_MORE_FLOPS |= {f"_scaled_dot_product_{name}": _attention_flops for name in _ATTENTIONS}
