"""The lock: what moves a digest, what does not, and files that are none."""

import json

import msgspec
import pytest

from kvcalc.engines.engine import engine_classes
from kvcalc.errors import KvcalcError
from kvcalc.model.catalog import load
from kvcalc.plan import lock as locks
from kvcalc.plan.lock import (
    Lock,
    Use,
    compare_lock,
    fingerprint,
    gpu_digest,
    lock_text,
    model_digest,
    read_lock,
    write_lock,
)

SPEC = """
name: tiny
layers:
  - {repeat: 4, mixer: {kind: kv, kv_heads: 8, head_dim: 128}}
"""
COMMENTED = """
# A comment, another order, a source and an alias: the same architecture.
layers:
  - mixer: {head_dim: 128, kv_heads: 8, kind: kv}
    repeat: 4
aliases: [small]
source: somewhere else
name: tiny
"""


@pytest.fixture
def use():
    return Use(model=load("llama-8b"), engine="vllm@0.33.0", gpu="h100-sxm", speed=True)


@pytest.fixture
def fresh_digests():
    """Digests are kept for the life of a process; here the sources change."""
    kept = (locks.engine_digest, locks._overheads_digest, locks._throughput_digest)
    for one in kept:
        one.cache_clear()
    yield
    for one in kept:
        one.cache_clear()


def moved_names(path, *uses):
    return [(one["kind"], one["name"]) for one in compare_lock(path, uses)["moved"]]


def test_a_comment_an_order_and_a_source_move_no_digest(spec_file):
    assert model_digest(load(str(spec_file(SPEC)))) == model_digest(load(str(spec_file(COMMENTED, "other.yaml"))))


@pytest.mark.parametrize(
    "change",
    [
        ("kv_heads: 8", "kv_heads: 4"),
        ("repeat: 4", "repeat: 5"),
        ("name: tiny", "name: tiny\nmax_context: 4096"),
        ("head_dim: 128}", "head_dim: 128}, norm_vectors: 0"),
    ],
)
def test_what_an_architecture_says_moves_its_digest(spec_file, change):
    assert model_digest(load(str(spec_file(SPEC)))) != model_digest(
        load(str(spec_file(SPEC.replace(*change), "other.yaml")))
    )


def test_where_weights_lie_moves_no_digest_and_their_bytes_do(spec_file):
    from kvcalc.model.spec import Checkpoint

    spec = load(str(spec_file(SPEC)))
    one, elsewhere, larger = (
        msgspec.structs.replace(spec, checkpoint=Checkpoint(bytes=count, formats=("bf16",), source=source))
        for count, source in ((10, "/home/a"), (10, "/home/b"), (11, "/home/a"))
    )
    assert model_digest(one) == model_digest(elsewhere) != model_digest(larger)


def test_a_gpu_is_its_figures(monkeypatch):
    name, digest = gpu_digest("H100 SXM")
    assert (name, digest) == gpu_digest("h100-sxm5-80gb")
    from kvcalc.hardware import gpus

    card = gpus.find_gpu("h100-sxm")
    noted = msgspec.structs.replace(card, note="another note", aliases=("x",))
    slower = msgspec.structs.replace(card, bandwidth_bytes_per_second=gpus.Figure(value=1, source="x"))
    monkeypatch.setattr(gpus, "find_gpu", lambda _: noted)
    assert gpu_digest("h100-sxm") == (name, digest)
    monkeypatch.setattr(gpus, "find_gpu", lambda _: slower)
    assert gpu_digest("h100-sxm")[1] != digest


def test_the_rules_of_an_engine_are_its_own_modules_and_what_they_share(fresh_digests, monkeypatch):
    read = locks._source
    before = {name: locks.engine_digest(f"{name}@1") for name in engine_classes()}
    assert len(set(before.values())) == len(before)

    def moved_by(module):
        locks.engine_digest.cache_clear()
        monkeypatch.setattr(locks, "_source", lambda name: read(name) + ("# edited" if name == module else ""))
        return {name for name in before if locks.engine_digest(f"{name}@1") != before[name]}

    assert moved_by("kvcalc.engines.vllm_changes") == {"vllm"}
    assert moved_by("kvcalc.engines.llama_cpp_types") == {"llama.cpp"}
    assert moved_by("kvcalc.engines.sglang_versions") == {"sglang"}
    assert moved_by("kvcalc.engines.engine") == set(before)
    assert moved_by("kvcalc.cache.attention") == set(before)
    assert moved_by("kvcalc.cli.fit") == set()
    assert moved_by("kvcalc.engines.overhead_rules") == set()  # which has a digest of its own


