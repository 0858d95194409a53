"""Whole runs: their order, their file, what is refused before anything is allocated, and what ends one early."""

import msgspec
import pytest

torch = pytest.importorskip("torch")

from quick import MACHINE, QuickCpu, request, spec  # noqa: E402

from kvcalc.cli.emit import render  # noqa: E402
from kvcalc.cli.options import OutputFormat  # noqa: E402
from kvcalc.errors import KvcalcError  # noqa: E402
from kvcalc.profiler import course  # noqa: E402
from kvcalc.profiler.peaks import beyond_peak  # noqa: E402
from kvcalc.profiler.record import read_run  # noqa: E402
from kvcalc.profiler.report import profile_report  # noqa: E402
from kvcalc.profiler.room import room_for  # noqa: E402
from kvcalc.profiler.run import InterruptedRunError, profile_run  # noqa: E402
from kvcalc.profiler.verdict import exit_code, judge, largest  # noqa: E402
from kvcalc.reference.build import Build  # noqa: E402
from kvcalc.reference.codecs import Buffer, PlainCodec  # noqa: E402
from kvcalc.reference.session import Session  # noqa: E402
from kvcalc.units import memory  # noqa: E402


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """The stated machine in place of a measured one; a test may change its peaks."""
    stated = dict(MACHINE)
    monkeypatch.setattr(course, "measure_machine", lambda *_: dict(stated))
    return stated


def points_of(document):
    return [(one["context_tokens"], one["batch"]) for one in document["points"]]


def run(asked, device=None, **keys):
    return profile_run(asked, device or QuickCpu(), **keys)


def test_the_grid_runs_from_the_smallest_point_to_the_largest():
    told = []
    document = run(request("kv", contexts=[40, 8], batches=[3, 1]), progress=lambda *what: told.append(what))
    assert points_of(document) == [(8, 1), (8, 3), (40, 1), (40, 3)]
    assert [place for _, place, _ in told] == list(range(7))
    assert {total for *_, total in told} == {6}
    assert told[2][0] == "8 tokens x 1"
    # At the top stands the largest.
    assert document["decode"] == document["points"][3]["decode"]
    assert document["components"] == document["points"][3]["components"]
    assert document["verdict"] == {"memory": "exact", "time": "not judged", "tolerance": None, "reasons": []}


@pytest.mark.parametrize("model", ["kv", "index", "cross", "mamba2"])
def test_the_document_is_written_and_read_as_it_was(tmp_path, model):
    document = run(request(model, contexts=[8, 21]))
    path = tmp_path / "run.json"
    path.write_text(render(profile_report(document), OutputFormat.json), encoding="utf-8")
    assert read_run(path) == msgspec.json.decode(msgspec.json.encode(document))


def bytes_of(document):
    keys = "predicted_bytes", "measured_bytes", "predicted_read_bytes_per_step", "counted_read_bytes_per_step"
    return [
        [one.get(key) for key in keys]
        for point in document["points"]
        for one in (*point["components"], *point["rules"])
    ]


def test_two_runs_of_one_seed_hold_the_same_bytes():
    asked = request("index", contexts=[8, 21], page=5)
    first, second = run(asked), run(asked)
    assert bytes_of(first) == bytes_of(second)
    assert len(bytes_of(first)) > 6


# ---- what does not fit

NEEDED = 2 * 4 * (2 * 64 * 128 + 2 * 64 * 64)
"""Weights of two fp32 layers: Q and O of 4 heads x 32, K and V of 2, hidden 64."""


def test_weights_that_do_not_fit_are_refused_before_anything_is_allocated(monkeypatch):
    made, real = [], torch.empty
    device = QuickCpu(free=NEEDED - 1)
    monkeypatch.setattr(torch, "empty", lambda *a, **k: made.append(k.get("device")) or real(*a, **k))
    with pytest.raises(KvcalcError) as found:
        run(request("kv"), device)
    assert found.value.message == (
        f"the weights of 2 layers take {memory(NEEDED)}, and {memory(NEEDED - 1)} are available"
    )
    assert found.value.hint == "use fewer --layers"
    assert set(made) == {"meta"}


def test_a_point_that_does_not_fit_is_refused_with_what_would(monkeypatch):
    monkeypatch.setattr(Session, "__init__", lambda *_, **__: pytest.fail("was allocated"))
    asked = request("kv", contexts=[8, 2**20], batches=[1])
    with pytest.raises(
        KvcalcError, match=r"1,048,576 tokens x 1 ask for .* \(caches 1.00 GiB\), and .* are available"
    ) as found:
        run(asked, QuickCpu(free=2**29))
    context = int(found.value.hint.split()[1])
    assert 8 < context < 2**20
    takes = [room_for(asked, tokens, 1).total_bytes + NEEDED for tokens in (context, context + 1)]
    assert takes[0] <= 2**29 < takes[1]


