"""Hub ids: found in a local cache without network or library; every failure of a download is one line."""

import builtins
import os
import sys
import time
import types
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvcalc.errors import KvcalcError
from kvcalc.model.importers import hub

VARIABLES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")
OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def snapshot(cache, commit, *files, age=0):
    folder = cache / "models--org--name" / "snapshots" / commit
    folder.mkdir(parents=True)
    for name in files:
        (folder / name).write_text("{}")
    os.utime(folder, (1e9 - age, 1e9 - age))
    return folder


def set_main(cache, raw):
    reference = cache / "models--org--name" / "refs" / "main"
    reference.parent.mkdir(parents=True, exist_ok=True)
    reference.write_bytes(raw)


def test_main_names_the_snapshot(cache):
    old = snapshot(cache, OLD, "config.json", age=100)
    snapshot(cache, NEW, "config.json")
    set_main(cache, OLD.encode() + b"\n")
    assert hub.find_in_cache("org/name") == old


def test_without_main_the_newest_with_a_config(cache):
    old = snapshot(cache, OLD, "config.json", age=100)
    snapshot(cache, NEW, "tokenizer.json")
    assert hub.find_in_cache("org/name") == old
    newest = snapshot(cache, "c" * 40, "config.json", age=50)
    assert hub.find_in_cache("org/name") == newest


@pytest.mark.parametrize("raw", [b"", b"../../..", b"\xff\xfe", b"/etc", NEW.encode(), b"d" * 40, b"a" * 5000])
def test_a_main_that_leads_nowhere(cache, raw):
    old = snapshot(cache, OLD, "config.json")
    snapshot(cache, NEW, "tokenizer.json")
    set_main(cache, raw)
    assert hub.find_in_cache("org/name") == old


def test_a_repository_of_gguf_files(cache):
    assert hub.find_in_cache("org/name") is None
    folder = snapshot(cache, OLD, "model-q4_0.gguf")
    assert hub.find_in_cache("org/name") == folder


def test_links_to_blobs(cache):
    folder = snapshot(cache, OLD)
    blob = cache / "models--org--name" / "blobs" / "01"
    blob.parent.mkdir()
    blob.write_text("{}")
    (folder / "config.json").symlink_to("../../blobs/01")
    assert hub.find_in_cache("org/name") == folder
    blob.unlink()
    assert hub.find_in_cache("org/name") is None


@pytest.mark.parametrize("repo_id", ["org/none", "../name", "org/../name", "org", "a/b/c", "", "org/na\0me", "/"])
def test_what_is_not_there(cache, repo_id):
    snapshot(cache, OLD, "config.json")
    assert hub.find_in_cache(repo_id) is None


def test_a_cache_that_is_no_folder(cache):
    (cache / "models--org--name").write_text("")
    assert hub.find_in_cache("org/name") is None


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({}, "~/.cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/x", "HF_HOME": "/h"}, "/h/hub"),
        ({"HF_HOME": "/h", "HUGGINGFACE_HUB_CACHE": "/old"}, "/old"),
        ({"HUGGINGFACE_HUB_CACHE": "/old", "HF_HUB_CACHE": "/new"}, "/new"),
        ({"HF_HOME": "~/mine"}, "~/mine/hub"),
        ({"HF_HOME": "$XDG_CACHE_HOME/mine", "XDG_CACHE_HOME": "/x"}, "/x/mine/hub"),
        ({"HF_HUB_CACHE": "", "HF_HOME": ""}, "~/.cache/huggingface/hub"),
    ],
)
def test_where_the_cache_lies(monkeypatch, variables, folder):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert hub.cache_folder() == Path(folder).expanduser()


def test_the_library_looks_in_the_same_place(cache, monkeypatch):
    pytest.importorskip("huggingface_hub")
    import importlib

    constants = importlib.import_module("huggingface_hub.constants")
    try:
        for name, value in (("HF_HUB_CACHE", None), ("HF_HOME", "~/here"), ("XDG_CACHE_HOME", "/there")):
            monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
            assert Path(importlib.reload(constants).HF_HUB_CACHE) == hub.cache_folder()
    finally:
        monkeypatch.undo()
        importlib.reload(constants)


@pytest.mark.parametrize(
    "text", ["org/name", "Qwen/Qwen3-0.6B", "meta-llama/Llama-3.1-8B", "a/b", "_x/y_", "a/" + "b" * 96]
)
def test_repository_ids(text):
    assert hub.looks_like_repo_id(text)


