"""The rules of vLLM by release, as docs/engines.md has them: made from the changes that kvcalc follows."""

from collections.abc import Sequence

from kvcalc.engines.vllm_changes import PLANNING, Change
from kvcalc.engines.vllm_changes_of_kinds import KINDS
from kvcalc.engines.vllm_versions import VERSIONS, Span, spans


def _table(changes: Sequence[Change]) -> str:
    rows = [f"| {span.what} | {_releases(span)} | {span.source} |" for span in spans(changes)]
    return "\n".join(["| rule | releases | where, under vllm/ |", "|---|---|---|", *rows]) + "\n"


def _releases(span: Span) -> str:
    if span.until is None:
        return f"{span.since} on"
    last = VERSIONS[VERSIONS.index(span.until) + 1]
    return span.since if last == span.since else f"{span.since} to {last}"


VLLM_TABLES = {"vllm_planning": lambda: _table(PLANNING), "vllm_kinds": lambda: _table(KINDS)}
