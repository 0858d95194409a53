"""It is measured: prefill and decode of the reference layers, held against the prediction."""
