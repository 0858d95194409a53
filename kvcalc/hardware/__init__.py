"""On what it runs: accelerators as data, a source beside every number, and the entry of a running device."""
