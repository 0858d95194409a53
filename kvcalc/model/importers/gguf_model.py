"""A GGUF header -> a document of the spec language, and the weights as they lie in the file.

Keys are those of gguf-py's constants.py; what no key states stands in gguf_arch.py. The dtype is
fp16: llama.cpp keeps K and V in f16 unless told otherwise (--cache-type-k, --cache-type-v), and
states in f32.
"""

import re
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import msgspec

from kvcalc.cache.component import HINT_MARK
from kvcalc.errors import SpecError, printable, shorten
from kvcalc.model.importers import gguf_arch as arch
from kvcalc.model.importers.gguf import GgufHeader
from kvcalc.model.importers.gguf_keys import MOST_LAYERS, Keys
from kvcalc.model.importers.gguf_layers import LayerReader
from kvcalc.model.importers.gguf_mlp import MlpReader
from kvcalc.model.resolve import ResolveError, resolve
from kvcalc.model.spec import Checkpoint, Document

Layer = dict[str, Any]

_LONGEST_PATTERN = 16


def gguf_document(header: GgufHeader, path: Path) -> dict[str, Any]:
    """The spec, as plain data, of the model that the header describes; SpecError where it describes none."""
    keys = Keys(header, shorten(str(path), 200))
    _refuse_other_files(keys)
    total, trunk = _layer_counts(keys)
    layers = _layers(keys, total, trunk)
    document: dict[str, Any] = {"name": _name(path), "source": _source(path, keys), **_sizes(keys)}
    document |= {"dtype": "fp16", "state_dtype": "fp32"}
    document |= _arranged(layers[:trunk], layers[trunk:])
    if keys.arch in arch.ENCODER_DECODER:
        document["encoder"] = [{"repeat": keys.need("block_count")}]
    assumed = {"cache": [*_unknown(keys), *dict.fromkeys(keys.assumed)], "other": list(dict.fromkeys(keys.notes))}
    document |= {"assumed": {part: lines for part, lines in assumed.items() if lines}} if any(assumed.values()) else {}
    _check(document, keys)
    return document


def gguf_checkpoint(header: GgufHeader) -> Checkpoint:
    """Bytes of all tensors, and the ggml types that they are in, largest share first."""
    shares: dict[str, int] = {}
    for tensor in header.tensors:
        shares[tensor.type] = shares.get(tensor.type, 0) + tensor.bytes
    formats = sorted(shares, key=lambda name: (-shares[name], name))
    files = f"{len(header.files)} parts" if len(header.files) > 1 else "one file"
    source = f"tensor infos of a GGUF v{header.version} in {files}"
    return Checkpoint(bytes=sum(shares.values()), formats=tuple(formats), source=source)


def _refuse_other_files(keys: Keys) -> None:
    kind = keys.header.metadata.get("general.type")
    what = arch.NOT_A_MODEL.get(keys.arch) or (arch.NOT_A_MODEL.get(kind) if isinstance(kind, str) else None)
    if what:
        keys.fail(f"this is {what}, which keeps no cache", "name the language model's .gguf")


def _layer_counts(keys: Keys) -> tuple[int, int]:
    """All layers of the file, and how many of them are not drafts (MTP)."""
    name = "decoder_block_count" if keys.count("decoder_block_count") else "block_count"
    total = keys.need(name)
    if total > MOST_LAYERS:
        keys.fail(f"{name} is {total:,}", f"a model has at most {MOST_LAYERS:,} layers")
    drafts = keys.count("nextn_predict_layers") or 0
    if drafts >= total:
        keys.fail(f"nextn_predict_layers {drafts} is not less than block_count {total}", "is the file damaged?")
    trunk = total - drafts
    if not drafts or not keys.by_layer:
        return total, trunk
    # The key may stand without the layers: they were left out of the file, or were never counted.
    if not any(keys.has(layer, "nextn") for layer in keys.by_layer):
        return (total, total) if keys.by_layer.get(total - 1) else (trunk, trunk)
    return total, trunk


def _layers(keys: Keys, total: int, trunk: int) -> list[Layer]:
    mixers, mlps = LayerReader(keys, total, trunk), MlpReader(keys, total)
    keeps = keys.arch not in arch.NO_CACHE and keys.raw("attention.causal") is not False
    if not keeps:
        keys.notes.append("an encoder, or a model without causal attention: it keeps no cache")
    crosses = keys.arch in arch.ENCODER_DECODER
    found = []
    for layer in range(total):
        mixer = mixers.mixer(layer) if keeps else []
        mixer += [{**one, "kind": "cross"} for one in mixer] if crosses else []
        mlp = mlps.mlp(layer)
        one = {"mixer": mixer[0] if len(mixer) == 1 else mixer} if mixer else {}
        found.append(one | ({"mlp": mlp} if mlp else {}))
    return found


