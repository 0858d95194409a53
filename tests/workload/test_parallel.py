"""Settings side by side: the same as one after the other, wherever they run."""

import os
import signal
import subprocess
import sys
import types

import joblib
import numpy as np
import pytest
from joblib._parallel_backends import SequentialBackend
from workload.test_fleet import RECORDS, server, steady

from kvcalc.errors import KvcalcError
from kvcalc.workload import parallel
from kvcalc.workload.fleet import simulate_fleet
from kvcalc.workload.parallel import Part, run_all, run_settings
from kvcalc.workload.steptime import FixedCost


@pytest.fixture(scope="module")
def trace():
    draw = np.random.default_rng(1)
    count = 300
    arrivals = np.sort(draw.uniform(0, 60, count))
    ids = [[one % 7 + 1, 100 + one] for one in range(count)]
    return steady(draw.integers(8, 200, count), draw.integers(1, 200, count), arrivals, ids)


SETTINGS = [
    server(pool_units=units, prefix_caching=on, cost=FixedCost(0.05)) for units in (400, 3000) for on in (True, False)
]


def same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.setting == other.setting and one.totals == other.totals and one.is_complete
        assert one.trace is other.trace
        for name in RECORDS:
            np.testing.assert_array_equal(getattr(one.requests, name), getattr(other.requests, name))
        for name, column in other.timeline.items():
            np.testing.assert_array_equal(one.timeline[name], column)


def test_processes_give_what_one_process_gives(trace):
    seen = []
    found = run_settings(trace, SETTINGS, jobs=2, progress=lambda done, of: seen.append((done, of)))
    same(found, run_settings(trace, SETTINGS))
    assert seen == [(300 * place, 1200) for place in (1, 2, 3, 4)]


def test_no_more_processes_are_started_than_there_is_work(trace):
    """joblib itself fails on so many: it makes a semaphore of their number."""
    same(run_settings(trace, SETTINGS[:2], jobs=10**20), run_settings(trace, SETTINGS[:2]))


def test_processes_are_deaf_to_ctrl_c_from_their_start(trace, monkeypatch):
    """A terminal sends it to them as well, and while they import nothing of ours could catch it."""
    joblib.externals.loky.get_reusable_executor().shutdown()  # others may have been started by another test

    def is_deaf(trace, setting, parent):
        return Part(None, signal.getsignal(signal.SIGINT) is signal.SIG_IGN, {}, True)

    monkeypatch.setattr(parallel, "_one", is_deaf)
    heard = signal.getsignal(signal.SIGINT)
    assert [one.totals for one in run_settings(trace, SETTINGS, jobs=2)] == [True] * len(SETTINGS)
    assert signal.getsignal(signal.SIGINT) is heard


def test_a_fleet_in_processes_is_the_same_fleet(trace):
    alone, spread = (simulate_fleet(trace, SETTINGS[0], 3, "least-loaded", jobs=jobs) for jobs in (1, 2))
    for name in RECORDS:
        np.testing.assert_array_equal(getattr(spread.whole.requests, name), getattr(alone.whole.requests, name))
    assert spread.whole.totals == alone.whole.totals


def test_progress_in_one_process_counts_over_all(trace):
    seen = []
    run_settings(trace, SETTINGS * 3, progress=lambda done, of: seen.append((done, of)))
    assert seen == sorted(seen) and seen[-1][0] == 3600 and {of for _, of in seen} == {3600}


class Counting(SequentialBackend):
    """A backend that stands in for a cluster's."""

    used = 0

    def submit(self, func, callback=None):
        type(self).used += 1
        return super().submit(func, callback)

    apply_async = submit

    def configure(self, n_jobs=1, parallel=None, **settings):
        type(self).used += 1
        return super().configure(n_jobs, parallel, **settings)


def test_ray_is_asked_through_joblib(trace, monkeypatch):
    module = types.ModuleType("ray.util.joblib")
    module.register_ray = lambda: joblib.register_parallel_backend("ray", Counting)
    for name in ("ray", "ray.util"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "ray.util.joblib", module)
    before = Counting.used
    same(run_settings(trace, SETTINGS[:2], jobs=2, backend="ray"), run_settings(trace, SETTINGS[:2]))
    assert Counting.used > before


def test_dask_is_asked_through_joblib(trace, monkeypatch):
    clients = []
    module = types.ModuleType("dask.distributed")
    module.Client = lambda **asked: clients.append(asked)
    monkeypatch.setitem(sys.modules, "dask", types.ModuleType("dask"))
    monkeypatch.setitem(sys.modules, "dask.distributed", module)
    joblib.register_parallel_backend("dask", Counting)
    before = Counting.used
    same(run_settings(trace, SETTINGS[:2], jobs=2, backend="dask"), run_settings(trace, SETTINGS[:2]))
    assert Counting.used > before and clients == [{"set_as_default": True}]


def test_a_cluster_that_is_not_installed(trace, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray.util.joblib", None)
    with pytest.raises(KvcalcError, match="--backend ray needs a package") as caught:
        run_settings(trace, SETTINGS[:2], backend="ray")
    assert "kvcalc[ray]" in caught.value.hint


def test_what_is_no_way_to_work(trace):
    with pytest.raises(KvcalcError, match="--jobs 0"):
        run_settings(trace, SETTINGS, jobs=0)
    with pytest.raises(KvcalcError, match="--backend 'dusk' is not known") as caught:
        run_settings(trace, SETTINGS, backend="dusk")
    assert "dask" in caught.value.hint


def test_a_mistake_in_a_process_is_said_as_in_one(trace):
    too_small = server(pool_units=1, cost=FixedCost(0.05))
    for jobs in (1, 2):
        with pytest.raises(KvcalcError, match="no request of by hand fits") as caught:
            run_all([(trace, SETTINGS[0]), (trace, too_small)], jobs=jobs)
        assert caught.value.hint


CUT = """
import sys
import numpy as np
from kvcalc.workload.parallel import run_settings
from workload.test_fleet import server, steady
from kvcalc.workload.steptime import FixedCost
count = 5_000
trace = steady([100] * count, [300] * count, np.arange(count) / 10)
small = server(pool_units=40_000, prefix_caching=False, cost=FixedCost(0.05))
def seen(done, of):
    print("SEEN", done, flush=True)
found = run_settings(trace, [small] * 400, jobs=int(sys.argv[1]), progress=seen)
print("KEPT", len(found), [one.is_complete for one in found][-1:], flush=True)
"""


@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_ends_all_and_keeps_what_is_done(jobs):
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", CUT, str(jobs)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout.readline().startswith("SEEN")
        # A terminal sends it to the whole group.
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    kept = [line for line in out.splitlines() if line.startswith("KEPT")]
    assert kept and "KEPT 400" not in kept[0] and process.returncode == 0, err
    assert not err
