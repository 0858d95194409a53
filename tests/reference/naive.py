"""Attention without a cache: every query over explicit lists of the entries that it sees, in float64.

What the layers of a model compute, written down from the rules of its kinds: weights come from the model,
all else is spelled out here, one sequence, one query and one head at a time.
"""

from types import SimpleNamespace
from typing import NamedTuple

import torch
from naive_recurrent import NAIVE

EPSILON = 1e-6
BASE = 10_000

# By the name of a vector: its heads, and how many of its last numbers turn with the position.
HEADS = {"k": lambda one: one.kv_heads, "v": lambda one: one.kv_heads, "latent": lambda one: 1, "index": lambda one: 1}
TURNED = {
    "k": lambda one: 0 if one.is_encoder_fed else one.head_dim,
    "v": lambda one: 0,
    "latent": lambda one: one.rope_dim,
    "index": lambda one: one.head_dim,
}


class Entries(NamedTuple):
    """What one component keeps of a sequence: vectors (entries, heads, width), and the last token of each entry."""

    vectors: list
    ends: list


def forward(model, tokens, encoded=None, stored=None):
    """Hidden states (batch, tokens, hidden) of all layers over all tokens.

    `stored(place, vectors)` may replace the vectors of a component by what a cache would give back.
    """
    rows = []
    for row, ids in enumerate(tokens):
        sequence = Sequence(model, None if encoded is None else encoded[row].double(), stored)
        rows.append(sequence.run(model.embedding.double()[ids % len(model.embedding)]))
    return torch.stack(rows)


def normed(x):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + EPSILON)


