"""What `kvcalc throughput` was asked, whole: so that others can ask the same, and vary it."""

from functools import cached_property

import msgspec

from kvcalc.model.spec import ModelSpec
from kvcalc.speed.calibrated import CalibrationFile
from kvcalc.speed.setting import Use
from kvcalc.speed.throughput import Load, Throughput, estimate


class Question(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A model on a GPU under a load; `force` leaves out whether the sequences fit."""

    spec: ModelSpec
    gpu: str
    load: Load
    use: Use
    engine: str | None = None
    served: bool = False
    calibration: CalibrationFile | None = None
    force: bool = False

    @cached_property
    def answer(self) -> Throughput:
        """How fast that is; KvcalcError as `estimate` has it, NoRoomError among them."""
        calibration = self.calibration
        return estimate(
            self.spec,
            self.gpu,
            self.load,
            self.use,
            engine=calibration.engine_for(self.engine) if calibration else self.engine,
            served=self.served,
            scales=calibration.scales if calibration else None,
            force=self.force,
        )
