"""The recurrent kinds token by token, straight from the equations of their papers, in float64.

Each function takes a mixer of one rank for its weights and x (tokens, hidden), and returns the
output and the states after the last token. Nothing here is shared with kvcalc.
"""

import torch
from torch.nn.functional import gelu, silu, softplus

EPSILON = 1e-6


def convolved(x, weight, bias=0.0):
    """Each token's causal window by itself: sum over j of weight[j] * x[t - kernel + 1 + j]; and the kept columns."""
    kernel = weight.shape[1]
    padded = torch.cat((x.new_zeros(kernel - 1, x.shape[1]), x))
    rows = [sum(weight[:, j] * padded[t + j] for j in range(kernel)) + bias for t in range(len(x))]
    return torch.stack(rows), padded[len(padded) - (kernel - 1) :].T


def normed(x):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + EPSILON)


def mamba1(mixer, x, memory):
    w, n, rank = mixer.weights, mixer.component.state, mixer.component.dt_rank
    inner = w["skip"].numel()
    u, z = (x @ w["in"].T).split(inner, dim=1)
    u, conv = convolved(u, w["conv"], w["conv_bias"])
    u, a = silu(u), -torch.exp(w["log_rate"].reshape(inner, n))
    h, outputs = x.new_zeros(inner, n), []
    for token in u:
        dt, b, c = (w["select"] @ token).split([rank, n, n])
        dt = softplus(w["dt"] @ dt + w["dt_shift"])
        h = torch.exp(dt[:, None] * a) * h + dt[:, None] * b[None, :] * token[:, None]
        outputs.append(h @ c + w["skip"] * token)
    y = torch.stack(outputs)
    return (y * silu(z)) @ w["out"].T, {"conv": conv, "ssm": h}, y


def mamba2(mixer, x, memory):
    w, one = mixer.weights, mixer.component
    p, n, heads, groups = one.head_dim, one.state, one.heads, one.groups
    inner, bc = heads * p, groups * n
    z, u, dts = (x @ w["in"].T).split([inner, inner + 2 * bc, heads], dim=1)
    u, conv = convolved(u, w["conv"], w["conv_bias"])
    u = silu(u)
    h, ys, outputs = x.new_zeros(heads, p, n), [], []
    for token, gate, raw in zip(u, z, dts, strict=True):
        values, b, c = token[:inner].view(heads, p), token[inner : inner + bc], token[inner + bc :]
        y = torch.empty(heads, p, dtype=x.dtype)
        for head in range(heads):
            group = head // (heads // groups)
            bg, cg = b[group * n : (group + 1) * n], c[group * n : (group + 1) * n]
            dt = softplus(raw[head] + w["dt_shift"][head])
            decay = torch.exp(-dt * torch.exp(w["log_rate"][head]))
            h[head] = decay * h[head] + dt * torch.outer(values[head], bg)
            y[head] = h[head] @ cg + w["skip"][head] * values[head]
        ys.append(y.flatten())
        outputs.append(normed(y * silu(gate).view(heads, p)).flatten() * w["norm"])
    return torch.stack(outputs) @ w["out"].T, {"conv": conv, "ssm": h}, torch.stack(ys)


