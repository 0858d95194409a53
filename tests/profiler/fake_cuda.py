"""torch.cuda and NVML made up, as far as the profiler asks: what it does with them is tested without a device."""

from types import SimpleNamespace

GIB = 2**30


class FakeStream:
    """A stream that notes who waits for whom."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def wait_stream(self, other):
        self.log.append(f"{self.name} waits for {other.name}")


class FakeCuda:
    """torch.cuda as far as the profiler asks: 80 GiB, 30 of them free, 8 reserved, 6 of those given out."""

    class OutOfMemoryError(RuntimeError):
        pass

    def __init__(self, count=2):
        self.log, self.count, self.now = [], count, 0.0
        cuda = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing
                self.is_done = False

            def record(self):
                self.at = cuda.now

            def synchronize(self):
                self.is_done = True

            def elapsed_time(self, end):
                assert end.is_done, "the end was not waited for"
                return end.at - self.at

        class CUDAGraph:
            def replay(self):
                cuda.log.append("replay")

        self.Event, self.CUDAGraph = Event, CUDAGraph
        self.main = FakeStream("main", self.log)

    def Stream(self):  # noqa: N802 - torch's name
        return FakeStream("side", self.log)

    def device_count(self):
        return self.count

    def set_device(self, index):
        self.log.append(f"device {index}")

    def current_stream(self):
        return self.main

    def stream(self, stream):
        return Noted(self.log, stream.name)

    def graph(self, graph):
        return Noted(self.log, "recording")

    def mem_get_info(self, index):
        return 30 * GIB, 80 * GIB

    def memory_reserved(self, index):
        return 8 * GIB

    def memory_allocated(self, index):
        return 6 * GIB

    def max_memory_allocated(self, index):
        return 7 * GIB

    def reset_peak_memory_stats(self, index):
        self.log.append(f"reset {index}")

    def get_device_properties(self, index):
        return SimpleNamespace(name="NVIDIA H200", total_memory=141 * GIB, uuid="1-2", L2_cache_size=50 * 2**20)


class Noted:
    """A context that notes when it begins and ends."""

    def __init__(self, log, name):
        self.log, self.name = log, name

    def __enter__(self):
        self.log.append(f"{self.name} begins")

    def __exit__(self, *_):
        self.log.append(f"{self.name} ends")


class FakeNvml:
    """A driver that answers, or that fails at the call named `fails`."""

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2

    def __init__(self, reasons=0, fails=None):
        self.reasons, self.fails, self.is_open, self.asked = reasons, fails, False, None

    def _answer(self, name, value):
        if name == self.fails:
            raise self.NVMLError("Driver/library version mismatch")
        return value

    def nvmlInit(self):  # noqa: N802 - the driver's name
        self.is_open = self._answer("nvmlInit", True)

    def nvmlShutdown(self):  # noqa: N802
        if not self.is_open:
            raise self.NVMLError("Uninitialized")
        self.is_open = False

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        self.asked = uuid
        return self._answer("nvmlDeviceGetHandleByUUID", "handle")

    def nvmlSystemGetDriverVersion(self):  # noqa: N802
        return self._answer("nvmlSystemGetDriverVersion", "570.86")

    def nvmlDeviceGetClockInfo(self, handle, clock):  # noqa: N802
        return self._answer("nvmlDeviceGetClockInfo", {1: 1980, 2: 3201}[clock])

    def nvmlDeviceGetPowerUsage(self, handle):  # noqa: N802
        return self._answer("nvmlDeviceGetPowerUsage", 412_500)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):  # noqa: N802
        return self._answer("nvmlDeviceGetCurrentClocksEventReasons", self.reasons)
