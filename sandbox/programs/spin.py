"""cuda-spin [SECONDS [MS]]: launch kernels of MS milliseconds one after another for SECONDS.

One line at the end: ``ran <seconds of kernels> in <seconds>: <percent> % of the card``. On the stand-in
driver the kernel's name says how long it runs; on a real card it would end at once.
"""

import ctypes
import sys
import time

_AHEAD = 32  # launches before it waits: enough that a busy machine does not let the card run dry
_PTX = """
.version 6.0
.target sm_50
.address_size 64
.visible .entry spin_{ms}ms() {{ ret; }}
"""


def main() -> None:
    """Spin on the first card."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    ms = int(sys.argv[2]) if len(sys.argv) > 2 else 2  # the second argument
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        code = getattr(cuda, name)(*arguments)
        if code:
            sys.exit(f"{name}: error {code}")

    call("cuInit", 0)
    context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuModuleLoadData", ctypes.byref(module), _PTX.format(ms=ms).encode() + b"\0")
    call("cuModuleGetFunction", ctypes.byref(function), module, f"spin_{ms}ms".encode())
    launches, began = 0, time.monotonic()
    while time.monotonic() - began < seconds:
        call("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, None, None, None)
        launches += 1
        if launches % _AHEAD == 0:
            call("cuCtxSynchronize")
    call("cuCtxSynchronize")
    took, ran = time.monotonic() - began, launches * ms / 1000
    sys.stdout.write(f"ran {ran:.3f} in {took:.3f}: {100 * ran / took:.1f} % of the card\n")


if __name__ == "__main__":
    main()
