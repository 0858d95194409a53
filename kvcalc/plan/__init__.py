"""Capacity plans as code: cases, limits, verdicts, locks and baselines."""
