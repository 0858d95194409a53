"""kvcalc/engines/flags.yaml, made from the engines' own sources, which are read and never run.

    python -m tests.engine_flags VLLM_PACKAGE:... SGLANG_PACKAGE:... LLAMA_CPP/common/arg.cpp TENSORRT_LLM/commands/serve.py

Packages of vLLM and SGLang stand newest first, older ones behind a colon: what they had counts as a flag still.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml

HEAD = """\
# Names of the flags that an engine's server takes, without dashes in front: `values` take one value, `lists` several,
# `switches` none, `optional` one or none; `env` names variables that stand for a flag.
# Made by tests/engine_flags.py from the sources that `source` names.
"""
SOURCES = {
    "vllm": "vLLM 0.33.0, and 0.24.0, 0.19.1, 0.14.0, 0.10.0, 0.8.5, 0.6.6: engine/arg_utils.py, entrypoints/common/cli_args.py, config/",
    "sglang": "SGLang 0.5.23, and 0.5.17, 0.5.10, 0.5.4: srt/server_args.py, srt/arg_groups/fields/",
    "llama.cpp": "llama.cpp, as llama-cpp-python 0.3.36 carries it: common/arg.cpp",
    "tensorrt-llm": "TensorRT-LLM, tensorrt_llm/commands/serve.py at 00209af1 (the command `serve`)",
}
ONE_VALUE = {"allowed-headers", "allowed-methods", "allowed-origins", "custom-histogram-buckets", "middleware"}
"""Lists that vLLM takes as one JSON value, or one at a time: its parser says so, its annotations do not."""

OLLAMA = {
    "source": "ollama cmd/cmd.go, registerRunFlags, and older runCmd; parameters of a Modelfile need no list",
    "optional": "think",
    "switches": (
        "auto-approve-tools experimental experimental-yolo hidethinking insecure nowordwrap truncate verbose yolo"
    ),
    "values": "dimensions format keepalive",
}


def shape_of(annotation: str) -> str:
    """What an annotated field becomes on the command line: _compute_kwargs of vLLM, add_cli_args_from_dataclass."""
    if re.fullmatch(r"(bool \| str \| None|str \| bool \| None)", annotation):
        return "optional"
    if re.search(r"\bbool\b", annotation):
        return "switches"
    return "lists" if re.search(r"(^|\[| )(list|tuple|set|List)\[", annotation) else "values"


def classes_of(*paths: Path) -> dict[str, dict[str, str]]:
    """The annotated fields of every class in these files."""
    return {
        node.name: {
            one.target.id: ast.unparse(one.annotation)
            for one in node.body
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        }
        for path in paths
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    }


def shape_of_call(call: ast.Call) -> str:
    """Of an `add_argument` that says itself what it takes."""
    words = {one.arg: ast.unparse(one.value) for one in call.keywords if one.arg}
    if "StoreTrue" in words.get("action", "") or words.get("action", "").strip("'") in ("store_true", "store_const"):
        return "switches"
    if "BooleanOptionalAction" in words.get("action", "") or "StoreConst" in words.get("action", ""):
        return "switches"
    return {"'+'": "lists", "'*'": "lists", "'?'": "optional"}.get(words.get("nargs", ""), "values")


def calls_of(path: Path, name: str) -> Iterator[ast.Call]:
    """Every call of a method of that name that names flags."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == name and flags_of(node):
            yield node


def flags_of(call: ast.Call) -> list[str]:
    texts = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return [text for text in texts if text.startswith("-")]


def vllm(package: Path) -> Iterator[tuple[str, str]]:
    """Flags and their shapes: EngineArgs.add_cli_args, FrontendArgs and make_arg_parser."""
    configs = classes_of(*sorted(package.rglob("config/*.py")), *package.glob("config.py"))
    source = (package / "engine" / "arg_utils.py").read_text()
    holders = dict(re.findall(r"(\w+_kwargs) = get_kwargs\((\w+)\)", source))
    for call in calls_of(package / "engine" / "arg_utils.py", "add_argument"):
        shape = shape_of_call(call)
        spread = next((ast.unparse(one.value) for one in call.keywords if one.arg is None), "")
        if match := re.search(r"(\w+_kwargs)\['(\w+)'\]", spread):
            shape = shape_of(configs.get(holders[match[1]], {}).get(match[2], "str"))
        yield from ((flag, "values" if flag.lstrip("-") in ONE_VALUE else shape) for flag in flags_of(call))
    for path in package.rglob("entrypoints/common/cli_args.py"):
        for call in calls_of(path, "add_argument"):
            yield from ((flag, shape_of_call(call)) for flag in flags_of(call))
        fields = classes_of(path)
        for name, annotation in (fields["BaseFrontendArgs"] | fields["FrontendArgs"]).items():
            flag = name.replace("_", "-")
            yield f"--{flag}", "values" if flag in ONE_VALUE else shape_of(annotation)


