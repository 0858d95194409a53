"""How fast: seconds of prefill and decode from a model, a GPU and a workload."""
