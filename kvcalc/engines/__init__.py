"""What an engine takes for a workload: rules of a version, each with its source. The need never changes."""
