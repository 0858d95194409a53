"""What an engine would hold beside the need, as lines of a screen."""

from typing import TYPE_CHECKING

from kvcalc.sizing.need import CacheSize
from kvcalc.units import counted, exact_bytes, memory

if TYPE_CHECKING:
    from kvcalc.documents import EngineDocument, EnginePartDocument, PoolDocument


def engine_lines(size: CacheSize, engine: "EngineDocument | None") -> list[str]:
    """What the engine would hold beside the need, and the rules that make the difference."""
    if engine is None:
        return []
    held, need = engine["allocated_bytes"], size.bytes_per_rank
    compared = "exactly the need" if held == need else f"{held / max(1, need):.3g}x the need"
    where = " on the fullest rank" if size.ranks > 1 else ""
    lines = [f"{engine['name']} {engine['version']} holds {exact_bytes(held)}{where}, {compared}"]
    parts = [_engine_part(part) for part in engine["parts"]]
    return lines + parts + [f"  {rule}" for rule in engine["rules"]] + _pool_lines(engine["pool"])


def _pool_lines(pool: "PoolDocument | None") -> list[str]:
    """Blocks of a pool, and the figures of the engine's log; or why it would not start."""
    if pool is None:
        return []
    blocks, size, length = pool["num_blocks"], pool["bytes_per_block"], pool["max_model_len"]
    of_blocks = f" is {blocks:,} blocks of {exact_bytes(size)}" if blocks is not None and size is not None else ""
    lines = [f"a pool of {exact_bytes(pool['memory_bytes'])}{of_blocks}"]
    lines += [f"  {text}" for text in figure_lines(pool["figures"])]
    if pool["log"]:
        lines.append(f"  its log: {pool['log']}")
    if pool["takes_one_request"]:
        holds = f"it runs {counted(pool['sequences'], 'request')} of {counted(length, 'token')} at once"
        return [*lines, f"  {holds}, limited by {pool['limited_by']}"]
    longest = f"the longest that fits is {pool['longest_request']:,} tokens" if pool["longest_request"] else "none fits"
    if size is None or pool["blocks_per_request"] is None:
        return [*lines, f"  one request of {counted(length, 'token')} does not fit; {longest}"]
    needed = exact_bytes(size * pool["blocks_per_request"])
    verdict = "it would not start" if "estimated_max_model_len" in pool["figures"] else "no such request would run"
    return [*lines, f"  {verdict}: a request needs {needed}; {longest}"]


def figure_lines(figures: "dict[str, int | float]") -> list[str]:
    """Further figures of an engine, those that are bytes in binary units."""
    shown = {name: memory(value) if name.endswith("_bytes") else f"{value:,}" for name, value in figures.items()}
    return [f"{name.removesuffix('_bytes').replace('_', ' ')}: {text}" for name, text in shown.items()]


def _engine_part(part: "EnginePartDocument") -> str:
    """One cache of the engine in one line, as llama.cpp's log has it."""
    layers = f"{part['layers']} layer{'s' if part['layers'] != 1 else ''}"
    streams = f" x {part['streams']} streams" if part["streams"] > 1 else ""
    tensors = ", ".join(f"{name} {memory(size)}" for name, size in part["tensors"].items() if size)
    return f"  {part['name']}: {layers} of {part['cells']:,} cells{streams}: {tensors}"
