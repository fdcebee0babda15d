"""nvidia-smi, as far as a table goes: the cards that NVML shows this process, their memory and their load."""

import ctypes
import sys


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


def main() -> None:
    """Print a row a card."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")

    def call(name: str, *arguments: object) -> int:
        return int(getattr(nvml, name)(*arguments))

    code = call("nvmlInit_v2")
    if code:
        sys.exit(f"NVML does not start: error {code}")
    version, count = ctypes.create_string_buffer(96), ctypes.c_uint()
    call("nvmlSystemGetDriverVersion", version, 96)
    call("nvmlDeviceGetCount_v2", ctypes.byref(count))
    width = 66
    out = sys.stdout
    out.write(f"+{'-' * width}+\n| {f'Driver {version.value.decode()}':<{width - 2}} |\n+{'-' * width}+\n")
    for index in range(count.value):
        device, name = ctypes.c_void_p(), ctypes.create_string_buffer(96)
        memory, busy = _Memory(), _Utilization()
        call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(device))
        call("nvmlDeviceGetName", device, name, 96)
        call("nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
        load = "N/A" if call("nvmlDeviceGetUtilizationRates", device, ctypes.byref(busy)) else f"{busy.gpu} %"
        sizes = f"{memory.used >> 20}MiB / {memory.total >> 20}MiB"
        row = f"{index}  {name.value.decode():<30} {sizes:>22} {load:>6}"
        out.write(f"| {row:<{width - 2}} |\n")
    out.write(f"+{'-' * width}+\n")
    call("nvmlShutdown")


if __name__ == "__main__":
    main()