def sglang(package: Path) -> Iterator[tuple[str, str]]:
    """Flags and their shapes: the namespaces of ServerArgs, and what add_cli_args adds by hand."""
    for path in sorted((package / "srt" / "arg_groups" / "fields").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.AnnAssign) and isinstance(node.annotation, ast.Subscript):
                yield from sglang_field(node)
    for call in calls_of(package / "srt" / "server_args.py", "add_argument"):
        yield from ((flag, shape_of_call(call)) for flag in flags_of(call))


def sglang_field(node: ast.AnnAssign) -> Iterator[tuple[str, str]]:
    assert isinstance(node.annotation, ast.Subscript)
    if ast.unparse(node.annotation.value) != "A" or not isinstance(node.annotation.slice, ast.Tuple):
        return
    kind, *rest = node.annotation.slice.elts
    words = {
        one.arg: one.value
        for call in rest
        if isinstance(call, ast.Call)
        for one in call.keywords
        if one.arg is not None
    }
    if "no_cli" in words:
        return
    shape = shape_of(ast.unparse(kind))
    if "type_parser" in words and shape == "lists":
        shape = "values"
    if "nargs" in words:
        shape = {"?": "optional"}.get(ast.literal_eval(words["nargs"]), "lists")
    if "action" in words:
        shape = "lists" if "LoRA" in ast.unparse(words["action"]) else "switches"
    own = (
        ast.literal_eval(words["cli_name"])
        if "cli_name" in words
        else f"--{ast.unparse(node.target).replace('_', '-')}"
    )
    for flag in [own, *(ast.literal_eval(words["aliases"]) if "aliases" in words else ())]:
        yield flag, shape
        if "action" in words and "BooleanOptional" in ast.unparse(words["action"]):
            yield flag.replace("--", "--no-", 1), shape


def llama_cpp(path: Path) -> Iterator[tuple[str, str]]:
    """Flags, their shapes, and `env` with the variable's name: common_params_parser_init."""
    for block in path.read_text().split("add_opt(common_arg(")[1:]:
        flags, _, rest = block.partition("}")
        names = re.findall(r'"(-[^"]+)"', flags)
        negative = re.match(r"\s*,\s*\{([^}]*)\}", rest)
        names += re.findall(r'"(-[^"]+)"', negative[1]) if negative else []
        takes = re.search(r"\[.*?\]\s*\(\s*common_params\s*&\s*[\w/* ]*\s*(,[^)]*)?\)", rest)
        value = bool(takes and takes[1] and "bool" not in takes[1])
        yield from ((name, "values" if value else "switches") for name in names)
        if variable := re.search(r'set_env\("(\w+)"\)', rest):
            yield f"{variable[1]}={names[-1].lstrip('-') if not negative else names[0].lstrip('-')}", "env"


def tensorrt_llm(path: Path) -> Iterator[tuple[str, str]]:
    """Flags and their shapes: the decorators of `serve`."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name == "serve":
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "option":
                    is_switch = any(one.arg == "is_flag" for one in call.keywords)
                    yield from ((flag, "switches" if is_switch else "values") for flag in flags_of(call))


def table(flags: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Names by shape, each a line of words; the first source that has a flag says its shape."""
    shapes: dict[str, set[str]] = {}
    for flag, shape in dict(reversed([*flags])).items():
        shapes.setdefault(shape, set()).add(flag.lstrip("-"))
    return {shape: " ".join(sorted(names)) for shape, names in sorted(shapes.items())}


def main(*paths: str) -> None:
    """Print the file."""
    readers = (vllm, sglang, llama_cpp, tensorrt_llm)
    tables: dict[str, dict[str, str]] = {
        name: {"source": SOURCES[name], **table(one for path in listed.split(":") for one in reader(Path(path)))}
        for name, reader, listed in zip(SOURCES, readers, paths, strict=True)
    }
    tables["ollama"] = OLLAMA
    print(HEAD + yaml.safe_dump(tables, width=118, sort_keys=False), end="")


if __name__ == "__main__":
    main(*sys.argv[1:])
