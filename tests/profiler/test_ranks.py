"""Tensor parallelism under torchrun: the whole model's outputs, every rank's bytes, and what is refused."""

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from on_ranks import distance  # noqa: E402
from quick import MACHINE, MODELS, QuickCpu, request  # noqa: E402

from kvcalc.errors import KvcalcError  # noqa: E402
from kvcalc.profiler import course  # noqa: E402
from kvcalc.profiler.ranks import ALONE, Ranks, local_index, local_size, ranks_of  # noqa: E402
from kvcalc.profiler.run import profile_run  # noqa: E402
from kvcalc.profiler.verdict import judge  # noqa: E402
from kvcalc.reference.build import Heads, Rank  # noqa: E402

HERE = Path(__file__).parent
BATCH, TOKENS = 2, 20


class Together(Ranks, frozen=True, kw_only=True):
    """A rank that is a thread: what all bring lies in one list, and nobody goes on before all have come."""

    meeting: threading.Barrier
    table: list

    def gather(self, mine):
        self.table[self.rank.index] = mine
        self.meeting.wait()
        found = list(self.table)
        self.meeting.wait()
        return found


def on_threads(size, action):
    """What `action` returns on each of `size` ranks."""
    meeting, table = threading.Barrier(size, timeout=20), [None] * size

    def start(index):
        def reduce(tensor):
            tensor.copy_(sum(ranks.gather(tensor.clone())))

        ranks = Together(rank=Rank(index, size, reduce), meeting=meeting, table=table)
        return action(ranks)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(start, range(size)))


class Uneven(QuickCpu):
    """A CPU whose clock runs ten thousand times faster on the last rank, and which has less memory there."""

    def __init__(self, rank):
        self.is_last = rank.index == rank.size - 1
        super().__init__(free=70 * 2**20 if self.is_last else 2**40)

    def time(self, action):
        return super().time(action) * (1e4 if self.is_last else 1)


@cache
def point_on(size, name):
    """The point that a run over `size` ranks measures, as the first rank tells it."""

    def one(ranks):
        return profile_run(request(name, contexts=[TOKENS], rank=ranks.rank), Uneven(ranks.rank), ranks=ranks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(course, "measure_machine", lambda *_: dict(MACHINE))
        return on_threads(size, one)[0]["points"][0]


RUN = [(2, name) for name in MODELS] + [(4, name) for name in MODELS if name != "cross"]


@pytest.mark.parametrize(("size", "name"), RUN)
def test_ranks_together_compute_what_one_does(size, name):
    assert max(on_threads(size, lambda ranks: distance(name, ranks))) < 1e-10


NOT_OURS = (
    "EADDRINUSE",
    "address already in use",
    "DistNetworkError",
    "Rendezvous",
    "terminate called without an active exception",
)
"""What torchrun says where somebody took its port between finding it free and binding it, or where one of gloo's own
threads outlives a process that has said all it had to say."""


def torchrun(*arguments, attempts=3):
    """What the first of two processes prints as JSON."""
    path = os.pathsep.join((str(HERE), str(HERE.parent)))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launcher, HERE / "on_ranks.py", *arguments],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if done.returncode and attempts > 1 and any(words in done.stderr for words in NOT_OURS):
        return torchrun(*arguments, attempts=attempts - 1)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def test_processes_of_torchrun_compute_what_one_does():
    found = torchrun("compare", "kv", "latent", "mamba2")
    assert list(found) == ["kv", "latent", "mamba2"]
    assert max(found.values()) < 1e-10


def test_the_command_runs_under_torchrun_and_one_rank_speaks(spec_file):
    spec = spec_file(
        "name: m\nhidden_size: 64\ndtype: fp32\n"
        "layers: [{repeat: 2, mixer: {kind: kv, q_heads: 4, kv_heads: 1, head_dim: 16}}]"
    )
    asked = ["--tp", "2", "--ctx", "16", "--batch", "1", "--device", "cpu", "--format", "json"]
    document = torchrun("profile", spec, *asked)
    assert document["request"]["tp"] == 2
    (point,) = document["points"]
    assert point["replication"] == 2
    assert [one["measured_bytes"] for one in point["ranks"]] == [2 * 2 * 16 * 16 * 4] * 2


@pytest.mark.parametrize(("size", "name"), RUN)
def test_every_rank_holds_what_is_predicted(size, name):
    point = point_on(size, name)
    assert judge([point], None)["reasons"] == []
    assert [one["rank"] for one in point["ranks"]] == list(range(size))
    assert all(one["measured_bytes"] == one["predicted_bytes"] > 0 for one in point["ranks"])