def test_a_grid_of_defaults_leaves_out_what_does_not_fit():
    asked = request("kv", contexts=[8, 2**20], batches=[1], skip_what_does_not_fit=True)
    assert points_of(run(asked, QuickCpu(free=2**29))) == [(8, 1)]
    with pytest.raises(KvcalcError, match="8 tokens x 1 ask for"):
        run(asked, QuickCpu(free=2**20))


# ---- what ends a point or a run


@pytest.mark.parametrize(("method", "reached"), [("__init__", "nothing"), ("prefill", "caches"), ("decode", "prefill")])
def test_out_of_memory_ends_one_point_and_not_the_run(monkeypatch, method, reached):
    real = getattr(Session, method)

    def fails_at_40(session, *arguments, **keys):
        if (arguments[2] if method == "__init__" else session.capacity) == 40:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 byte")
        return real(session, *arguments, **keys)

    monkeypatch.setattr(Session, method, fails_at_40)
    document = run(request("kv", contexts=[8, 40, 80], batches=[1]))
    first, second, third = document["points"]
    assert first["stopped"] is third["stopped"] is None
    assert (second["stopped"]["reached"], second["decode"]) == (reached, None)
    assert second["stopped"]["asked_bytes"] == 2 * 40 * 2 * 2 * 32 * 4
    assert document["decode"] == third["decode"]
    assert exit_code(document["verdict"]) == 0


def test_an_interrupted_run_keeps_what_was_measured(monkeypatch, tmp_path):
    real = Session.decode

    def stops_at_40(session, tokens):
        if session.capacity == 40:
            raise KeyboardInterrupt
        return real(session, tokens)

    monkeypatch.setattr(Session, "decode", stops_at_40)
    with pytest.raises(InterruptedRunError) as found:
        run(request("kv", contexts=[8, 40, 80], batches=[1]))
    document = found.value.document
    first, second = document["points"]
    assert (first["stopped"], document["decode"]) == (None, first["decode"])
    assert (second["stopped"]["reason"], second["stopped"]["reached"]) == ("interrupted", "prefill")
    assert second["components"][0]["measured_bytes"] == second["components"][0]["predicted_bytes"]
    assert any(note.startswith("interrupted") for note in document["notes"])
    path = tmp_path / "run.json"
    path.write_text(render(profile_report(document), OutputFormat.json), encoding="utf-8")
    assert points_of(read_run(path)) == [(8, 1), (40, 1)]


# ---- the verdict


def test_weights_that_are_no_numbers_are_found(monkeypatch):
    real = Build.weight

    def broken(build, name, *shape):
        made = real(build, name, *shape)
        return made.fill_(float("nan")) if name == "o" else made

    monkeypatch.setattr(Build, "weight", broken)
    verdict = run(request("kv", contexts=[16]))["verdict"]
    assert verdict["memory"] == "exact"
    assert verdict["reasons"] == [
        f"16 tokens x 2: {what}: NaN or infinity in its outputs" for what in ("prefill", "decode")
    ]
    assert exit_code(verdict) == 1


def test_a_format_that_holds_a_byte_more_is_found(monkeypatch):
    class Wide(PlainCodec):
        def buffers(self):
            shape = self.shape
            return {"entries": Buffer(shape.heads, shape.width + 1, self.dtype)}

        def pack(self, values):
            return {"entries": torch.nn.functional.pad(super().pack(values)["entries"], (0, 1))}

        def unpack(self, packed, dtype):
            return super().unpack({"entries": packed["entries"][..., :-1]}, dtype)

    monkeypatch.setattr("kvcalc.reference.codecs.PlainCodec", Wide)
    document = run(request(spec(["{kind: kv, q_heads: 2, kv_heads: 2, head_dim: 32}"]), contexts=[10], batches=[1]))
    held, more = 2 * 10 * 2 * 32 * 4, 2 * 10 * 2 * 33 * 4
    assert document["verdict"]["memory"] == "off"
    assert document["verdict"]["reasons"] == [
        f"10 tokens x 1: `kv` holds {more:,} B, predicted {held:,} B",
        f"10 tokens x 1: a step reads {more:,} B of `kv`, predicted {held:,} B",
    ]
    assert profile_report(document).exit_code == 1


