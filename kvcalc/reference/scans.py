"""The maths of recurrences: each scan takes many tokens in chunks, and one token in a direct step.

Every tensor has its tokens in the last dimension but one. Every scan returns the outputs of all
tokens and the state after the last, and leaves the state that it was given untouched. Decays are
given as logarithms, at most 0; sums of them are taken over exactly the tokens between two others
(never as a difference of two long sums), so nothing overflows and nothing cancels.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Outcome = tuple["Tensor", "Tensor"]
OneChunk = Callable[..., Outcome]

CHUNK_TOKENS = 64
SELECTIVE_CHUNK_TOKENS = 32
"""Fewer, because the scan of Mamba holds the whole state of every token of a chunk."""
CHANNEL_DECAY_CHUNK_TOKENS = 16
"""Fewer, because decays by channel make the scores of a chunk one number a channel and pair of tokens."""


def decay_scan(q: "Tensor", k: "Tensor", v: "Tensor", log_decay: "Tensor", state: "Tensor") -> Outcome:
    """S_t = a_t S_{t-1} + k_t v_t^T and y_t = q_t S_t, with one decay a head.

    Shapes: q, k (..., tokens, keys), v (..., tokens, values), log_decay (..., tokens, 1), state
    (..., keys, values); the leading dimensions of q and k broadcast over those of v. The chunk
    form is the state-space duality of Mamba-2, arXiv 2405.21060, section 6.
    """
    one_chunk = _decay_step if v.shape[-2] == 1 else _decay_chunk
    return _over_chunks(one_chunk, (q, k, v, log_decay), state, CHUNK_TOKENS)


def delta_scan(q: "Tensor", k: "Tensor", v: "Tensor", log_decay: "Tensor", beta: "Tensor", state: "Tensor") -> Outcome:
    """S_t = a_t S_{t-1} + k_t beta_t (v_t - k_t a_t S_{t-1})^T and y_t = q_t S_t: the gated delta rule.

    Shapes as in `decay_scan`; beta is shaped like log_decay. The chunk form is that of Gated
    DeltaNet, arXiv 2412.06464, with the triangular system solved rather than inverted.
    """
    one_chunk = _delta_step if v.shape[-2] == 1 else _delta_chunk
    return _over_chunks(one_chunk, (q, k, v, log_decay, beta), state, CHUNK_TOKENS)


def channel_decay_scan(
    r: "Tensor", k: "Tensor", v: "Tensor", log_decay: "Tensor", bonus: "Tensor", state: "Tensor"
) -> Outcome:
    """S_t = diag(w_t) S_{t-1} + k_t v_t^T and y_t = r_t (S_{t-1} + diag(bonus) k_t v_t^T): RWKV-6.

    Shapes: r, k, log_decay (..., tokens, keys), v (..., tokens, values), bonus broadcastable to k,
    state (..., keys, values).
    """
    one_chunk = _channel_decay_step if v.shape[-2] == 1 else _channel_decay_chunk
    return _over_chunks(partial(one_chunk, bonus), (r, k, v, log_decay), state, CHANNEL_DECAY_CHUNK_TOKENS)


def selective_scan(x: "Tensor", dt: "Tensor", b: "Tensor", c: "Tensor", rate: "Tensor", state: "Tensor") -> Outcome:
    """h_t = exp(dt_t rate) h_{t-1} + dt_t x_t b_t and y_t = h_t c_t, for every channel by itself: Mamba.

    Shapes: x, dt (batch, tokens, channels), b, c (batch, tokens, numbers), rate (channels, numbers)
    below 0, state (batch, channels, numbers). Source: arXiv 2312.00752, algorithm 2.
    """
    return _over_chunks(partial(_selective_chunk, rate), (x, dt, b, c), state, SELECTIVE_CHUNK_TOKENS)


def diagonal_scan(log_decay: "Tensor", added: "Tensor", state: "Tensor") -> Outcome:
    """h_t = a_t h_{t-1} + added_t for every channel; the outputs are the states themselves.

    Shapes: log_decay and added (batch, tokens, channels), state (batch, channels).
    """
    return _over_chunks(_diagonal_chunk, (log_decay, added), state, CHUNK_TOKENS)


def _over_chunks(one_chunk: OneChunk, inputs: "Sequence[Tensor]", state: "Tensor", tokens: int) -> Outcome:
    import torch

    outputs = []
    for chunk in zip(*(torch.split(one, tokens, dim=-2) for one in inputs), strict=True):
        output, state = one_chunk(*chunk, state)
        outputs.append(output)
    return torch.cat(outputs, dim=-2), state


def _sums_between(log_decay: "Tensor") -> "Tensor":
    """Sums over the tokens after s up to t, (..., tokens) -> (..., t, s); minus infinity where s comes after t."""
    import torch

    tokens = log_decay.shape[-1]
    after = torch.ones(tokens, tokens, dtype=torch.bool, device=log_decay.device).triu(1)
    spread = log_decay.unsqueeze(-1).expand(*log_decay.shape, tokens)
    # Entry (t, s) of `after.T` is true where t comes after s: only those decays stand between the two.
    return spread.masked_fill(~after.T, 0).cumsum(-2).masked_fill(after, float("-inf"))


def _decay_step(q: "Tensor", k: "Tensor", v: "Tensor", log_decay: "Tensor", state: "Tensor") -> Outcome:
    state = (state * log_decay.exp()).addcmul_(k.mT, v)
    return q @ state, state


def _decay_chunk(q: "Tensor", k: "Tensor", v: "Tensor", log_decay: "Tensor", state: "Tensor") -> Outcome:
    between = _sums_between(log_decay.squeeze(-1)).exp()
    return _read_and_write(q, k, v, between, log_decay.cumsum(-2).exp(), state)


def _read_and_write(
    q: "Tensor", k: "Tensor", v: "Tensor", between: "Tensor", since_start: "Tensor", state: "Tensor"
) -> Outcome:
    y = (q @ k.mT * between) @ v + q @ state * since_start
    until_end = between[..., -1, :].unsqueeze(-1)
    return y, state * since_start[..., -1:, :] + k.mT @ (v * until_end)


def _delta_step(q: "Tensor", k: "Tensor", v: "Tensor", log_decay: "Tensor", beta: "Tensor", state: "Tensor") -> Outcome:
    state = state * log_decay.exp()
    state.addcmul_(k.mT, beta * (v - k @ state))
    return q @ state, state


def _delta_chunk(
    q: "Tensor", k: "Tensor", v: "Tensor", log_decay: "Tensor", beta: "Tensor", state: "Tensor"
) -> Outcome:
    import torch

    between = _sums_between(log_decay.squeeze(-1)).exp()
    since_start = log_decay.cumsum(-2).exp()
    # What token t writes depends on what the tokens before it wrote: a unit lower triangular system.
    system = k @ k.mT * between * beta
    asked = beta * (v - k @ state * since_start)
    written = torch.linalg.solve_triangular(system, asked, upper=False, unitriangular=True)
    return _read_and_write(q, k, written, between, since_start, state)


def _channel_decay_step(
    bonus: "Tensor", r: "Tensor", k: "Tensor", v: "Tensor", log_decay: "Tensor", state: "Tensor"
) -> Outcome:
    y = r @ state + (r * bonus * k).sum(-1, keepdim=True) * v
    return y, (state * log_decay.exp().mT).addcmul_(k.mT, v)


def _channel_decay_chunk(
    bonus: "Tensor", r: "Tensor", k: "Tensor", v: "Tensor", log_decay: "Tensor", state: "Tensor"
) -> Outcome:
    from torch.nn.functional import pad

    between = _sums_between(log_decay.mT).exp()
    since_start = log_decay.cumsum(-2)
    # A token reads the state before its own decay: row t takes the decays up to t - 1, and the first row none.
    rows = between[..., :-1, :] * r[..., 1:, :].mT.unsqueeze(-1) * k.mT.unsqueeze(-2)
    scores = pad(rows.sum(-3), (0, 0, 1, 0))
    scores.diagonal(dim1=-2, dim2=-1).copy_((r * bonus * k).sum(-1))
    before = pad(since_start[..., :-1, :], (0, 0, 1, 0)).exp()
    until_end = between[..., -1, :]
    state_after = state * since_start[..., -1:, :].exp().mT + (k.mT * until_end) @ v
    return scores @ v + (r * before) @ state, state_after


def _selective_chunk(rate: "Tensor", x: "Tensor", dt: "Tensor", b: "Tensor", c: "Tensor", state: "Tensor") -> Outcome:
    decay = (dt.unsqueeze(-1) * rate).exp()
    added = (dt * x).unsqueeze(-1) * b.unsqueeze(-2)
    states = _doubled(decay, added, state)
    return (states @ c.unsqueeze(-1)).squeeze(-1), states[:, -1]


def _diagonal_chunk(log_decay: "Tensor", added: "Tensor", state: "Tensor") -> Outcome:
    states = _doubled(log_decay.exp(), added.clone(), state)
    return states, states[:, -1]


def _doubled(decay: "Tensor", added: "Tensor", state: "Tensor") -> "Tensor":
    """The states after each token (batch, tokens, ...) in log2(tokens) passes; overwrites `decay` and `added`.

    After each pass an entry covers twice as many tokens up to its own.
    """
    added[:, 0] += decay[:, 0] * state
    reach, tokens = 1, added.shape[1]
    while reach < tokens:
        added[:, reach:] = added[:, reach:].addcmul(decay[:, reach:], added[:, :-reach])
        decay[:, reach:] = decay[:, reach:] * decay[:, :-reach]
        reach *= 2
    return added
