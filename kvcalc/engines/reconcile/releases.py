"""Which releases of vLLM print such lines, where a log prints no version."""

from collections.abc import Sequence

from kvcalc.engines.logs.pattern import Finding
from kvcalc.engines.reconcile.settings import numbers_of

_LINES = """
537: 0.8.1 0.8.0 | 566: 0.8.2 | 578: 0.8.3 | 634: 0.8.5 0.8.4 | 637: 0.9.0 | 715: 0.9.1 | 716: 0.9.2 | 833: 0.10.0
849: 0.10.1 | 864: 0.10.2 | 1087: 0.11.0 | 1229: 0.11.2 0.11.1 | 1286: 0.12.0 | 1291: 0.13.0 | 1305: 0.14.1 0.14.0
1307: 0.16.0 0.15.1 0.15.0 | 1314: 0.17.1 0.17.0 | 1316: 0.18.1 0.18.0 | 1319: 0.19.1 0.19.0 | 1711: 0.20.0
1708: 0.20.2 0.20.1 | 1710: 0.21.0 | 1733: 0.22.1 0.22.0 | 1744: 0.23.0 | 2146: 0.25.1 0.25.0 0.24.0 | 2177: 0.26.0
2235: 0.27.1 0.27.0 | 1869: 0.28.0 | 2032: 0.29.0 | 2395: 0.30.0 | 2464: 0.31.0 | 2327: 0.32.0
"""
LINES = {
    int(line): releases.split()
    for line, releases in (one.split(": ") for row in _LINES.strip().splitlines() for one in row.split(" | "))
}
"""Releases by the line of v1/core/kv_cache_utils.py that logs the size of the KV cache, which stands before it."""


def vllm_era(findings: Sequence[Finding], releases: Sequence[str]) -> Sequence[str]:
    """Those with the line that is printed; V0, gone since 0.11, where blocks on the CPU are; 0.8 on where tokens are.

    Tokens are printed since vllm-project/vllm#13596.
    """
    lines = [one.values["source_line"].number for one in findings if "source_line" in one.values]
    if lines and int(lines[-1]) in LINES:
        return [release for release in releases if release in LINES[int(lines[-1])]]
    if any("cpu_blocks" in one.values for one in findings):
        kept = [release for release in releases if numbers_of(release) < (0, 11)]
    elif any(one.kind == "tokens" for one in findings):
        kept = [release for release in releases if numbers_of(release) >= (0, 8)]
    else:
        kept = []
    return kept or releases
