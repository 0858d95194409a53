"""`python -m tests.oracle`: what transformers keeps; of vLLM and llama.cpp: `tests.oracle.vllm`, `tests.oracle.llama_cpp`."""

import sys

from tests.oracle import main

sys.exit(main())
