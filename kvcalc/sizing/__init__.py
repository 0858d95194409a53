"""How much a workload needs: arithmetic that everyone agrees on."""
