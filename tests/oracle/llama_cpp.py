"""What llama.cpp itself prints of its caches when a context is made, asked of the build in the wheel `xllamacpp`.

    python -m tests.oracle.llama_cpp CASE.json...

A model is made of GGUF metadata alone, without weights and without memory, so a question takes milliseconds; the log
of the context is read. Each is asked in a process of its own, since llama.cpp ends it where it asserts. `shares` make
as many devices, which are the CPU under other names: `--tensor-split`. tests/golden/llama_cpp.json has metadata.
"""

import argparse
import ctypes
import faulthandler
import importlib
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from kvcalc.errors import KvcalcError

from . import read_config

TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30}

_POINTER, _INT, _UINT, _FLOAT, _BOOL = (
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.c_uint32,
    ctypes.c_float,
    ctypes.c_bool,
)


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class ModelParams(ctypes.Structure):
    """llama_model_params of include/llama.h."""

    _fields_: ClassVar = [
        *_fields(_POINTER, "devices overrides"),
        *_fields(_INT, "n_gpu_layers split_mode load_mode lazy_mode main_gpu"),
        *_fields(_POINTER, "tensor_split progress progress_data kv_overrides"),
        *_fields(_BOOL, "vocab_only check_tensors use_extra_bufts no_host no_alloc load_mtp"),
    ]


class ContextParams(ctypes.Structure):
    """llama_context_params of include/llama.h."""

    _fields_: ClassVar = [
        *_fields(_UINT, "n_ctx n_batch n_ubatch n_seq_max n_rs_seq n_outputs_max n_outputs_max_per_seq"),
        *_fields(_INT, "n_threads n_threads_batch ctx_type rope_scaling pooling attention flash_attn"),
        *_fields(_FLOAT, "rope_base rope_scale yarn_ext yarn_attn yarn_fast yarn_slow"),
        *_fields(_UINT, "yarn_ctx"),
        *_fields(_FLOAT, "defrag"),
        *_fields(_POINTER, "eval_callback eval_data"),
        *_fields(_INT, "type_k type_v"),
        *_fields(_POINTER, "abort_callback abort_data extra"),
        *_fields(_BOOL, "embeddings offload_kqv no_perf op_offload swa_full kv_unified"),
        *_fields(_POINTER, "samplers"),
        ("n_samplers", ctypes.c_size_t),
        *_fields(_POINTER, "ctx_other"),
    ]


class GgufParams(ctypes.Structure):
    """gguf_init_params of gguf.h."""

    _fields_: ClassVar = [*_fields(_BOOL, "no_alloc"), *_fields(_POINTER, "context")]


_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, _POINTER)
_TENSOR = ctypes.CFUNCTYPE(None, _POINTER, _POINTER)
_NAME = ctypes.CFUNCTYPE(_POINTER, _POINTER)

_CACHE = re.compile(
    r"size =\s*(?P<mib>[\d.]+) MiB \(\s*(?P<cells>\d+) cells,\s*(?P<layers>\d+) layers,\s*\d+/(?P<streams>\d+) seqs\), "
    r"K \((?P<k_type>\w+)\):\s*(?P<k_mib>[\d.]+) MiB, V \((?P<v_type>\w+)\):\s*(?P<v_mib>[\d.]+) MiB"
)
_RECURRENT = re.compile(
    r"size =\s*(?P<mib>[\d.]+) MiB \(\s*(?P<cells>\d+) cells,\s*(?P<layers>\d+) layers,\s*\d+ seqs[^)]*\), "
    r"R \(\w+\):\s*(?P<r_mib>[\d.]+) MiB, S \(\w+\):\s*(?P<s_mib>[\d.]+) MiB"
)
_LAYER = re.compile(r"(?:llama_kv_cache:|llama_memory_recurrent,) +(?:- )?layer +(?P<layer>\d+): dev = (?P<device>\S+)")