@pytest.mark.parametrize(("size", "name"), RUN)
def test_all_ranks_stop_where_the_slowest_has_spent_the_budget(size, name):
    """The first rank alone would have time for two steps behind two that warm up."""
    assert point_on(size, name)["decode"]["steps"] == 1


def test_all_ranks_take_the_points_that_fit_the_fullest(monkeypatch):
    """70 MiB on the last rank: scratch alone takes 64, and 2,048 tokens 12 times their hidden states, 6 MiB more."""
    monkeypatch.setattr(course, "measure_machine", lambda *_: dict(MACHINE))
    asked = [
        request("kv", contexts=[8, 2048], batches=[1], skip_what_does_not_fit=True, rank=Rank(at, 2)) for at in (0, 1)
    ]
    found = on_threads(2, lambda ranks: profile_run(asked[ranks.rank.index], Uneven(ranks.rank), ranks=ranks))
    assert [[point["context_tokens"] for point in document["points"]] for document in found] == [[8], [8]]


@pytest.mark.parametrize(
    ("size", "name", "of_a_rank", "copies"),
    [
        # Two layers, K and V, two sequences, 20 tokens, 32 fp32 numbers a head, of two heads in all.
        (2, "kv", 2 * 2 * BATCH * TOKENS * 32 * 4, 1),
        (4, "kv", 2 * 2 * BATCH * TOKENS * 32 * 4, 2),
        # A latent of 128 + 32 numbers is whole on every rank, and so are index keys.
        (2, "latent", BATCH * TOKENS * 160 * 4, 2),
        (4, "latent", BATCH * TOKENS * 160 * 4, 4),
        (2, "index", BATCH * TOKENS // 2 * (96 + 32) * 4, 2),
    ],
)
def test_heads_are_divided_then_replicated_and_latents_are_whole(size, name, of_a_rank, copies):
    point = point_on(size, name)
    assert [one["measured_bytes"] for one in point["ranks"]] == [of_a_rank] * size
    assert point["replication"] == copies


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(KvcalcError, match="--tp 4: 2 query heads do not divide over 4 ranks"):
        point_on(4, "cross")
    with pytest.raises(KvcalcError, match="--tp 4: 6 KV heads do not divide over 4 ranks") as found:
        Rank(0, 4).heads(6, "KV heads")
    assert found.value.hint == "use a divisor or a multiple of 6"


def test_a_rank_takes_its_share_of_heads():
    assert [Rank(at, 4).heads(8, "h") for at in range(4)] == [Heads(0, 2), Heads(2, 2), Heads(4, 2), Heads(6, 2)]
    assert [Rank(at, 4).heads(2, "h") for at in range(4)] == [Heads(0, 1), Heads(0, 1), Heads(1, 1), Heads(1, 1)]


@pytest.mark.parametrize(
    ("size", "started", "message", "hint"),
    [
        (2, None, "--tp 2 needs 2 processes, and 1 run", "torchrun --nproc-per-node 2 -m kvcalc profile --tp 2 ..."),
        (2, "4", "--tp 2 needs 2 processes, and 4 run", "torchrun --nproc-per-node 2 -m kvcalc profile --tp 2 ..."),
        (1, "2", "--tp 1 needs 1 processes, and 2 run", "add --tp 2"),
        (0, None, "--tp 0: at least 1 is needed", "leave --tp out for one rank"),
    ],
)
def test_ranks_that_torchrun_did_not_start_are_refused(monkeypatch, size, started, message, hint):
    if started is not None:
        monkeypatch.setenv("WORLD_SIZE", started)
    with pytest.raises(KvcalcError) as found, ranks_of(size, "cpu"):
        pytest.fail("they ran")
    assert (found.value.message, found.value.hint) == (message, hint)


def test_one_rank_needs_no_processes():
    with ranks_of(1, "cpu") as ranks:
        assert ranks is ALONE
        assert ranks.is_first
        assert ranks.gather("mine") == ["mine"]
        assert ranks.slowest(1.5) == 1.5


def test_every_rank_but_the_first_is_silent():
    assert not Ranks(Rank(1, 2)).is_first


def test_a_process_knows_its_place_on_its_machine(monkeypatch):
    assert (local_index(), local_size()) == (0, 1)
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert (local_index(), local_size()) == (3, 8)


def test_a_rank_that_holds_something_else_is_found():
    point = point_on(2, "kv")
    wrong = {**point, "ranks": [point["ranks"][0], {**point["ranks"][1], "measured_bytes": 1}]}
    held = point["ranks"][1]["predicted_bytes"]
    assert judge([wrong], None)["reasons"] == [f"20 tokens x 2: rank 1 holds 1 B, predicted {held:,} B"]
