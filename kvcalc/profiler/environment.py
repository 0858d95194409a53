"""Where a run took place: versions, platform, device, as the run file carries them."""

import datetime
import platform
import re
import sys
from collections.abc import Iterable, Iterator

from kvcalc import __version__
from kvcalc.profiler.documents import EnvironmentDocument


def plain_environment(device: str) -> EnvironmentDocument:
    """Everything that needs no device to be asked; the device fills in the rest."""
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["kvcalc", *_without_key(sys.argv[1:])]),
        "kvcalc": __version__,
        "python": platform.python_version(),
        "torch": None,
        "platform": platform.platform(),
        "device": device,
        "device_name": "",
        "threads": 0,
        "memory_bytes": None,
        "driver": None,
        "clocks_mhz": {},
        "power_watts": None,
        "throttled": [],
    }


def _without_key(arguments: Iterable[str]) -> Iterator[str]:
    """The command line with stars for a server's key: a run file is shown to others."""
    is_key = False
    for argument in arguments:
        yield "***" if is_key else re.sub("^--api-key=.*", "--api-key=***", argument, flags=re.DOTALL)
        is_key = argument == "--api-key"
