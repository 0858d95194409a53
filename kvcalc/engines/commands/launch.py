"""Which engine a command runs: programs, Python modules, container images, and shells inside of them."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from kvcalc.engines.commands.command import Devices, Invocation
from kvcalc.engines.commands.shell import Simple, read_shell
from kvcalc.engines.commands.words import Allowance, Word
from kvcalc.errors import KvcalcError, shorten

MOST_SHELLS = 8
"""Shells inside of shells."""

_PROGRAMS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("vllm", "serve"), "vllm"),
    (("sglang", "serve"), "sglang"),
    (("llama-server",), "llama.cpp"),
    (("llama-cli",), "llama.cpp"),
    (("llama-completion",), "llama.cpp"),
    (("trtllm-serve", "serve"), "tensorrt-llm"),
    (("trtllm-serve",), "tensorrt-llm"),
    (("ollama", "run"), "ollama"),
)
"""First words of a command, the longest first where one begins another."""

_MODULES = {
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.api_server": "vllm",
    "sglang.launch_server": "sglang",
}
"""What stands behind `python -m`."""

_RUN_OTHERS = (
    "sudo exec nohup time env then do else if while { ! $ nice ionice numactl taskset timeout stdbuf srun mpirun "
    "mpiexec uv uvx poetry conda pixi run trtllm-llmapi-launch tini dumb-init torchrun"
)
_WRAPPERS = frozenset(_RUN_OTHERS.split())
"""Words that run what stands behind them, with options of their own between."""

_SHELLS = frozenset({"bash", "sh", "zsh", "ash", "dash"})
_CONTAINERS = frozenset({"docker", "podman", "nerdctl"})

_OPTIONS = (
    "-d --detach -i --interactive -t --tty -it -ti -dit -itd -id -dt --rm --privileged --init --read-only -P "
    "--publish-all --no-healthcheck --oom-kill-disable --sig-proxy -q --quiet --replace"
)
_SWITCHES = frozenset(_OPTIONS.split())
"""Options of `docker run` without a value: docker/cli, cli/command/container/opts.go."""

_RELEASE = re.compile(r"v?(\d+\.\d+(?:\.\d+)*(?:\.?post\d+)?)")
_BUILD = re.compile(r"\bb\d{4,}\b")
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


class Setting(NamedTuple):
    """What surrounds a command: its variables, the image's release, devices, and where it stands."""

    env: Mapping[str, Word] = {}
    version: str = ""
    devices: Devices = Devices()
    where: str = ""
    folder: Path | None = None
    shells: int = 0
    allowance: Allowance | None = None


def invocations_in(commands: Sequence[Simple], setting: Setting) -> list[Invocation]:
    """Every run of an engine among these commands."""
    found: list[Invocation] = []
    for command in commands:
        inner = setting._replace(env={**setting.env, **command.env}, where=setting.where or f"line {command.line}")
        found += invocations_of(command.words, inner)
    return found


def invocations_of(words: Sequence[Word], setting: Setting) -> list[Invocation]:
    """The runs that one command is: none, one, or those of the shell text that it hands on."""
    is_wrapped = False
    for index, word in enumerate(words):
        name = _program(word.text)
        run = _container(name, words[index + 1 :], setting) if name in _CONTAINERS else None
        if run is None and name in _SHELLS:
            run = _shell(words[index + 1 :], setting)
        if run is None:
            run = _engine(words[index:], setting)
        if run is not None:
            return run
        if assigned := re.match(r"([A-Za-z_]\w*)=", word.text):
            value = Word(word.text[assigned.end() :], word.problem)
            setting = setting._replace(env={**setting.env, assigned[1]: value})
        is_wrapped = is_wrapped or name in _WRAPPERS
        if not is_wrapped:
            return []
    return []


def _program(text: str) -> str:
    return text.replace("\\", "/").rpartition("/")[2].removesuffix(".exe")


def _engine(words: Sequence[Word], setting: Setting) -> list[Invocation] | None:
    """The engine that these words begin with."""
    texts = (_program(words[0].text), *(word.text for word in words[1:3]))
    for program, engine in _PROGRAMS:
        if texts[: len(program)] == program:
            return [_invocation(engine, program[0], words[len(program) :], setting)]
    if not re.fullmatch(r"python[0-9.]*", texts[0]):
        return None
    for index, word in enumerate(words[1:], 1):
        if word.text == "-m" and index + 1 < len(words) and words[index + 1].text in _MODULES:
            module = words[index + 1].text
            return [_invocation(_MODULES[module], module, words[index + 2 :], setting)]
    return None


def _invocation(engine: str, program: str, arguments: Sequence[Word], setting: Setting) -> Invocation:
    devices = setting.devices
    for variable in _VISIBLE:
        word = setting.env.get(variable)
        if word is not None and not word.problem:
            named = Devices.named(word.text)
            devices = devices if named == Devices() else named
            break
    return Invocation(
        engine=engine,
        program=program,
        arguments=tuple(arguments),
        env=dict(setting.env),
        version=setting.version,
        devices=devices,
        where=setting.where,
        folder=setting.folder,
    )


