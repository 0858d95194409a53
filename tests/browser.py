"""Headless Chromium for tests: `dump_dom(html, tmp_path)` and `screenshot(html, tmp_path, file)`.

Without a browser a test is skipped and says so; with KVCALC_BROWSER=required, as CI sets it, it fails.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
REQUIRED = "KVCALC_BROWSER"


def browser() -> str:
    """The path of a Chromium; skips the test, or fails it where one is required."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is not None:
        return found
    said = f"no {' or '.join(NAMES)} on PATH"
    if os.environ.get(REQUIRED) == "required":
        pytest.fail(f"{said}, and {REQUIRED}=required")
    pytest.skip(said)


def dump_dom(html: str, folder: Path, fragment: str = "", budget_ms: int = 10_000) -> str:
    """The page's DOM as HTML, once its scripts ran."""
    return run_browser(html, folder, fragment, "--dump-dom", f"--virtual-time-budget={budget_ms}")


def screenshot(html: str, folder: Path, file: Path, size: tuple[int, int] = (1280, 1600), *flags: str) -> Path:
    """A picture of the page as a PNG of `size` pixels."""
    width, height = size
    run_browser(
        html,
        folder,
        "",
        f"--screenshot={file}",
        f"--window-size={width},{height}",
        "--virtual-time-budget=3000",
        *flags,
    )
    return file


def run_browser(html: str, folder: Path, fragment: str, *flags: str) -> str:
    """Standard output of one start; a second is tried where the first died or hung, which says nothing of the page."""
    page = folder / "page.html"
    page.write_text(html, encoding="utf-8")
    for attempt in (1, 2):
        command = [
            browser(),
            *_FLAGS,
            f"--user-data-dir={folder / f'profile-{attempt}'}",
            *flags,
            page.as_uri() + fragment,
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        except subprocess.SubprocessError as error:
            failure = error
            continue
        return done.stdout
    raise AssertionError(f"the browser failed twice: {failure}")


_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
)
