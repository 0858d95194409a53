"""Every cache kind in every format that packs it: bytes that the reference's tensors really take, and the prediction.

    python tests/memory_table.py

Two sequences of 130 tokens each, which no block or page divides. A cell is the bytes of the storages; where they
differed from the prediction, the cell would show both.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from kvcalc.cache.formats import find_format
from kvcalc.cache.sharding import WHOLE
from kvcalc.errors import FormatError
from kvcalc.model.resolve import resolve
from kvcalc.model.spec import Document, ModelSpec
from kvcalc.sizing.need import Workload, size_workload

TOKENS, BATCH, ENCODER_TOKENS = 130, 2, 50
GQA = {"kind": "kv", "q_heads": 8, "kv_heads": 2, "head_dim": 128}
FLAT = {"kind": "latent", "q_heads": 4, "latent_dim": 448, "rope_dim": 64}
INDEX = {"kind": "index", "q_heads": 4, "head_dim": 128}
ATTENDED: dict[str, list[Any]] = {
    "MHA": [{**GQA, "kv_heads": 8}],
    "GQA": [GQA],
    "MQA": [{**GQA, "kv_heads": 1}],
    "window 40 + 4 sinks": [{**GQA, "window": 40, "sinks": 4}],
    "chunk 48": [{**GQA, "chunk": 48}],
    "MLA": [
        {"kind": "latent", "q_heads": 4, "latent_dim": 512, "rope_dim": 64, "nope_head_dim": 128, "v_head_dim": 128}
    ],
    "window + ratio 4": [[{**FLAT, "window": 40}, {**FLAT, "q_heads": None, "ratio": 4, "overlap": True}]],
    "latent + index": [[{**FLAT, "top_k": 64}, INDEX]],
    "CLA": [GQA, {"kind": "shared", "source": "previous", "q_heads": 8}],
    "self + cross": [[GQA, {"kind": "cross", "q_heads": 8, "kv_heads": 2, "head_dim": 128}]],
}
STATES: dict[str, Any] = {
    "mamba1": {"kind": "mamba1", "inner": 64, "state": 16, "kernel": 4},
    "mamba2": {"kind": "mamba2", "heads": 4, "head_dim": 32, "state": 32, "groups": 2, "kernel": 4},
    "gated_delta": {"kind": "gated_delta", "k_heads": 2, "v_heads": 4, "k_dim": 32, "v_dim": 32, "kernel": 4},
    "linear": {"kind": "linear", "heads": 4, "k_dim": 32, "v_dim": 32},
    "short_conv": {"kind": "short_conv", "width": 64, "kernel": 3},
    "rg_lru": {"kind": "rg_lru", "width": 64, "heads": 4, "kernel": 4},
    "rwkv": {"kind": "rwkv", "hidden": 64, "heads": 2, "head_dim": 32},
}
STATE_FORMATS = ("fp32", "bf16", "fp16")


def measured_and_predicted(mixers: list[Any], workload: Workload) -> tuple[int, int]:
    """Bytes of all caches of a model of these layers: of its tensors' storages, and as sizing predicts them."""
    from kvcalc.reference.model import ReferenceModel
    from kvcalc.reference.session import Session

    spec = _spec(mixers)
    predicted = size_workload(spec, workload, WHOLE).total_bytes
    session = Session(ReferenceModel(spec, workload), workload.batch, workload.context_tokens)
    return sum(one.used_bytes for _, one in session.allocated() if one.is_component), predicted


def _spec(mixers: list[Any]) -> ModelSpec:
    document = {"name": "one", "hidden_size": 64, "dtype": "bf16", "layers": [{"mixer": mixer} for mixer in mixers]}
    return resolve(msgspec.convert(document, Document))


def cells() -> Iterator[tuple[str, str, tuple[int, int] | None]]:
    """Kind, format, and measured and predicted bytes; None where a format does not take what the kind keeps."""
    from kvcalc.reference.codecs import packed_formats

    for kind, mixers in ATTENDED.items():
        for form in packed_formats():
            yield kind, form, _cell(mixers, _workload(kv_dtype=find_format(form).name))
    for kind, mixer in STATES.items():
        for form in STATE_FORMATS:
            yield kind, form, _cell([mixer], _workload(state_dtype=form))


def _workload(**formats: str) -> Workload:
    return Workload(context_tokens=TOKENS, batch=BATCH, encoder_tokens=ENCODER_TOKENS, **formats)


def _cell(mixers: list[Any], workload: Workload) -> tuple[int, int] | None:
    try:
        return measured_and_predicted(mixers, workload)
    except FormatError:
        return None


def memory_table() -> str:
    """The cells as Markdown: a format a row, a kind a column; then the states."""
    found = {(kind, form): cell for kind, form, cell in cells()}
    attended = _matrix(list(ATTENDED), list(dict.fromkeys(form for kind, form in found if kind in ATTENDED)), found)
    states = _matrix(list(STATES), list(STATE_FORMATS), found)
    held = [cell for cell in found.values() if cell is not None]
    off = sum(abs(measured - predicted) for measured, predicted in held)
    total = f"{len(held)} cases: {sum(one for one, _ in held):,} B measured, error {off} B."
    return f"{attended}\n\n{states}\n\n{total}\n"


def _matrix(kinds: list[str], formats: list[str], found: dict[tuple[str, str], tuple[int, int] | None]) -> str:
    lines = ["| format | " + " | ".join(kinds) + " |", "|---|" + "---:|" * len(kinds)]
    for form in formats:
        lines.append(f"| `{form}` | " + " | ".join(_shown(found[kind, form]) for kind in kinds) + " |")
    return "\n".join(lines)


def _shown(cell: tuple[int, int] | None) -> str:
    if cell is None:
        return "-"
    measured, predicted = cell
    return f"{measured:,}" if measured == predicted else f"{measured:,} (predicted {predicted:,})"


if __name__ == "__main__":
    print(memory_table(), end="")
