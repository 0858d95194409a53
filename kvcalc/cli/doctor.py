"""kvcalc doctor: what this installation has, for a bug report or a new machine."""

from kvcalc.cli.emit import emit
from kvcalc.cli.options import OutputOptions, verb


@verb
def doctor(output: OutputOptions) -> int:
    """Versions, extras, the catalogue, this machine's GPU and the hub's cache; exit 1 where something is amiss."""
    from kvcalc.doctor import doctor_report

    report = doctor_report()
    emit(report, output)
    return report.exit_code