class Library:
    """The build inside the wheel, and the log that it writes."""

    def __init__(self) -> None:
        try:
            wheel = importlib.import_module("xllamacpp")
            importlib.import_module("gguf")
        except ImportError as error:
            raise KvcalcError(f"the oracle needs {error.name}", "pip install xllamacpp gguf") from error
        [path] = Path(str(wheel.__file__)).parent.glob("*.so")
        self.library = library = ctypes.CDLL(str(path))
        self.lines: list[str] = []
        # Held here, since C keeps only their addresses.
        self.held: list[Any] = [
            _LOG(lambda _level, text, _data: self.lines.append(text.decode(errors="replace"))),
            _TENSOR(lambda _tensor, _data: None),
        ]
        library.llama_log_set.argtypes = [_LOG, _POINTER]
        library.llama_model_default_params.restype = ModelParams
        library.llama_context_default_params.restype = ContextParams
        library.gguf_init_from_file.argtypes = [ctypes.c_char_p, GgufParams]
        library.llama_model_init_from_user.argtypes = [_POINTER, _TENSOR, _POINTER, ModelParams]
        library.llama_init_from_model.argtypes = [_POINTER, ContextParams]
        library.ggml_backend_dev_by_type.argtypes = [ctypes.c_int]
        library.ggml_backend_dev_buffer_type.argtypes = [_POINTER]
        for name in ("gguf_init_from_file", "llama_model_init_from_user", "llama_init_from_model"):
            getattr(library, name).restype = _POINTER
        for name in ("ggml_backend_dev_by_type", "ggml_backend_dev_buffer_type"):
            getattr(library, name).restype = _POINTER
        library.llama_log_set(self.held[0], None)
        library.llama_backend_init()

    def printed(self, case: dict[str, Any]) -> str | None:
        """The log of a context, None where llama.cpp refuses to make one."""
        params = self.library.llama_model_default_params()
        params.no_alloc, params.use_extra_bufts = True, False
        if case.get("shares"):
            self._spread(params, case["shares"])
        if case.get("n_gpu_layers") is not None:
            params.n_gpu_layers = case["n_gpu_layers"]
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            write_gguf(case["arch"], case["metadata"], file.name)
            metadata = self.library.gguf_init_from_file(file.name.encode(), GgufParams(True, None))
            model = self.library.llama_model_init_from_user(metadata, self.held[1], None, params)
        if not model:
            raise KvcalcError(f"llama.cpp makes no model of it: {''.join(self.lines)[-300:]}", "check the metadata")
        self.lines.clear()
        context = self.library.llama_init_from_model(model, self._context_params(case))
        log = "".join(self.lines)
        return log if context or _CACHE.search(log) or _RECURRENT.search(log) else None

    def _context_params(self, case: dict[str, Any]) -> ContextParams:
        params = self.library.llama_context_default_params()
        params.n_ctx, params.n_seq_max = case["n_ctx"], case.get("n_seq", 1)
        params.n_batch, params.n_ubatch = case.get("n_batch", 2048), case.get("n_ubatch", 512)
        params.n_rs_seq = case.get("n_rs_seq", 0)
        params.type_k, params.type_v = TYPES[case.get("type_k", "f16")], TYPES[case.get("type_v", "f16")]
        params.kv_unified, params.swa_full = case.get("unified", False), case.get("swa_full", False)
        params.flash_attn = int(case.get("flash_attn", 1))
        return params

    def _spread(self, params: ModelParams, shares: Sequence[float]) -> None:
        """Devices `D0`, `D1`... that are the CPU with a buffer type of its own each."""
        cpu = self.library.ggml_backend_dev_by_type(0)
        devices = [self._renamed(cpu, f"D{place}") for place in range(len(shares))]
        listed = (_POINTER * (len(devices) + 1))(*devices, None)
        # llama_max_devices() of them are read.
        split = (_FLOAT * max(len(shares), 128))(*shares)
        self.held += [listed, split]
        params.devices, params.tensor_split = ctypes.addressof(listed), ctypes.addressof(split)
        params.n_gpu_layers = -1

    def _renamed(self, device: int, name: str) -> int:
        """A copy of a ggml_backend_device: its first function names it, its seventh gives the buffer type."""
        text = ctypes.create_string_buffer(name.encode())
        named = _NAME(lambda _self: ctypes.addressof(text))
        buffers = _copy(self.library.ggml_backend_dev_buffer_type(device), 9)
        buffers[0] = ctypes.cast(named, _POINTER).value
        chosen = _NAME(lambda _self: ctypes.addressof(buffers))
        copy = _copy(device, 24)
        copy[0], copy[6] = ctypes.cast(named, _POINTER).value, ctypes.cast(chosen, _POINTER).value
        buffers[6] = ctypes.addressof(copy)
        self.held += [text, named, buffers, chosen, copy]
        return ctypes.addressof(copy)


