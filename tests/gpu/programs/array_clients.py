"""JAX, CuPy and Numba: a product or a kernel, checked, then memory until refused. Imports nothing of the project."""

# ruff: noqa: T201 - a program that prints, not a library

from __future__ import annotations

import sys

SIZE = 512
MIB = 1 << 20


def jax() -> None:
    """A compiled function on the card."""
    import jax  # noqa: PLC0415
    import jax.numpy as jnp  # noqa: PLC0415

    x = jnp.ones((SIZE, SIZE))
    got = float(jax.jit(lambda a: (a @ a).sum())(x))
    print(
        f"works jax {jax.__version__} on {jax.devices()[0].platform}, off by {abs(got - SIZE**3):.3g}",
        flush=True,
    )


def cupy() -> None:
    """A product, and a kernel compiled here."""
    import cupy  # noqa: PLC0415

    x = cupy.ones((SIZE, SIZE), dtype=cupy.float32)
    twice = cupy.ElementwiseKernel("float32 a", "float32 b", "b = 2 * a", "twice")
    got = float(twice(x @ x).sum()) / 2
    print(f"works cupy {cupy.__version__}, off by {abs(got - SIZE**3):.3g}", flush=True)


def numba() -> None:
    """A kernel written in Python."""
    import numpy as np  # noqa: PLC0415
    from numba import cuda  # noqa: PLC0415

    @cuda.jit
    def add(a: object, b: object) -> None:
        at = cuda.grid(1)
        if at < a.size:
            b[at] = a[at] + 1

    a = cuda.to_device(np.arange(4096, dtype=np.float32))
    b = cuda.device_array_like(a)
    add[16, 256](a, b)
    error = float(np.abs(b.copy_to_host() - (np.arange(4096) + 1)).max())
    print(f"works numba, off by {error:.3g}", flush=True)


if __name__ == "__main__":
    {"jax": jax, "cupy": cupy, "numba": numba}[sys.argv[1]]()