def test_time_is_judged_at_the_largest_point_where_somebody_says_how_near(machine):
    machine["gemm_flops_per_second"] = machine["read_bytes_per_second"] = 1e30
    asked = request("kv", contexts=[8, 16], batches=[1])
    assert run(asked)["verdict"]["time"] == "not judged"
    verdict = run(asked, tolerance=0.2)["verdict"]
    assert (verdict["memory"], verdict["time"], verdict["tolerance"]) == ("exact", "off", 0.2)
    assert [reason.split(" took")[0] for reason in verdict["reasons"]] == [
        "16 tokens x 1: prefill",
        "16 tokens x 1: decode",
    ]
    assert run(asked, tolerance=1e40)["verdict"]["time"] == "within"


def off_by(share, **keys):
    """The verdict on a point whose decode took `share` more than predicted, at a tolerance of 30%."""
    point = run(request("kv", contexts=[16]))["points"][0]
    point["prefill"] = None
    point["decode"] |= {"measured_seconds": 1 + share, "predicted_seconds": 1.0, **keys}
    return judge([point], 0.3)["reasons"]


def test_a_tolerance_holds_both_ways_and_a_graph_speaks_for_the_device():
    assert off_by(0.29) == off_by(-0.29) == []
    assert off_by(0.31) == ["16 tokens x 2: decode took +31% of what was predicted, allowed 30%"]
    assert off_by(-0.31) == ["16 tokens x 2: decode took -31% of what was predicted, allowed 30%"]
    assert off_by(0.9, graph_seconds=1.1) == []


@pytest.mark.parametrize(
    ("measured", "is_off"), [(1024, False), (1024 + 2**21, False), (1023, True), (1025 + 2**21, True)]
)
def test_an_allocator_gives_what_was_asked_and_uncut_rests(measured, is_off):
    point = run(request("kv", contexts=[8]))["points"][0]
    point["allocator"] = {"tensors": 2, "granule_bytes": 512, "predicted_bytes": 1024, "measured_bytes": measured}
    assert bool(judge([point], None)["reasons"]) == is_off


def test_nothing_measured_is_no_verdict():
    assert judge([], 0.2) == {"memory": "not measured", "time": "not judged", "tolerance": 0.2, "reasons": []}
    assert largest([]) is None


# ---- rates that cannot be


@pytest.mark.parametrize("which", ["measured", "specified"])
def test_rates_above_a_peak_are_doubted(machine, which):
    keys = ("read", "gemm") if which == "measured" else ("specified", "specified")
    machine[f"{keys[0]}_bytes_per_second"] = machine[f"{keys[1]}_flops_per_second"] = 1.0
    document = run(request("kv", contexts=[16], batches=[1]))
    doubts = [doubt for doubt in document["points"][0]["doubts"] if doubt.endswith("cached or wrong")]
    assert [doubt.split(":")[0] for doubt in doubts] == [
        "prefill", "decode", "attention over kv", "attention over kv", "projections of a layer", "projections of a layer"
    ]  # fmt: skip
    assert all(f"% of the {which} " in doubt for doubt in doubts)
    assert exit_code(document["verdict"]) == 0


def test_a_rate_at_the_peak_is_none_above_it():
    point = run(request("kv", contexts=[16], batches=[1]))["points"][0]
    point["ops"], point["prefill"] = [], None
    rate = point["decode"]["achieved_bytes_per_second"]
    assert beyond_peak(point, MACHINE | {"read_bytes_per_second": rate}) == []
    assert beyond_peak(point, MACHINE | {"read_bytes_per_second": rate / 1.3}) == [
        "decode: 130.0% of the measured bandwidth: cached or wrong"
    ]


class Slowing(QuickCpu):
    """A device whose clock falls, and which is throttled when it is asked for the last time."""

    def __init__(self, clocks):
        super().__init__()
        self.clocks = iter(clocks)

    def describe(self, document):
        document["clocks_mhz"]["sm"] = clock = next(self.clocks)
        return ["the device was throttled: heat"] if clock < 1500 else []


@pytest.mark.parametrize(
    ("clocks", "doubts"),
    [
        ((2000.0, 2000.0), []),
        ((2000.0, 1850.0), []),
        ((2000.0, 1700.0), ["the sm clock went from 2,000 to 1,700 MHz during the run"]),
        (
            (2000.0, 1000.0),
            ["the device was throttled: heat", "the sm clock went from 2,000 to 1,000 MHz during the run"],
        ),
        ((1000.0, 1000.0), ["the device was throttled: heat"]),
    ],
)
def test_a_clock_that_changes_is_doubted_once(clocks, doubts):
    document = run(request("kv"), Slowing(clocks))
    assert [doubt for doubt in document["doubts"] if "clock" in doubt or "throttled" in doubt] == doubts
    assert document["environment"]["clocks_mhz"] == {"sm": clocks[0]}