def test_the_constants_count_where_speed_is_asked_and_overheads_where_a_card_is(use):
    assert set(fingerprint([use]).constants) == {"overheads", "throughput"}
    assert set(fingerprint([msgspec.structs.replace(use, speed=False)]).constants) == {"overheads"}
    assert set(fingerprint([msgspec.structs.replace(use, speed=False, gpu=None)]).constants) == set()


def test_one_name_with_two_contents_has_both_digests():
    two = [Use(model=load("llama-8b")), Use(model=load("llama-8b", ["mixer.kv_heads=4"]))]
    (entry,) = fingerprint(two).models.values()
    assert len(set(entry.split())) == 2
    assert fingerprint(two[::-1]) == fingerprint(two)


def test_a_lock_is_read_back_and_nothing_moved(use, tmp_path):
    path = tmp_path / "kvcalc.lock"
    write_lock(path, fingerprint([use]))
    assert read_lock(path) == fingerprint([use])
    assert compare_lock(path, [use]) == {"file": str(path), "moved": [], "passed": True}
    assert list(tmp_path.iterdir()) == [path]


def test_a_lock_is_an_entry_a_line_in_one_order(use):
    other = Use(model=load("deepseek-v3"), engine="sglang@0.5.23", gpu="h200-nvl")
    text = lock_text(fingerprint([use, other]))
    assert text == lock_text(fingerprint([other, use]))
    assert json.loads(text)["models"].keys() == {"deepseek-v3", "llama-3.1-8b"}
    assert len(text.splitlines()) == 2 + 2 + 4 * 2 + 8


def test_what_moved_is_told_by_name_as_it_was_and_as_it_is(use, tmp_path):
    path, now = tmp_path / "kvcalc.lock", fingerprint([use])
    old = msgspec.structs.replace(
        now, kvcalc="0.0.9", engines={"vllm@0.32.0": "sha256:old"}, gpus={"h100-sxm5-80gb": "sha256:old"}
    )
    write_lock(path, old)
    found = compare_lock(path, [use])
    assert not found["passed"]
    assert [(one["kind"], one["name"], one["locked"], one["now"]) for one in found["moved"]] == [
        ("kvcalc", "version", "0.0.9", now.kvcalc),
        ("engine", "vllm@0.32.0", "sha256:old", None),
        ("gpu", "h100-sxm5-80gb", "sha256:old", now.gpus["h100-sxm5-80gb"]),
        ("engine", "vllm@0.33.0", None, now.engines["vllm@0.33.0"]),
    ]
    assert compare_lock(path, [use], locked=False)["passed"]


def test_a_model_that_the_plan_uses_no_more_has_moved_too(use, tmp_path):
    path = tmp_path / "kvcalc.lock"
    write_lock(path, fingerprint([use, Use(model=load("deepseek-v3"))]))
    assert moved_names(path, use) == [("model", "deepseek-v3")]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is damaged"),
        ("{", "is damaged"),
        ("[]", "it states no schema"),
        ("{}", "it states no schema"),
        ('{"schema": "kvcalc.lock/2"}', "its schema is 'kvcalc.lock/2'"),
        ('{"schema": "kvcalc.check/1"}', "its schema is 'kvcalc.check/1'"),
        ('{"schema": "kvcalc.lock/1", "modles": {}}', "modles"),
        ('{"schema": "kvcalc.lock/1", "models": {"a": 1}}', "is damaged"),
        ("[" * 100_000, "is damaged"),
    ],
)
def test_what_is_no_lock_is_one_line(tmp_path, content, says):
    path = tmp_path / "kvcalc.lock"
    path.write_text(content)
    with pytest.raises(KvcalcError) as caught:
        read_lock(path)
    assert says in caught.value.message
    assert "\n" not in caught.value.message
    assert "--update-lock" in caught.value.hint


def test_a_lock_that_is_not_there_says_how_to_write_one(tmp_path):
    with pytest.raises(KvcalcError, match="there is no ") as caught:
        compare_lock(tmp_path / "kvcalc.lock", [])
    assert "--update-lock" in caught.value.hint


def test_a_lock_is_written_whole_or_not_at_all(use, tmp_path):
    (tmp_path / "kvcalc.lock").mkdir()
    with pytest.raises(KvcalcError, match="no regular file"):
        write_lock(tmp_path / "kvcalc.lock", Lock())
    with pytest.raises(KvcalcError, match="No such file"):
        write_lock(tmp_path / "none" / "kvcalc.lock", Lock())
    assert [path.name for path in tmp_path.iterdir()] == ["kvcalc.lock"]