@pytest.mark.parametrize(
    "text",
    [
        *[
            "llama-8b",
            "a/b/c",
            "./a",
            "a/.b",
            "-a/b",
            "a/b-",
            "a--b/c",
            "a/b..c",
            "a/b.git",
            "a/",
            "/b",
            "é/b",
            "C:/x/y",
            "a\\b/c",
        ],
        *["specs/model.yaml", "x/config.json", "x/model.GGUF", "x/model.safetensors"],
        *("", "a b/c", "a/b\n", "a/" + "b" * 97),
    ],
)
def test_no_repository_ids(text):
    assert not hub.looks_like_repo_id(text)


def test_a_path_that_exists_is_no_repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert hub.looks_like_repo_id("org/name")
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert not hub.looks_like_repo_id("org/name")


@given(text=st.text("aZ9_-./é ", max_size=12) | st.from_regex(r"[\w.-]{1,98}/[\w.-]{1,98}", fullmatch=True))
def test_the_rules_are_those_of_the_library(text):
    library = pytest.importorskip("huggingface_hub.utils")
    try:
        library.validate_repo_id(text)
        valid = text.count("/") == 1
    except library.HFValidationError:
        valid = False
    if not text.lower().endswith((".yaml", ".yml", ".json", ".gguf", ".safetensors")) and not os.path.lexists(text):
        assert hub.looks_like_repo_id(text) == valid


FUZZ = settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(raw=st.binary(max_size=120), repo_id=st.just("org/name") | st.text(max_size=20))
def test_fuzz_a_cache(cache, raw, repo_id):
    (cache / "models--org--name" / "snapshots").mkdir(parents=True, exist_ok=True)
    set_main(cache, raw)
    assert hub.find_in_cache(repo_id) is None
    hub.looks_like_repo_id(repo_id)


class Reply:
    """As much of an HTTP answer as the library's exceptions ask for."""

    def __init__(self, status_code):
        self.status_code, self.headers, self.request = status_code, {}, None


@pytest.fixture
def library(monkeypatch):
    """huggingface_hub with its real exceptions where it is installed, else a stand-in with classes of the same names."""
    try:
        import huggingface_hub as module
        from huggingface_hub import errors
    except ImportError:
        module, errors = types.ModuleType("huggingface_hub"), stand_in_errors()
        monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    module_errors = types.SimpleNamespace(module=module, errors=errors)
    monkeypatch.setattr(module, "hf_hub_url", lambda repo, name, revision: f"{repo}/{revision}/{name}", raising=False)
    monkeypatch.setattr(module, "get_hf_file_metadata", lambda url, timeout: None, raising=False)
    monkeypatch.setattr(module, "hf_hub_download", lambda *_, **__: pytest.fail("nothing to download"), raising=False)
    return module_errors


def stand_in_errors():
    class HfHubHTTPError(OSError):
        def __init__(self, message, response):
            super().__init__(message)
            self.response = response

    def kind(name, *bases):
        return type(name, bases, {})

    found = {"HfHubHTTPError": HfHubHTTPError, "OfflineModeIsEnabled": kind("OfflineModeIsEnabled", ConnectionError)}
    found["RepositoryNotFoundError"] = kind("RepositoryNotFoundError", HfHubHTTPError)
    found["GatedRepoError"] = kind("GatedRepoError", found["RepositoryNotFoundError"])
    found["RevisionNotFoundError"] = kind("RevisionNotFoundError", HfHubHTTPError)
    entry = kind("EntryNotFoundError", Exception)
    found["RemoteEntryNotFoundError"] = kind("RemoteEntryNotFoundError", HfHubHTTPError, entry)
    found["LocalEntryNotFoundError"] = kind("LocalEntryNotFoundError", FileNotFoundError, entry)
    return types.SimpleNamespace(**found)


def fails_with(monkeypatch, library, error):
    def fail(url, timeout):
        raise error

    monkeypatch.setattr(library.module, "get_hf_file_metadata", fail)
    with pytest.raises(KvcalcError) as caught:
        hub.download("org/name")
    assert "\n" not in caught.value.message
    assert "org/name" in caught.value.message
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    ("name", "status", "says", "helps"),
    [
        ("GatedRepoError", 401, "gated", "accept its terms at https://huggingface.co/org/name"),
        ("GatedRepoError", 403, "gated", "hf auth login"),
        ("RepositoryNotFoundError", 401, "the hub has no org/name", "hf auth login"),
        ("RepositoryNotFoundError", 404, "the hub has no org/name", "check the spelling"),
        ("RevisionNotFoundError", 404, "no main branch", "by hand"),
        ("RemoteEntryNotFoundError", 404, "has no config.json", "weights"),
        ("HfHubHTTPError", 401, "denies access (401)", "hf auth login"),
        ("HfHubHTTPError", 403, "denies access (403)", "hf auth login"),
        ("HfHubHTTPError", 503, "answered 503", "later"),
    ],
)
def test_what_the_hub_refuses(monkeypatch, library, name, status, says, helps):
    error = fails_with(monkeypatch, library, getattr(library.errors, name)("some\nlong text", response=Reply(status)))
    assert says in error.message
    assert helps in error.hint


