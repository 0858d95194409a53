"""vLLM's planning, held against its own planning code: golden/vllm.json."""

import json

import pytest
from conftest import GOLDEN
from vllm_cases import answer

CASES = json.loads((GOLDEN / "vllm.json").read_text())["cases"]


@pytest.mark.parametrize("name", CASES)
def test_plans_what_vllm_plans(name):
    case, expected = CASES[name]["case"], dict(CASES[name]["answer"])
    planned = answer(case)
    if "error" in expected:
        assert f"the estimated maximum model length is {planned.pop('longest')}." in expected.pop("error")
    assert planned == expected
