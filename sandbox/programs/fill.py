"""cuda-fill [MiB a step]: allocate on the card until it refuses, say what was had, give it back.

One line at the end: ``allocated <bytes> bytes, then <error name>; gave them back, and sees a card of <total>
bytes, <free> of them free``.
"""

import ctypes
import sys

_ENOUGH = 1 << 20  # steps; a driver that never refuses must not hold us for ever


def main() -> None:
    """Fill the first card."""
    step = int(sys.argv[1]) << 20 if len(sys.argv) > 1 else 256 << 20
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        code = getattr(cuda, name)(*arguments)
        if code:
            sys.exit(f"{name}: {error_name(cuda, code)}")

    call("cuInit", 0)
    context = ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    held: list[ctypes.c_uint64] = []
    code = 0
    while not code and len(held) < _ENOUGH:
        pointer = ctypes.c_uint64()
        code = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(step))
        if not code:
            held.append(pointer)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    for pointer in held:
        call("cuMemFree_v2", pointer)
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    sees = f"gave them back, and sees a card of {total.value} bytes, {free.value} of them free"
    sys.stdout.write(f"allocated {len(held) * step} bytes, then {error_name(cuda, code)}; {sees}\n")


def error_name(cuda: ctypes.CDLL, code: int) -> str:
    """``CUDA_ERROR_OUT_OF_MEMORY`` for 2."""
    text = ctypes.c_char_p()
    if cuda.cuGetErrorName(code, ctypes.byref(text)) or text.value is None:
        return f"error {code}"
    return text.value.decode()


if __name__ == "__main__":
    main()
