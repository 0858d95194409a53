"""kvcalc doctor: what it finds, and what it advises where something is not there."""

import subprocess

import pytest

from kvcalc import doctor
from kvcalc.cli.app import main
from kvcalc.errors import KvcalcError, SpecError
from kvcalc.hardware import detect


def found(name):
    return next(one for one in doctor.doctor_report().document["findings"] if one["name"] == name)


def test_a_sound_installation_is_healthy():
    report = doctor.doctor_report()
    assert (report.exit_code, report.document["healthy"]) == (0, True)
    assert found("catalogue")["state"] == "ok"
    assert "typer" in found("packages")["found"]


def test_an_extra_that_is_absent_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "plotly" else "1.0")
    absent = found("extra report")
    assert (absent["state"], absent["advice"]) == ("absent", "pip install 'kvcalc[report]'")
    assert "plotly missing" in absent["found"]
    assert doctor.doctor_report().exit_code == 0


def test_a_package_that_is_missing_is_a_problem(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "pandas" else "1.0")
    assert found("packages")["state"] == "problem"
    assert main(["doctor"]) == 1
    assert "something is amiss" in capsys.readouterr().out


def test_a_broken_catalogue_is_a_problem(monkeypatch):
    monkeypatch.setattr(doctor, "validate", lambda paths: (1, 0, [SpecError("a.yaml:3: no", "mend it")]))
    assert found("catalogue") == {"name": "catalogue", "state": "problem", "found": "a.yaml:3: no", "advice": "mend it"}


def test_the_gpu_is_what_the_driver_prints(monkeypatch):
    monkeypatch.setattr(detect, "_run", lambda command: "NVIDIA H100 80GB HBM3, 81559, Disabled\n")
    assert found("GPU")["found"] == "NVIDIA H100 80GB HBM3, 79.65 GiB, listed as h100-sxm5-80gb"
    monkeypatch.setattr(detect, "_run", lambda command: "NVIDIA Z9, 1024, Disabled\n" if "nvidia" in command[0] else "")
    assert "not listed" in found("GPU")["found"]
    monkeypatch.setattr(detect, "_run", lambda command: "")
    assert found("GPU")["state"] == "absent"
    monkeypatch.setattr(detect, "_run", lambda command: "NVIDIA H100 80GB HBM3, 81559, Enabled\n")
    assert found("GPU")["state"] == "problem"


def test_the_hub_cache_is_counted(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    for name in ("models--a--b", "models--a--c", "datasets--a--d"):
        (tmp_path / name).mkdir()
    assert found("hub cache")["found"] == f"2 models in {tmp_path}"
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "none"))
    assert found("hub cache")["state"] == "absent"


def test_a_driver_that_does_not_answer_is_its_own_error(monkeypatch):
    def gone(*_, **__):
        raise subprocess.TimeoutExpired("nvidia-smi", 20)

    monkeypatch.setattr(subprocess, "run", gone)
    with pytest.raises(KvcalcError) as raised:
        detect.detect()
    assert not isinstance(raised.value, detect.NoDriverError)
    assert found("GPU")["state"] == "problem"


def test_the_home_of_nobody_is_a_cache_that_is_absent(kvcalc, monkeypatch):
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", "~nobody-of-that-name/hf")
    found = {one["name"]: one for one in kvcalc("doctor", "--format", "json").json["findings"]}
    assert found["hub cache"]["state"] == "absent"
    assert "~nobody-of-that-name/hf/hub" in found["hub cache"]["found"]