def _sizes(keys: Keys) -> dict[str, Any]:
    """What stands once for the model; a size that is missing or 0 is left out."""
    sizes = {name: keys.count(key) for name, key in _SIZES.items()}
    vocabulary = keys.header.lengths.get("tokenizer.ggml.tokens")
    sizes["vocab_size"] = sizes["vocab_size"] or vocabulary
    names = {tensor.name for tensor in keys.header.tensors}
    tied = {"tie_embeddings": True} if "token_embd.weight" in names and "output.weight" not in names else {}
    return {name: size for name, size in sizes.items() if size} | tied


_SIZES = {"max_context": "context_length", "hidden_size": "embedding_length", "vocab_size": "vocab_size"}


def _arranged(layers: list[Layer], drafts: list[Layer]) -> dict[str, Any]:
    """Layers as runs of named blocks, so that a spec shows the pattern rather than every layer."""
    names: dict[bytes, str] = {}
    blocks: dict[str, Layer] = {}
    row = []
    for layer in [*layers, *drafts]:
        name = names.setdefault(msgspec.json.encode(layer), _label(len(names)))
        blocks[name] = layer
        row.append(name)
    parts = {"layers": row[: len(layers)], "draft_layers": row[len(layers) :]}
    if len(blocks) == 1:
        return {part: [{"repeat": len(some), **layers[0]}] for part, some in parts.items() if some}
    return {"blocks": blocks} | {part: _runs(some) for part, some in parts.items() if some}


def _label(number: int) -> str:
    return ascii_lowercase[number] if number < len(ascii_lowercase) else f"layer-{number}"


def _runs(row: list[str]) -> list[Layer]:
    """The row as patterns and how often each repeats, the one that covers most at every place."""
    found: list[Layer] = []
    at = 0
    while at < len(row):
        options = ((_repeats(row, at, length), length) for length in range(1, _LONGEST_PATTERN + 1))
        repeat, length = max(options, key=lambda one: (one[0] * one[1] if one[0] > 1 else one[1] == 1, -one[1]))
        names = row[at : at + length]
        found.append({"repeat": repeat, "pattern": "".join(names) if max(map(len, names)) == 1 else names})
        at += repeat * length
    return found


def _repeats(row: list[str], at: int, length: int) -> int:
    """How often the `length` items at `at` stand there one after another."""
    pattern, count = row[at : at + length], 1
    if len(pattern) < length:
        return 0
    while row[at + count * length : at + (count + 1) * length] == pattern:
        count += 1
    return count


def _unknown(keys: Keys) -> list[str]:
    """What is taken on trust: an architecture that is not known, and keys about caches that are not understood."""
    found = []
    if keys.arch not in arch.KNOWN | set(arch.SLIDING) | set(arch.FULL_INTERVAL):
        found.append(
            f"architecture {_clean(keys.arch)} is not known: its keys are taken to mean what they mean elsewhere"
        )
    start = f"{keys.arch}."
    for key in keys.header.metadata:
        name = key.removeprefix(start)
        about_caches = key.startswith(start) and name.startswith(arch.CACHE_GROUPS)
        if about_caches and name not in arch.UNDERSTOOD | arch.HARMLESS:
            found.append(f"{_clean(name)} is not understood and changes nothing here")
    return found


_SPLIT = re.compile(r"-\d{5}-of-\d{5}$")


def _name(path: Path) -> str:
    stem = _SPLIT.sub("", path.name.removesuffix(".gguf"))
    return _clean(stem, 100).strip() or "model"


def _source(path: Path, keys: Keys) -> str:
    return f"{_clean(path.name, 200)} (general.architecture = {_clean(keys.arch)})"


def _clean(text: str, most: int = 60) -> str:
    """The text on one line in printable characters: it will stand on somebody's terminal."""
    return shorten(printable(text), most)


def _check(document: dict[str, Any], keys: Keys) -> None:
    """Refuse here, with the file's name, what the spec language would refuse."""
    try:
        resolve(msgspec.convert(document, Document))
    except msgspec.ValidationError as error:
        message, _, hint = str(error).partition(HINT_MARK)
        raise SpecError(f"{keys.where}: {message}", hint or "is the file damaged?") from error
    except ResolveError as error:
        raise SpecError(f"{keys.where}: {error.message}", error.hint) from error
