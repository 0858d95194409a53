"""The wheel works away from the checkout: it carries the catalogue and what pages need, and sizes a model. `python tests/wheel.py FOLDER`."""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


def main(folder: str) -> None:
    """Unpack the wheel of `folder` elsewhere, size a model with it, and write a panel."""
    (wheel,) = Path(folder).glob("kvcalc-*.whl")
    with tempfile.TemporaryDirectory() as elsewhere:
        zipfile.ZipFile(wheel).extractall(elsewhere)
        code = f"import sys; sys.path.insert(0, {elsewhere!r}); import kvcalc; print(kvcalc.__file__)"
        code += "; print(kvcalc.size(kvcalc.load('llama-8b'), 8192, 32).total_bytes)"
        code += "; from kvcalc.render.whatif import panel"
        code += "; assert 'kvcalcUnits' in panel({'cases': [], 'most_tokens': 1, 'most_bytes': 1})"
        out = subprocess.run(
            [sys.executable, "-c", code], cwd=elsewhere, capture_output=True, text=True, check=True
        ).stdout
    where, total = out.split()
    assert where.startswith(elsewhere), where
    assert total == str(32 * 2**30), total
    print(f"{wheel.name} sizes llama-8b from {len(zipfile.ZipFile(wheel).namelist())} files")


if __name__ == "__main__":
    main(sys.argv[1])
