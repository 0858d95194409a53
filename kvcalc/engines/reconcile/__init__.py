"""A start-up log held against what kvcalc computes, figure by figure."""
