"""`helm test`, from end to end: this runs in a container that asked for the smallest share of a card.

That it runs at all says that the scheduler found a card, the agent granted it and the container was proven
to be the one meant. It then asks the driver for the card's memory, which must be the share's. No context is
made: a card that others use to the last byte does not mind.

Argument: the bytes of the share; 0 for a whole card. Prints a line each; 1 if one fails.
"""

import ctypes
import os
import sys


def told(name: str, text: str, *, good: bool) -> bool:
    """Print the line; returns ``good``."""
    print(f"{'ok  ' if good else 'FAIL'} {name}: {text}")
    return good


def opened() -> ctypes.CDLL | None:
    """The driver, ready to be asked."""
    name = "the driver answers in the container"
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        told(name, f"{error}; `gpu-manager doctor` on the node says how it gives cards", good=False)
        return None
    code = driver.cuInit(0)
    return driver if told(name, f"cuInit returned {code}", good=code == 0) else None


def one_card(driver: ctypes.CDLL, share: int) -> bool:
    """One card, of the share's memory."""
    count, card, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    code = driver.cuDeviceGetCount(ctypes.byref(count))
    if not told("there is one card", f"{count.value} ({code})", good=(code, count.value) == (0, 1)):
        return False
    code = driver.cuDeviceGet(ctypes.byref(card), 0)
    code = code or driver.cuDeviceTotalMem_v2(ctypes.byref(memory), card)
    where = os.environ.get("VCUDA_CARDS", "which card is not said")
    text = f"{memory.value >> 20} MiB of {where}, asked {share >> 20} ({code})"
    return told("its memory is the share", text, good=code == 0 and memory.value == (share or memory.value))


if __name__ == "__main__":
    found = opened()
    sys.exit(found is None or not one_card(found, int(sys.argv[1])))
