"""Documents of `kvcalc check`, written by hand: no part of the calculator makes them."""

from typing import Any

from kvcalc.plan.documents import CheckDocument, CheckedCaseDocument, FigureDocument, VerdictDocument


def figure(value: float, low: float | None = None, high: float | None = None, **more: Any) -> FigureDocument:
    bounds = {"low": value if low is None else low, "high": value if high is None else high}
    basis = "exact" if low is None else "calibrated"
    return {"value": value, **bounds, "unit": "bytes", "basis": basis, "better": "lower", **more}  # type: ignore[typeddict-item]


def verdict(limit: str = "max_kv_cache", *, passed: bool = True, **more: Any) -> VerdictDocument:
    made = {
        "file": "kvcalc.yaml",
        "line": 7,
        "limit": limit,
        "bound": 2**30,
        "value": 2**29 if passed else 2**31,
        "unit": "bytes",
        "margin": 0.5 if passed else -1.0,
        "passed": passed,
        "certain": True,
        "basis": "exact",
        "rule": "the bytes of all caches",
        "change": None if passed else "--kv-dtype fp8",
    }
    return {**made, **more}  # type: ignore[typeddict-item]


def case(name: str = "chat", *verdicts: VerdictDocument, **more: Any) -> CheckedCaseDocument:
    made = {
        "file": "kvcalc.yaml",
        "line": 4,
        "name": name,
        "model": "llama-3.1-8b",
        "engine": "vllm@0.33.0",
        "gpu": "h100-sxm5-80gb",
        "gpus": 1,
        "settings": {"ctx": 8192},
        "figures": {},
        "verdicts": list(verdicts),
        "error": None,
        "notes": [],
    }
    return {**made, **more}  # type: ignore[typeddict-item]


def failing(
    name: str = "lost", message: str = "unknown model 'lama'", hint: str = "did you mean llama?"
) -> CheckedCaseDocument:
    return case(name, error={"file": "kvcalc.yaml", "line": 9, "message": message, "hint": hint})


def document(*cases: CheckedCaseDocument, **more: Any) -> CheckDocument:
    passed = all(one["error"] is None and all(it["passed"] for it in one["verdicts"]) for one in cases)
    made = {
        "schema": "kvcalc.check/1",
        "kvcalc": "0.1.0",
        "plan": "kvcalc.yaml",
        "passed": passed,
        "cases": list(cases),
        "baseline": None,
        "lock": None,
        "notes": [],
    }
    return {**made, **more}  # type: ignore[typeddict-item]


def baseline(*moved: dict[str, Any], fail_on: float = 0.05, **more: Any) -> dict[str, Any]:
    made = {
        "file": "main.json",
        "kvcalc": "0.1.0",
        "fail_on": fail_on,
        "moved": list(moved),
        "newly_broken": [],
        "added_cases": [],
        "removed_cases": [],
        "passed": True,
    }
    return {**made, **more}


def moved(
    change: str = "worse", before: float | None = 100, now: float | None = 120, name: str = "chat"
) -> dict[str, Any]:
    ratio = now / before if before and now is not None else None
    return {
        "case": name,
        "figure": "kv_cache",
        "unit": "bytes",
        "before": before,
        "now": now,
        "ratio": ratio,
        "change": change,
    }
