"""Other people's files as models: config.json, GGUF, safetensors, hub ids. Nothing in them is executed."""
