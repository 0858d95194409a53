"""Grids of models, formats, GPUs, ranks, batches and contexts; and the questions that are searched for over them."""