def test_no_network(monkeypatch, library):
    for kind in (library.errors.LocalEntryNotFoundError, ConnectionError):
        error = fails_with(monkeypatch, library, kind("name resolution failed"))
        assert "the hub cannot be reached" in error.message
    error = fails_with(monkeypatch, library, library.errors.OfflineModeIsEnabled("offline"))
    assert "HF_HUB_OFFLINE" in error.message


@pytest.mark.parametrize("client", ["httpx2", "httpx", "requests"])
def test_no_network_as_the_http_clients_say_it(monkeypatch, library, client):
    module = pytest.importorskip(client)
    kinds = ("ConnectError", "ConnectTimeout", "ProxyError", "ReadTimeout", "ConnectionError")
    for kind in [getattr(module, name) for name in kinds if hasattr(module, name)]:
        assert "the hub cannot be reached" in fails_with(monkeypatch, library, kind("no route")).message


def test_a_disk_that_is_full(monkeypatch, library, cache):
    error = fails_with(monkeypatch, library, OSError(28, "No space left on device"))
    assert "No space left on device" in error.message
    assert str(cache) in error.hint


@pytest.fixture
def served(monkeypatch, library, cache):
    """A hub that serves these files of one commit, and the revisions that were asked for."""
    files, asked = {"config.json", "model.safetensors.index.json"}, []

    def look_up(url, timeout):
        assert timeout <= 10
        if url.rpartition("/")[2] not in files:
            raise library.errors.RemoteEntryNotFoundError("none", response=Reply(404))

    def fetch(repo_id, name, revision, etag_timeout):
        asked.append((name, revision))
        path = cache / "models--org--name" / "snapshots" / NEW / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
        return str(path)

    monkeypatch.setattr(library.module, "get_hf_file_metadata", look_up)
    monkeypatch.setattr(library.module, "hf_hub_download", fetch)
    return types.SimpleNamespace(files=files, asked=asked)


def test_a_download_fetches_config_and_index_of_one_commit(served):
    folder = hub.download("org/name")
    assert sorted(one.name for one in folder.iterdir()) == ["config.json", "model.safetensors.index.json"]
    assert served.asked == [("config.json", "main"), ("model.safetensors.index.json", NEW)]
    assert hub.find_in_cache("org/name") == folder


def test_a_model_of_one_file_has_no_index(served):
    served.files.remove("model.safetensors.index.json")
    assert [one.name for one in hub.download("org/name").iterdir()] == ["config.json"]


def test_no_config(served):
    served.files.remove("config.json")
    with pytest.raises(KvcalcError, match=r"org/name has no config\.json"):
        hub.download("org/name")


def test_the_missing_extra_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(KvcalcError, match="huggingface_hub, which is not installed") as caught:
        hub.download("org/name")
    assert caught.value.hint == "pip install 'kvcalc[hub]'"


def test_no_download_of_what_is_no_id():
    with pytest.raises(KvcalcError, match="no repository of the hub"):
        hub.download("../secrets")


def test_the_cache_is_read_without_the_library(cache, monkeypatch):
    real = builtins.__import__

    def watch(name, *rest, **more):
        assert not name.startswith("huggingface_hub")
        return real(name, *rest, **more)

    snapshot(cache, OLD, "config.json")
    monkeypatch.setattr(builtins, "__import__", watch)
    assert hub.find_in_cache("org/name")


def test_a_dead_network_is_answered_within_seconds(monkeypatch, cache):
    """The real library against a port where nobody listens."""
    library = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(library.constants, "ENDPOINT", "http://127.0.0.1:9")
    # Read from the environment when it was imported, by a test that wants no network perhaps.
    monkeypatch.setattr(library.constants, "HF_HUB_OFFLINE", False)
    start = time.monotonic()
    with pytest.raises(KvcalcError, match="cannot be reached"):
        hub.download("org/name")
    assert time.monotonic() - start < 10
