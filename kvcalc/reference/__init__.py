"""It runs: decoder layers built from a ModelSpec, in torch, each cache kind with a real, preallocated cache."""
