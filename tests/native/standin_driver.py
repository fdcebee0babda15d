"""For programs that run on the stand-in: the driver API by ctypes, resolved as the CUDA runtime resolves it."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p

__all__ = [
    "MIB", "Driver", "Error", "byref", "c_char_p", "c_float", "c_int", "c_size_t", "c_uint", "c_uint64", "c_void_p",
    "ctypes",
]  # fmt: skip
MIB = 1 << 20
# Names whose form changed with 13.0: the older form is used here, on every driver.
NEWEST = {
    "cuCtxCreate": 3020,
    "cuCtxSynchronize": 2000,
    "cuMemPrefetchAsync": 8000,
    "cuStreamGetCaptureInfo": 10010,
}


class Error(Exception):
    """A CUresult that is not 0."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name} returned {code}")
        self.code = code


class Driver:
    """``driver.cuMemAlloc(byref(p), 4096)`` calls the newest form; ``driver.code("cuMemAlloc", ...)`` returns its code."""

    def __init__(self, *, context: bool = True) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        version = c_int()
        self.library.cuDriverGetVersion(byref(version))
        self.version = version.value
        if context:
            self.cuInit(0)
            self.context = self.out(c_void_p, "cuDevicePrimaryCtxRetain", 0)
            self.cuCtxSetCurrent(c_void_p(self.context))

    def address(self, name: str, version: int | None = None, flags: int = 0) -> tuple[int | None, int, int]:
        """(pointer, status, result) of the resolver's second form."""
        found, status = c_void_p(), c_int(-1)
        wanted = version if version is not None else NEWEST.get(name, self.version)
        result = self.library.cuGetProcAddress_v2(
            name.encode(), byref(found), c_int(wanted), c_uint64(flags), byref(status)
        )
        return found.value, status.value, result

    def code(self, name: str, *arguments: object, version: int | None = None, flags: int = 0) -> int:
        pointer, _, _ = self.address(name, version, flags)
        assert pointer, f"the driver has no {name}"
        return ctypes.CFUNCTYPE(c_int)(pointer)(*arguments)

    def __getattr__(self, name: str) -> object:
        def call(*arguments: object) -> None:
            code = self.code(name, *arguments)
            if code:
                raise Error(name, code)

        return call

    def out(self, kind: type, name: str, *arguments: object) -> int:
        """The value that a call writes to its first parameter."""
        value = kind()
        getattr(self, name)(byref(value), *arguments)
        return value.value

    def free(self) -> int:
        left, total = c_size_t(), c_size_t()
        self.cuMemGetInfo(byref(left), byref(total))
        return left.value

    def alloc(self, size: int) -> c_uint64:
        return c_uint64(self.out(c_uint64, "cuMemAlloc", c_size_t(size)))

    def kernel(self, name: str) -> c_void_p:
        module = c_void_p(self.out(c_void_p, "cuModuleLoadData", c_char_p(b"\x7fELF any binary")))
        return c_void_p(self.out(c_void_p, "cuModuleGetFunction", module, c_char_p(name.encode())))

    def stream(self, flags: int = 1) -> c_void_p:
        return c_void_p(self.out(c_void_p, "cuStreamCreate", c_uint(flags)))

    def launch(self, function: c_void_p, stream: c_void_p | None = None, grid: int = 64) -> None:
        self.cuLaunchKernel(function, grid, 1, 1, 32, 1, 1, 0, stream, None, None)

    def event(self) -> c_void_p:
        return c_void_p(self.out(c_void_p, "cuEventCreate", c_uint(0)))

    def milliseconds(self, start: c_void_p, finish: c_void_p) -> float:
        value = c_float()
        self.cuEventElapsedTime(byref(value), start, finish)
        return value.value