def turned(vectors, positions, count):
    """Numbers i and i + count / 2 of the last `count` as one complex number, turned by position x base^(-2i / count)."""
    half = count // 2
    if half == 0:
        return vectors
    plain, pairs = vectors[..., : -2 * half], vectors[..., -2 * half :]
    rates = torch.tensor([BASE ** (-i / half) for i in range(half)], dtype=torch.float64)
    angles = torch.tensor(positions, dtype=torch.float64)[:, None, None] * rates
    spun = torch.complex(pairs[..., :half], pairs[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((plain, spun.real, spun.imag), dim=-1)


def pooled(values, gates, ratio, overlap):
    """Entry j: tokens j * ratio to (j + 1) * ratio - 1, with overlap those of the entry before too, under a softmax."""
    rows = [values.new_zeros(0, *values.shape[1:])]
    for j in range(len(values) // ratio):
        span = slice(max(0, (j - overlap) * ratio), (j + 1) * ratio)
        weights = torch.exp(gates[span])
        rows.append(((values[span] * weights).sum(0) / weights.sum(0))[None])
    return torch.cat(rows)


def visible(owner, entries, query, window=None):
    """The entries that the token at `query` may see: complete, and within window, sinks, chunk and reader's window."""
    if owner.is_encoder_fed:
        return list(range(len(entries.ends)))
    seen = [j for j, end in enumerate(entries.ends) if end <= query]
    if owner.window is not None:
        seen = [j for j in seen if entries.ends[j] < owner.sinks or query - entries.ends[j] < owner.window]
    if owner.chunk is not None:
        seen = [j for j in seen if entries.ends[j] // owner.chunk == query // owner.chunk]
    return seen if window is None else [j for j in seen if query - entries.ends[j] < window]


def spelled_out(weights, latents, heads, rope):
    """Textbook MLA: K and V (entries, heads, width) of latents (entries, 1, latent + rotary)."""
    latent, rotary = latents[:, 0, : latents.shape[-1] - rope], latents[:, 0, latents.shape[-1] - rope :]
    keys, values = ((latent @ weights[name].T).unflatten(1, (heads, -1)) for name in ("k up", "v up"))
    return torch.cat((keys, rotary[:, None].expand(-1, heads, -1)), dim=-1), values


def one_query(q, caches):
    """One softmax of q (heads, width) over all `caches`, each K, V and the entries seen; zero where there are none."""
    outputs = []
    for head, query in enumerate(q):
        keys, values = [], []
        for k, v, seen in caches:
            mine = head // (len(q) // k.shape[1])
            keys += [k[j, mine] for j in seen]
            values += [v[j, mine] for j in seen]
        if not keys:
            outputs.append(q.new_zeros(caches[0][1].shape[-1]))
            continue
        weights = torch.softmax(torch.stack(keys) @ query / len(query) ** 0.5, dim=0)
        outputs.append(weights @ torch.stack(values))
    return torch.cat(outputs)


class Sequence:
    """One sequence on its way through the layers."""

    def __init__(self, model, encoded, stored):
        self.model, self.encoded, self.stored = model, encoded, stored
        self.owners = {(read.layer, read.reader): (read.owner_layer, read.owner) for read in model.spec.reads}
        self.entries, self.chosen, self.scored, self.latest, self.memory = {}, {}, {}, None, None

    def component(self, place):
        return self.model.spec_layers[place[0]].components[place[1]]

    def owner(self, part):
        return self.owners.get(part.place, part.place)

    def run(self, x):
        for layer in self.model.layers:
            h, added = normed(x), []
            for part in layer.parts:
                if self.component(part.place).keeps_entries:
                    self.entries[part.place] = self.keep(part, h)
            self.choose(layer, h)
            for part in layer.parts:
                if part.mixer is not None:
                    added.append(self.mix(part, h))
            added += [self.attend(asker, targets, h) for asker, targets in self.askers(layer)]
            x = x + sum(added)
        return normed(x)

    def keep(self, part, x):
        one, weights = self.component(part.place), doubles(part.keeper)
        source, ratio = (self.encoded if one.is_encoder_fed else x), one.ratio or 1
        vectors = []
        for name in (name for name in weights if not name.endswith("gate")):
            rows = (source @ weights[name].T).unflatten(1, (HEADS[name](one), -1))
            if ratio > 1:
                gates = (source @ weights[f"{name} gate"].T).view_as(rows)
                rows = pooled(rows, gates, ratio, one.overlap)
            vectors.append(turned(rows, [j * ratio for j in range(len(rows))], TURNED[name](one)))
        if self.stored is not None:
            vectors = self.stored(part.place, vectors)
        return Entries(vectors, [(j + 1) * ratio - 1 for j in range(len(vectors[0]))])

    def mix(self, part, x):
        one = self.component(part.place)
        mixer = SimpleNamespace(weights=doubles(part.mixer), component=one)
        added, _, left = NAIVE[one.kind](mixer, x, self.memory)
        self.memory = self.memory if left is None else left
        return added

    def choose(self, layer, x):
        """For each cache of the layer that is read in part, the best entries of every token."""
        for part in layer.parts:
            owner = self.owner(part)
            if not self.component(owner).selects:
                continue
            scores = [self.score(part, owner, row, t) for t, row in enumerate(x)]
            if owner != part.place:
                among = best(self.scored[owner], self.component(part.place).top_k)
                scores = [{j: row[j] for j in few} for row, few in zip(scores, among, strict=True)]
            else:
                self.scored[owner] = scores
            for other in layer.parts:
                target = self.owner(other)
                top_k = getattr(self.component(other.place), "top_k", None) or self.component(target).top_k
                if top_k is not None and not self.component(target).selects:
                    self.chosen[target] = self.latest = best(scores, top_k)

    def score(self, part, owner, row, query):
        """The score of every visible entry: sum over heads of weight x relu(q . k)."""
        one, weights, entries = self.component(owner), doubles(part.chooser), self.entries[owner]
        down = weights["q down"] @ row if one.q_rank is not None else row
        q = turned((weights["q"] @ down).view(1, one.q_heads, -1), [query], one.head_dim)[0]
        shares = weights["head weights"] @ row
        keys = entries.vectors[0][:, 0]
        return {j: float(shares @ torch.relu(q @ keys[j])) for j in visible(one, entries, query)}

    def askers(self, layer):
        """Those who ask, each with what it reads; the first also with what nobody of its own asks for."""
        attended = [
            part
            for part in layer.parts
            if (part.place in self.owners or self.component(part.place).keeps_entries)
            and not self.component(self.owner(part)).selects
        ]
        asking = [part for part in attended if self.component(part.place).queries is not None]
        silent = [part for part in attended if part not in asking]
        return [(part, [part, *(silent if part is asking[0] else [])]) for part in asking]

    def attend(self, asker, targets, x):
        weights, owner = doubles(asker.asker), self.component(self.owner(asker))
        heads = self.component(asker.place).queries
        # A reader that asks with other heads than MLA's own has no up-projections: it takes latents as they are.
        is_mla = hasattr(owner, "nope_head_dim") and owner.nope_head_dim is not None and heads == owner.q_heads
        asked = x @ weights["q down"].T if is_mla and owner.q_rank is not None else x
        # What turns of a query is what turns of the key that it meets.
        count = TURNED["k" if hasattr(owner, "kv_heads") else "latent"](owner)
        q = turned((asked @ weights["q"].T).unflatten(1, (heads, -1)), list(range(len(x))), count)
        caches = []
        for part in targets:
            vectors = self.entries[self.owner(part)].vectors
            pair = spelled_out(weights, vectors[0], heads, owner.rope_dim) if is_mla else vectors
            caches.append((part, pair[0], pair[-1]))
        rows = []
        for t in range(len(x)):
            seen = [(k, v, self.seen(part, t)) for part, k, v in caches]
            rows.append(weights["o"] @ one_query(q[t], seen))
        return torch.stack(rows)

    def seen(self, part, query):
        place, one = self.owner(part), self.component(part.place)
        owner = self.component(place)
        narrowed = one.window if part.place in self.owners else None
        seen = visible(owner, self.entries[place], query, narrowed)
        if owner.top_k is None or narrowed is not None:
            return seen
        return sorted(set(seen) & set(self.chosen.get(place, self.latest)[query]))


def best(scores, most):
    """For each token the `most` entries that score best."""
    return [sorted(row, key=row.get, reverse=True)[:most] for row in scores]


def doubles(holder):
    return {name: weight.double() for name, weight in holder.weights.items()}