def _shell(words: Sequence[Word], setting: Setting) -> list[Invocation] | None:
    """`bash -c TEXT`: the runs in that text."""
    for index, word in enumerate(words[:-1]):
        if re.fullmatch(r"-[a-z]*c", word.text):
            # What is not known in it stands there by its name still, and is not known to the shell inside either.
            return shell_runs(words[index + 1].text, setting)
    return None


def shell_runs(text: str, setting: Setting) -> list[Invocation]:
    """The runs in a shell's text, which may know the variables around it."""
    if setting.shells >= MOST_SHELLS:
        raise KvcalcError(f"more than {MOST_SHELLS} shells inside of each other", "name the command itself")
    known = {name: word.text for name, word in setting.env.items() if not word.problem}
    deeper = setting._replace(shells=setting.shells + 1)
    return invocations_in(read_shell(text, known, setting.allowance), deeper)


def _container(program: str, words: Sequence[Word], setting: Setting) -> list[Invocation] | None:
    """`docker run [OPTIONS] IMAGE [ARGUMENTS]`."""
    runs = [index for index, word in enumerate(words) if word.text == "run"]
    if not runs or any(word.text in ("compose", "model") for word in words[: runs[0]]):
        return None
    rest = list(reversed(words[runs[0] + 1 :]))
    env: dict[str, Word] = {}
    entrypoint: list[Word] | None = None
    devices = setting.devices
    while rest and rest[-1].text.startswith("-"):
        option = rest.pop()
        name, equals, joined = option.text.partition("=")
        if name in _SWITCHES and not equals:
            continue
        value = Word(joined, option.problem) if equals else rest.pop() if rest else Word("")
        if name in ("-e", "--env"):
            variable, _, text = value.text.partition("=")
            env[variable] = Word(text, value.problem)
        elif name == "--gpus":
            devices = _docker_devices(value.text)
        elif name == "--entrypoint":
            entrypoint = [value]
    if not rest:
        return None
    image = rest.pop()
    if image.problem:
        raise KvcalcError(f"the image of {program} run: {image.problem}", "write the image into the command")
    # Variables of the host do not reach a container.
    return image_runs(image.text, entrypoint, list(reversed(rest)), setting._replace(env=env, devices=devices))


def _docker_devices(text: str) -> Devices:
    """`all`, a number, or `device=0,1`, which docker wants in quotes of its own."""
    bare = text.strip("\"'")
    named = re.search(r"device=([^\"']+)", bare)
    if named:
        return Devices.named(named[1])
    number = re.search(r"(?:^|count=)(\d+)", bare)
    return Devices(count=int(number[1])) if number else Devices()


def image_runs(
    image: str, entrypoint: Sequence[Word] | None, arguments: Sequence[Word], setting: Setting
) -> list[Invocation]:
    """The runs of a container: by its entrypoint and arguments, or by what the image runs itself."""
    repository, _, tag = image.partition("@")[0].rpartition("/")[2].partition(":")
    path = image.casefold()
    # A mirror may stand before the name; the tag may be digits of a port's only where a slash follows it.
    setting = setting._replace(version=_version(path, tag))
    words = [*(entrypoint or ()), *arguments]
    if words and (found := invocations_of(words, setting)):
        return found
    own = None if entrypoint else _image_program(path, repository.casefold(), tag.casefold())
    return invocations_of([*map(Word, own.split()), *arguments], setting) if own else []


def _image_program(path: str, repository: str, tag: str) -> str | None:
    """The entrypoint of the images that the engines' projects publish."""
    if repository.startswith("vllm-openai") or repository == "vllm":
        return "vllm serve"
    if "llama.cpp" in path:
        return {"server": "llama-server", "light": "llama-cli"}.get(tag.partition("-")[0])
    return "ollama" if repository == "ollama" else None


def _version(path: str, tag: str) -> str:
    """The release that a tag names; none for `latest` and the like, and for images of another's making."""
    if "llama.cpp" in path:
        build = _BUILD.search(tag)
        return build[0] if build else ""
    match = _RELEASE.match(tag)
    is_known = any(name in path for name in ("vllm", "sglang", "tensorrt-llm"))
    return match[1] if match and is_known else ""


def only_one(found: Sequence[Invocation], wanted: str, what: str) -> Invocation:
    """The run that was meant; KvcalcError where there is none, or several and none was chosen."""
    chosen = [one for one in found if not wanted or wanted in (one.where, one.where.removeprefix("line "))]
    if len(chosen) == 1:
        return chosen[0]
    places = ", ".join(f"{one.where} ({one.engine})" for one in found)
    if not found:
        raise KvcalcError(
            f"{what} runs no engine that is known",
            "commands: vllm serve, python -m sglang.launch_server, llama-server, trtllm-serve, ollama run",
        )
    if not chosen:
        raise KvcalcError(f"{what} has no {shorten(wanted)!r}", f"it has {places}")
    where = chosen[0].where.removeprefix("line ")
    raise KvcalcError(f"{what} runs {len(chosen)} engines: {places}", f"name one: FILE#{where}, or the command itself")
