"""The run file: what is written is read back, and anything else is one error that says what is wrong."""

import hashlib
import json

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample import run_document

import docs
from kvcalc.errors import KvcalcError
from kvcalc.profiler import record
from kvcalc.profiler.record import is_run_file, read_run, seal


@pytest.fixture
def written(tmp_path):
    """Write a document or bytes, and return the path: written(document)."""

    def write(content, name="run.json"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content, indent=1).encode())
        return path

    return write


def refused(path):
    with pytest.raises(KvcalcError) as caught:
        read_run(path)
    assert caught.value.hint
    assert "\n" not in caught.value.message
    return caught.value.message


def test_a_run_comes_back_as_it_was(written):
    run = run_document()
    assert read_run(written(run)) == run
    assert is_run_file(written(run))


def test_the_digest_is_the_sha256_of_sorted_json_without_it():
    run = run_document(contexts=(1024,), batches=(1,))
    rest = {key: value for key, value in run.items() if key != "digest"}
    # json writes these numbers as msgspec does: the shortest digits that give the same float.
    plain = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert run["digest"] == hashlib.sha256(plain.encode()).hexdigest()


def test_the_order_of_keys_and_spaces_mean_nothing(written):
    run = run_document()
    assert read_run(written(json.dumps(run, sort_keys=True).encode())) == run


def test_the_sample_satisfies_the_schema():
    schema = json.loads((docs.DOCS / "schemas" / "kvcalc.profile-1.json").read_text())
    jsonschema.validate(run_document(), schema)


def test_keys_of_a_later_version_are_kept(written):
    run = run_document(weather="fine")
    assert read_run(written(run))["weather"] == "fine"


@given(st.data())
def test_any_edit_is_noticed(tmp_path_factory, data):
    run = run_document(contexts=(1024,), batches=(1,), samples=8)
    step = run["points"][0]["decode"]
    place = data.draw(st.integers(0, 7))
    step["samples_seconds"][place] *= data.draw(st.sampled_from([0.5, 0.999, 1.001, 2]))
    path = tmp_path_factory.mktemp("edited") / "run.json"
    path.write_text(json.dumps(run))
    assert "was edited" in refused(path)


def test_a_file_that_is_not_there(tmp_path):
    assert "No such file" in refused(tmp_path / "run.json")
    assert not is_run_file(tmp_path / "run.json")


def test_a_folder(tmp_path):
    assert "no regular file" in refused(tmp_path)
    assert not is_run_file(tmp_path)


def test_a_file_cut_short(written):
    whole = json.dumps(run_document(), indent=1).encode()
    path = written(whole[: len(whole) // 2])
    assert "cut short" in refused(path)
    assert is_run_file(path)


@pytest.mark.parametrize("raw", [b"", b"hello", b"\xff\xfe", b'{"schema": NaN}', b'{"a": 1e999}', b"[" * 100_000])
def test_what_is_no_json(written, raw):
    message = refused(written(raw))
    assert "no JSON" in message or "nested too deeply" in message
    assert not is_run_file(written(raw))


@pytest.mark.parametrize(
    "document",
    [
        {"model_type": "llama", "num_hidden_layers": 32},
        {"schema": "kvcalc.size/1"},
        {"schema": 7},
        {"schema": None},
        [],
        "kvcalc.profile/1",
    ],
)
def test_other_documents_are_no_run(written, document):
    path = written(document)
    assert "is no run file" in refused(path)
    assert not is_run_file(path)


def test_a_model_file_is_no_run_whatever_it_contains(written):
    assert not is_run_file(written(b"name: x", "run.yaml"))
    assert not is_run_file(written({"model_type": "llama", "made_by": {"schema": "kvcalc.profile/1"}}, "config.json"))


def test_a_newer_version(written):
    path = written({**run_document(), "schema": "kvcalc.profile/2"})
    assert "written by a newer kvcalc" in refused(path)
    assert is_run_file(path)


@pytest.mark.parametrize("version", ["0", "one", "", "-1", "9" * 5000])
def test_versions_that_never_were(written, version):
    assert "is none that kvcalc wrote" in refused(written({**run_document(), "schema": f"kvcalc.profile/{version}"}))


def spoiled(path, value):
    """A run with one value replaced, or taken out where it is `...`, and sealed again."""
    run = run_document(contexts=(1024,), batches=(1,))
    *way, last = path
    part = run
    for step in way:
        part = part[step]
    if value is ...:
        del part[last]
    else:
        part[last] = value
    return seal(run)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("points",), ...),
        (("points", 0, "decode", "samples_seconds"), ...),
        (("points", 0, "decode", "samples_seconds"), []),
        (("points", 0, "decode", "samples_seconds"), [0.1, "0.2"]),
        (("points", 0, "decode", "median_seconds"), 0.0),
        (("points", 0, "decode", "median_seconds"), -1.0),
        (("points", 0, "decode", "median_seconds"), None),
        (("points", 0, "prefill", "flops"), "many"),
        (("points", 0, "components", 0, "measured_bytes"), True),
        (("points", 0, "components", 0, "measured_bytes"), 10**300),
        (("machine", "read_bytes_per_second"), 0),
        (("machine",), []),
        (("request", "contexts"), []),
        (("environment",), None),
        (("verdict", "memory"), "fine"),
        (("model", "name"), 7),
        (("doubts",), "none"),
    ],
)
def test_values_of_a_wrong_type_or_size(written, path, value):
    assert "is damaged" in refused(written(spoiled(path, value)))


def test_a_run_without_its_digest(written):
    run = run_document()
    del run["digest"]
    assert "was edited" in refused(written(run))


def test_a_file_that_is_too_large(written, monkeypatch):
    monkeypatch.setattr(record, "MOST_BYTES", 1000)
    assert "more than 1,000 bytes" in refused(written(run_document()))


def test_a_document_too_deep(written):
    deep = b'{"schema": "kvcalc.profile/1", "spec": ' + b"[" * 900 + b"]" * 900 + b"}"
    assert refused(written(deep))
