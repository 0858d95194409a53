"""Models on the Hugging Face hub: found in the local cache without network, downloaded only when asked.

Where the cache lies and how it is laid out: huggingface_hub 2.4, constants.py and its guide "Understand caching".
"""

import importlib
import os
import re
from pathlib import Path
from typing import Any

from kvcalc.errors import KvcalcError, shorten

CONFIG_NAME = "config.json"
INDEX_NAME = "model.safetensors.index.json"
NETWORK_SECONDS = 5

_PART = r"[A-Za-z0-9_](?:[\w.-]{0,94}[A-Za-z0-9_])?"
_REPO_ID = re.compile(rf"{_PART}/{_PART}", re.ASCII)
_FILE_ENDINGS = (".yaml", ".yml", ".json", ".gguf", ".safetensors")


def looks_like_repo_id(text: str) -> bool:
    """Whether `text` can be `org/name` by the rules of the hub, and is neither a path here nor named as a file."""
    if not _REPO_ID.fullmatch(text) or "--" in text or ".." in text or text.endswith(".git"):
        return False
    return not text.lower().endswith(_FILE_ENDINGS) and not os.path.lexists(text)


def cache_folder() -> Path:
    """The hub's cache, from the variables that huggingface_hub reads, in its order."""
    above = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or os.path.join(above, "huggingface")  # noqa: PTH118 (it may begin with $)
    chosen = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    # os.path leaves the home of an unknown user as it is written; Path.expanduser raises.
    return Path(os.path.expanduser(os.path.expandvars(chosen or home))) / ("" if chosen else "hub")  # noqa: PTH111


def find_in_cache(repo_id: str) -> Path | None:
    """The snapshot of a model in the local cache: that of `main`, else the newest with a config; None without."""
    if not _REPO_ID.fullmatch(repo_id):
        return None
    try:
        folder = cache_folder() / f"models--{repo_id.replace('/', '--')}"
        named = _main_snapshot(folder)
        if named and _is_model(named):
            return named
        found = [one for one in (folder / "snapshots").iterdir() if _is_model(one)]
        return max(found, key=lambda one: (one.stat().st_mtime_ns, one.name), default=None)
    except (OSError, ValueError, RuntimeError):
        return None  # a cache that cannot be read holds nothing for us


def _main_snapshot(folder: Path) -> Path | None:
    reference = folder / "refs" / "main"
    if not reference.is_file():
        return None
    with reference.open("rb") as stream:
        commit = stream.read(100).strip()
    return folder / "snapshots" / commit.decode() if re.fullmatch(rb"[0-9A-Za-z]+", commit) else None


def _is_model(snapshot: Path) -> bool:
    return (snapshot / CONFIG_NAME).is_file() or any(snapshot.glob("*.gguf"))


def download(repo_id: str) -> Path:
    """Fetch a model's config and, where there is one, its safetensors index; the folder that holds them."""
    if not looks_like_repo_id(repo_id):
        raise KvcalcError(f"{shorten(repo_id)!r} is no repository of the hub", "a hub id is ORG/NAME")
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError as error:
        message = f"{repo_id}: downloading needs huggingface_hub, which is not installed"
        raise KvcalcError(message, "pip install 'kvcalc[hub]'") from error
    config = _fetch(hub, repo_id, CONFIG_NAME, "main")
    if config is None:
        hint = "name a repository of weights for transformers, or download its .gguf and name that"
        raise KvcalcError(f"{repo_id} has no {CONFIG_NAME}", hint)
    _fetch(hub, repo_id, INDEX_NAME, config.parent.name)
    return config.parent


def _fetch(hub: Any, repo_id: str, name: str, revision: str) -> Path | None:
    """The file in the cache, fetched if need be; None where the repository has none such."""
    try:
        # hf_hub_download alone repeats a failed look-up for 23 s; this asks once and raises what is wrong.
        hub.get_hf_file_metadata(hub.hf_hub_url(repo_id, name, revision=revision), timeout=NETWORK_SECONDS)
        return Path(hub.hf_hub_download(repo_id, name, revision=revision, etag_timeout=NETWORK_SECONDS))
    except Exception as error:
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if "EntryNotFoundError" in kinds and "LocalEntryNotFoundError" not in kinds:
            return None
        raise _explain(error, kinds, repo_id) from error


# By the names of the library's exceptions, the narrower first: its classes moved between versions 0.30 and 2.4.
_REASONS = (
    (
        {"OfflineModeIsEnabled"},
        "{repo} is not in the local cache, and HF_HUB_OFFLINE forbids the network",
        "unset HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE, or name a local folder",
    ),
    (
        {"GatedRepoError"},
        "{repo} is gated, and you have no access",
        "accept its terms at https://huggingface.co/{repo}, then log in: hf auth login",
    ),
    (
        {"RepositoryNotFoundError"},
        "the hub has no {repo}, or it is private",
        "check the spelling; for a private one log in: hf auth login",
    ),
    ({"RevisionNotFoundError"}, "{repo} has no main branch", "download it by hand and name the folder"),
    (
        {"ConnectionError", "ConnectError", "TransportError", "Timeout", "TimeoutException", "LocalEntryNotFoundError"},
        "{repo} is not in the local cache, and the hub cannot be reached",
        "check the network, HF_ENDPOINT and proxy settings, or name a local folder",
    ),
)


def _explain(error: Exception, kinds: set[str], repo_id: str) -> KvcalcError:
    for names, message, hint in _REASONS:
        if names & kinds:
            return KvcalcError(message.format(repo=repo_id), hint.format(repo=repo_id))
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return KvcalcError(f"{repo_id}: the hub denies access ({status})", "log in: hf auth login")
    if status is not None:
        return KvcalcError(f"{repo_id}: the hub answered {status}", "try again later, or name a local folder")
    reason = shorten(getattr(error, "strerror", None) or str(error) or type(error).__name__, 160)
    return KvcalcError(f"{repo_id}: the download failed: {reason}", f"can {cache_folder()} be written to?")
