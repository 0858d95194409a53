"""The constants of the speed model as a table of docs/throughput.md."""

from kvcalc.speed.machine import load_constants


def constants_table() -> str:
    """Every free constant with what it is of and where it comes from, then the GPUs with op tables."""
    constants = load_constants()
    rows = ["| constant | value | of | from |", "|---|---|---|---|"]
    rows += [f"| `{name}` | {one.value:g} | {one.of} | {one.source} |" for name, one in constants.free.items()]
    for engine, own in constants.engines.items():
        layer = own.free.get("layer_us")
        if layer is not None:
            rows.append(f"| `layer_us` of {engine} | {layer:g} | a layer | {own.source} |")
    rows += ["", "| GPU with op tables | GPUs that take its shares |", "|---|---|"]
    rows += [f"| `{name}` | {', '.join(constants.families.get(name, []))} |" for name in constants.gpus]
    return "\n".join(rows) + "\n"
