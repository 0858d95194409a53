"""Which requests of a trace can be served: what the context limit and lengths of 0 do to them, counted."""

from collections import Counter
from typing import Literal, get_args

import msgspec

from kvcalc.errors import KvcalcError
from kvcalc.workload.rows import Flags, Rows, refuse_first
from kvcalc.workload.source import Source
from kvcalc.workload.trace import Trace

Counts = Counter[str]
Policy = Literal["refuse", "truncate", "reject"]
POLICIES: tuple[str, ...] = get_args(Policy)

FAILED = "left out: failed, no answer"
NO_PROMPT = "left out: prompt of 0 tokens"
NO_ANSWER = "left out: answer of 0 tokens"
TOO_LONG = "left out: above the context limit"
SHORTENED = "prompt cut to the context limit"
CUT_LINE = "left out: last line cut short"
UNSORTED = "sorted: arrived before the line above"
_LIMIT_HINT = "--policy truncate cuts prompts, --policy reject leaves such requests out; or raise --max-model-len"
_ZERO_HINT = "--policy reject leaves such requests out and counts them"


def check_limits(policy: str, max_context: int | None) -> None:
    """Refuse a policy that there is not, and a context limit below a prompt and an answer of one token."""
    if policy not in POLICIES:
        raise KvcalcError(f"unknown policy {policy!r}", f"one of {', '.join(POLICIES)}")
    if max_context is not None and max_context < 2:
        said = f"a context limit of {max_context} tokens holds no request"
        raise KvcalcError(said, "at least 2: one token of prompt and one of answer")


def check_sound(source: Source, rows: Rows, block_tokens: int) -> None:
    """Refuse what no policy mends: times and lengths below 0, and prefix ids that contradict the prompt."""
    import numpy as np

    checks = [
        (rows.seconds < 0, "the request arrives before second 0", "times count from the start of the trace"),
        (rows.prompt_tokens < 0, "a prompt of fewer than 0 tokens", "lengths are whole numbers from 1"),
        (rows.output_tokens < 0, "an answer of fewer than 0 tokens", "lengths are whole numbers from 1"),
    ]
    if rows.prefix_ends is not None:
        wrong = np.diff(rows.prefix_ends, prepend=0) != -(-rows.prompt_tokens // block_tokens)
        hint = f"one id for every {block_tokens} tokens, and one for the rest behind them"
        checks.append((wrong, "the number of prefix ids contradicts the length of the prompt", hint))
    refuse_first(source, rows, checks)


def admitted(rows: Rows, policy: Policy, max_context: int | None, block_tokens: int, counts: Counts) -> Rows:
    """The requests that stay, under `truncate` or `reject` or where nothing is refused; adds to `counts`."""
    rows = _without(rows, rows.prompt_tokens == 0, NO_PROMPT, counts)
    rows = _without(rows, rows.output_tokens == 0, NO_ANSWER, counts)
    if max_context is None:
        return rows
    if policy == "truncate":
        rows = _shortened(rows, max_context, block_tokens, counts)
    return _without(rows, rows.prompt_tokens + rows.output_tokens > max_context, TOO_LONG, counts)


def limited(trace: Trace, max_context: int, policy: Policy) -> Trace:
    """The requests of a trace that was not read under a context limit, or under a larger one; as in `read_trace`.

    Error under `refuse`: the first request above the limit, by its place in the trace.
    """
    import numpy as np

    check_limits(policy, max_context)
    needed = trace.prompt_tokens + trace.output_tokens
    if policy == "refuse" and needed.max() > max_context:
        at = int((needed > max_context).argmax())
        said = f"request {at + 1:,} has {needed[at]:,} tokens, above the context limit of {max_context:,}"
        raise KvcalcError(said, _LIMIT_HINT)
    timed = trace.arrival_seconds is not None
    rows = Rows(
        lines=np.arange(len(trace)),
        seconds=trace.arrival_seconds if trace.arrival_seconds is not None else np.zeros(len(trace)),
        prompt_tokens=trace.prompt_tokens,
        output_tokens=trace.output_tokens,
        prefix_ids=trace.prefix_ids,
        prefix_ends=trace.prefix_ends,
    )
    counts = Counter(trace.counted)
    rows = admitted(rows, policy, max_context, trace.prefix_tokens, counts)
    if not len(rows):
        raise KvcalcError(f"no request fits a context limit of {max_context:,} tokens", _LIMIT_HINT)
    return msgspec.structs.replace(
        trace,
        prompt_tokens=rows.prompt_tokens,
        output_tokens=rows.output_tokens,
        arrival_seconds=rows.seconds if timed else None,
        prefix_ids=rows.prefix_ids,
        prefix_ends=rows.prefix_ends,
        counted=dict(+counts),
    )


def without_failed(rows: Rows, counts: Counts) -> Rows:
    """The requests that were answered, in a form that records failures as answers of 0 tokens."""
    return _without(rows, rows.output_tokens == 0, FAILED, counts)


def refuse_unservable(source: Source, rows: Rows, max_context: int | None) -> None:
    """Raise the first request of no tokens or above the context limit, with its file and line."""
    checks = [
        (rows.prompt_tokens == 0, "a prompt of 0 tokens", _ZERO_HINT),
        (rows.output_tokens == 0, "an answer of 0 tokens", _ZERO_HINT),
    ]
    if max_context is not None:
        said = f"prompt and answer are above the context limit of {max_context:,} tokens"
        checks.append((rows.prompt_tokens + rows.output_tokens > max_context, said, _LIMIT_HINT))
    refuse_first(source, rows, checks)


def _shortened(rows: Rows, max_context: int, block_tokens: int, counts: Counts) -> Rows:
    """Prompts cut behind so that the answer fits; an answer that fills the limit alone is left to be rejected."""
    import numpy as np

    room = max_context - rows.output_tokens
    cut = (rows.prompt_tokens > room) & (room >= 1)
    counts[SHORTENED] += int(cut.sum())
    return rows.with_prefixes_within(np.where(cut, room, rows.prompt_tokens), block_tokens, cut) if cut.any() else rows


def _without(rows: Rows, flags: Flags, why: str, counts: Counts) -> Rows:
    counts[why] += int(flags.sum())
    return rows.kept(~flags)
