"""Rates above what the device reached at best, or above what its maker states: no measurement of its memory."""

from collections.abc import Iterator

from kvcalc.profiler.documents import MachineDocument, PointDocument


def beyond_peak(point: PointDocument, machine: MachineDocument) -> list[str]:
    """A doubt for every rate of prefill, decode and single operations that lies above a peak."""
    reads = {"measured": machine["read_bytes_per_second"], "specified": machine["specified_bytes_per_second"]}
    products = {"measured": machine["gemm_flops_per_second"], "specified": machine["specified_flops_per_second"]}
    found: list[str] = []
    if prefill := point["prefill"]:
        found += _above(products, "prefill", prefill["achieved_flops_per_second"], "GEMM rate")
    if decode := point["decode"]:
        found += _above(reads, "decode", decode["achieved_bytes_per_second"], "bandwidth")
    for op in point["ops"]:
        found += _above(reads, op["name"], op["bytes_per_second"], "bandwidth")
        found += _above(products, op["name"], op["flops_per_second"], "GEMM rate")
    return found


def _above(peaks: dict[str, float | None], what: str, rate: float, of_what: str) -> Iterator[str]:
    for which, peak in peaks.items():
        if peak is not None and rate > peak:
            yield f"{what}: {rate / peak:.1%} of the {which} {of_what}: cached or wrong"
