"""Ctrl-C within kvcalc simulate keeps what is done, however little that is, and says so."""

import builtins
import signal

import msgspec
import numpy as np
import pytest

from kvcalc import __main__ as entry
from kvcalc.workload import runs
from kvcalc.workload.fleet import simulate_fleet

FLEETS = ("simulate", "llama-8b", "--isl", "200", "--osl", "20", "--requests", "50", "--rate", "9/s", "--replicas", "2",
          "--kv-cache-memory", "1GiB", "--step-time", "20ms", "--block-size", "16,32")  # fmt: skip


@pytest.fixture(autouse=True)
def handler():
    """What hears Ctrl-C, as it was: an interrupted command leaves at once when it is pressed again."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def interrupted_at(monkeypatch):
    """Lets Ctrl-C come while a fleet is routed: the first, the second, ..."""

    def at(place):
        done = []

        def fleet(*asked, **more):
            done.append(asked)
            if len(done) == place:
                raise KeyboardInterrupt
            return simulate_fleet(*asked, **more)

        monkeypatch.setattr(runs, "simulate_fleet", fleet)

    return at


def test_fleets_that_were_done_are_kept(kvcalc, interrupted_at):
    interrupted_at(2)
    answer = kvcalc(*FLEETS, "--format", "json")
    assert answer.code == 130
    assert not answer.json["complete"]
    (run,) = answer.json["runs"]
    assert run["requests"]["finished"] == 50


def test_that_nothing_is_done_is_said(kvcalc, interrupted_at, tmp_path):
    interrupted_at(1)
    answer = kvcalc(*FLEETS, "-o", tmp_path / "x.json")
    assert (answer.code, answer.out) == (130, "")
    assert answer.err == "note: interrupted before a setting was done: nothing is kept\n"
    assert not (tmp_path / "x.json").exists()
    interrupted_at(1)
    assert kvcalc(*FLEETS, "-q").err == ""


def test_requests_that_all_still_wait_have_no_times(kvcalc, monkeypatch):
    def fleet(*asked, **more):
        found = simulate_fleet(*asked, **more)
        never = np.full(50, np.nan)
        names = ("admitted_seconds", "first_token_seconds", "finished_seconds")
        requests = msgspec.structs.replace(found.whole.requests, **dict.fromkeys(names, never))
        whole = msgspec.structs.replace(found.whole, requests=requests, is_complete=False)
        return msgspec.structs.replace(found, whole=whole)

    monkeypatch.setattr(runs, "simulate_fleet", fleet)
    answer = kvcalc(*FLEETS)
    assert answer.code == 130
    assert "interrupted after 0 of 50 requests, in setting 1 of 2" in answer.out
    assert "1 in 100 waits" not in answer.out

    def all_of_them(trace, cases, replicas, routing, **more):
        return [
            runs.Run(case=case, outcome=fleet(trace, case.setting, replicas, "round-robin").whole, fleet=replicas)
            for case in cases
        ]

    monkeypatch.setattr(runs, "runs_of", all_of_them)
    answer = kvcalc(*FLEETS)
    assert answer.code == 130
    assert "fastest" not in answer.out


def test_it_ends_quietly_while_it_is_imported(monkeypatch):
    load = builtins.__import__

    def interrupted(name, *more):
        if name == "kvcalc.cli.app":
            raise KeyboardInterrupt
        return load(name, *more)

    monkeypatch.setattr(builtins, "__import__", interrupted)
    assert entry.main() == 130
