"""Where a run took place: versions, platform, device, as the run file carries them."""

import datetime
import platform
import sys

from kvcalc import __version__
from kvcalc.profiler.documents import EnvironmentDocument


def plain_environment(device: str) -> EnvironmentDocument:
    """Everything that needs no device to be asked; the device fills in the rest."""
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": "kvcalc " + " ".join(sys.argv[1:]),
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