def _copy(address: int, words: int) -> Any:
    return (_POINTER * words).from_buffer_copy((_POINTER * words).from_address(address))


def write_gguf(arch: str, metadata: dict[str, Any], path: str) -> None:
    """A GGUF of metadata alone; whole numbers are 32 bits wide."""
    writer = importlib.import_module("gguf").GGUFWriter(path, arch)
    writer.add_string("general.name", arch)
    writer.add_string("tokenizer.ggml.model", "no_vocab")
    adders: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    for key, value in metadata.items():
        adders[type(value)](key if key.startswith("tokenizer.") else f"{arch}.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """Every cache that llama.cpp prints, with its cells, layers, streams and MiB; `refused` where it makes none.

    `devices` of a cache counts its layers by the device on which they lie.
    """
    log = _asked_apart(case)
    said: dict[str, Any] = {"refused": log is None, "caches": [], "recurrent": []}
    devices: Counter[str] = Counter()
    for line in (log or "").splitlines():
        if layer := _LAYER.search(line):
            devices[layer["device"]] += 1
        for name, pattern in (("caches", _CACHE), ("recurrent", _RECURRENT)):
            if found := pattern.search(line):
                said[name].append({**_figures(found), "devices": dict(devices)})
                devices.clear()
    return said


def _figures(found: re.Match[str]) -> dict[str, Any]:
    return {
        name: text if name in {"k_type", "v_type"} else float(text) if "." in text else int(text)
        for name, text in found.groupdict().items()
    }


def _asked_apart(case: dict[str, Any]) -> str | None:
    """The log of a process of its own, up to where llama.cpp ended it."""
    library = _library()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        _answer_and_leave(library, case, write)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        sent = pipe.read()
    os.waitpid(child, 0)
    if not sent:
        raise KvcalcError("llama.cpp ended its process on this case", "check it with llama.cpp itself")
    said = json.loads(sent)
    if "error" in said:
        raise KvcalcError(said["error"], said["hint"])
    log: str | None = said["log"]
    return log


@cache
def _library() -> Library:
    return Library()


def _answer_and_leave(library: Library, case: dict[str, Any], write: int) -> None:
    faulthandler.disable()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    try:
        said: dict[str, Any] = {"log": library.printed(case)}
    except KvcalcError as error:
        said = {"error": error.message, "hint": error.hint}
    os.write(write, json.dumps(said).encode())
    os._exit(0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one answer a line; 2 where llama.cpp is not there, or makes nothing of a case."""
    parser = argparse.ArgumentParser("python -m tests.oracle.llama_cpp", description="what llama.cpp's own log says")
    parser.add_argument("cases", nargs="+", type=Path, metavar="CASE.json")
    try:
        for path in parser.parse_args(arguments).cases:
            print(json.dumps(answer(read_config(path, "give a case"))), flush=True)
    except KvcalcError as error:
        print(f"oracle: {error.message} ({error.hint})", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