def gated_delta(mixer, x, memory):
    w, one = mixer.weights, mixer.component
    kd, vd, heads, per_key = one.k_dim, one.v_dim, one.v_heads, one.v_heads // one.k_heads
    keys, values = one.k_heads * kd, heads * vd
    u, z, betas, decays = (x @ w["in"].T).split([2 * keys + values, values, heads, heads], dim=1)
    u, conv = convolved(u, w["conv"])
    s, outputs = x.new_zeros(heads, vd, kd), []
    for token, gate, beta, decay in zip(silu(u), z, betas, decays, strict=True):
        qs, ks, vs = token.split([keys, keys, values])
        y = torch.empty(heads, vd, dtype=x.dtype)
        for head in range(heads):
            rows = slice(head // per_key * kd, (head // per_key + 1) * kd)
            q, k = (part[rows] / torch.sqrt((part[rows] ** 2).sum() + 1e-6) for part in (qs, ks))
            v = vs[head * vd : (head + 1) * vd]
            alpha = torch.exp(-torch.exp(w["log_rate"][head]) * softplus(decay[head] + w["decay_shift"][head]))
            b = torch.sigmoid(beta[head])
            # The gated delta rule of arXiv 2412.06464: S (alpha (I - beta k k^T)) + beta v k^T.
            s[head] = alpha * s[head] @ (torch.eye(kd, dtype=x.dtype) - b * torch.outer(k, k)) + b * torch.outer(v, k)
            y[head] = s[head] @ q / kd**0.5
        outputs.append((normed(y) * w["norm"] * silu(gate.view(heads, vd))).flatten())
    return torch.stack(outputs) @ w["out"].T, {"conv": conv, "delta": s}, None


def linear(mixer, x, memory):
    w, one = mixer.weights, mixer.component
    kd, vd, heads = one.k_dim, one.v_dim, one.heads
    s, outputs = x.new_zeros(heads, kd, vd), []
    for token in x:
        sizes = [heads * kd, heads * kd, heads * vd, heads * vd, heads]
        q, k, v, gate, decay = (w["in"] @ token).split(sizes)
        gamma = torch.sigmoid(decay) ** (1 / 16)
        q, k, v = q.view(heads, kd), k.view(heads, kd), v.view(heads, vd)
        s = gamma[:, None, None] * s + k[:, :, None] * v[:, None, :]
        y = torch.stack([q[head] @ s[head] for head in range(heads)]) / kd**0.5
        outputs.append(normed(y).flatten() * w["norm"] * silu(gate))
    return torch.stack(outputs) @ w["out"].T, {"linear": s}, None


def short_conv(mixer, x, memory):
    w = mixer.weights
    b, c, u = (x @ w["in"].T).chunk(3, dim=1)
    u, conv = convolved(b * u, w["conv"])
    return (c * u) @ w["out"].T, {"conv": conv}, None


def rg_lru(mixer, x, memory):
    w, width = mixer.weights, mixer.component.width
    recur, admit = (torch.block_diag(*gate) for gate in w["gates"])
    u, branch = (x @ w["in"].T + w["in_bias"]).split(width, dim=1)
    u, conv = convolved(u, w["conv"], w["conv_bias"])
    h, outputs = x.new_zeros(width), []
    for token in u:
        r = torch.sigmoid(recur @ token + w["recur_shift"])
        i = torch.sigmoid(admit @ token + w["admit_shift"])
        # Section 2.4 of arXiv 2402.19427: a_t = a^(8 r_t) with a = sigmoid(-rate).
        a = torch.sigmoid(-w["rate"]) ** (8 * r)
        h = a * h + torch.sqrt(1 - a**2) * (i * token)
        outputs.append(h)
    return (
        (torch.stack(outputs) * gelu(branch, approximate="tanh")) @ w["out"].T + w["out_bias"],
        {
            "conv": conv,
            "lru": h,
        },
        None,
    )


def rwkv(mixer, x, memory):
    w, heads, d = mixer.weights, mixer.component.heads, mixer.component.head_dim
    ups = dict(zip(("decay", "k", "v", "r", "gate"), w["blend_up"].chunk(5), strict=True))
    previous, s, outputs = torch.zeros_like(x[0]), x.new_zeros(heads, d, d), []
    for token in x:

        def blended(name, token=token, previous=previous):
            first = token + (previous - token) * w["blend_x"]
            low = torch.tanh(w["blend_down"] @ first).view(5, -1)[list(ups).index(name)]
            return token + (previous - token) * (w[f"blend_{name}"] + ups[name] @ low)

        r, k, v = ((w[name] @ blended(name)).view(heads, d) for name in ("r", "k", "v"))
        raw = w["decay_shift"] + w["decay_up"] @ torch.tanh(w["decay_down"] @ blended("decay"))
        decay, bonus = torch.exp(-torch.exp(raw)).view(heads, d), w["bonus"].view(heads, d)
        y = torch.empty(heads, d, dtype=x.dtype)
        for head in range(heads):
            kv = torch.outer(k[head], v[head])
            y[head] = r[head] @ (s[head] + bonus[head][:, None] * kv)
            s[head] = decay[head][:, None] * s[head] + kv
        centred = y - y.mean(1, keepdim=True)
        scaled = centred / torch.sqrt((centred**2).mean(1, keepdim=True) + 64e-5)
        gate = silu(w["gate"] @ blended("gate"))
        outputs.append((scaled.flatten() * w["norm"] + w["norm_shift"]) * gate)
        previous = token
    return torch.stack(outputs) @ w["out"].T, {"shift": torch.stack((x[-1], x[-1])), "wkv": s}, None


def gmu(mixer, x, memory):
    w = mixer.weights
    return (memory * silu(x @ w["in"].T)) @ w["out"].T, {}, memory


NAIVE = {
    "mamba1": mamba1,
    "mamba2": mamba2,
    "gated_delta": gated_delta,
    "linear": linear,
    "short_conv": short_conv,
    "rg_lru": rg_lru,
    "rwkv": rwkv,
    "gmu": gmu,
}
