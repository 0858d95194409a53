"""How many sequences a GPU holds at once: a served batch is never larger, however many users ask."""

from typing import Any

from kvcalc.errors import KvcalcError
from kvcalc.speed.kernels import Setting
from kvcalc.speed.rank import Stack

MEMORY_SHARE = 0.9
"""The share of a card that servers take by default (vLLM --gpu-memory-utilization before 0.20, TensorRT-LLM of the
rest after the weights, SGLang --mem-fraction-static by its own formula, which comes near)."""


class NoRoomError(KvcalcError):
    """The sequences do not fit the cards."""


def weight_bytes(setting: Setting) -> float:
    """Bytes of the weights on the fullest rank, the input embedding with them."""
    model, numbers = setting.model, setting.numbers
    stacks = [model.lower, model.upper]
    head = model.head.values * numbers.head.bytes_per_value
    tables = head if model.size.spec.tie_embeddings else 2 * head
    return (sum(_stack_bytes(setting, stack) for stack in stacks) / model.sharding.pp) + tables


def _stack_bytes(setting: Setting, stack: Stack) -> float:
    numbers = setting.numbers
    matrices = (*stack.mixer.items(), *stack.feed_forward.items())
    plain = sum(matrix.values * count for matrix, count in matrices) * numbers.matrices.bytes_per_value
    experts = sum(
        count * routed.held * sum(matrix.values for matrix in routed.matrices)
        for routed, count in stack.experts.items()
    )
    return plain + experts * numbers.experts.bytes_per_value


def most_sequences(setting: Setting, tokens: Any, shared: int = 0) -> Any:
    """Sequences of `tokens` tokens that all ranks hold beside the weights, as a number that is not rounded.

    The first `shared` tokens of all are kept once; the states, and what windows hold past them, are each one's own.

    NoRoomError where the weights alone pass the card, KvcalcError where its memory is not known.
    """
    gpu, model = setting.machine.gpu, setting.model
    memory = gpu.driver_memory_bytes.value if gpu.driver_memory_bytes else None
    if memory is None and gpu.memory_label_gb is not None:
        memory = gpu.memory_label_gb.value * 10**9
    if memory is None:
        raise KvcalcError(f"{gpu.name}: its memory is not known", f"kvcalc gpus show {gpu.name} lists what is known")
    weights = weight_bytes(setting)
    prefix = _stored(setting, shared) if shared else 0
    pool = memory * MEMORY_SHARE - weights - prefix
    if pool <= 0:
        raise NoRoomError(
            f"{model.size.spec.name}: {weights / 2**30:,.1f} GiB of weights a rank do not fit {gpu.name}, "
            f"of whose {memory / 2**30:,.1f} GiB a server takes {MEMORY_SHARE:.0%}",
            "more --tp, a smaller --weights format, or --force",
        )
    return pool / _stored(setting, tokens - shared) * model.sharding.dp


def _stored(setting: Setting, tokens: Any) -> Any:
    """Bytes that one sequence keeps on a rank."""
    model = setting.model
    stacks = [stack for stack in (model.lower, model.upper, model.drafts) if stack is not None]
    return sum(stack.stored_bytes(tokens) for stack in stacks) / model.sharding.pp
