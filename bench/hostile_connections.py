"""``python -m bench.hostile_connections PORT COUNT``: COUNT connections to PORT of loopback that mean harm.

They come from 50 addresses, 127.0.0.1 not among them. A third says nothing, a third sends half a request, a
third asks for ``/metric`` and does not read the answer. Each is opened again a second after it was closed.
Prints ``open`` once all were opened, ends with its standard input, and prints how often one was opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

_ADDRESSES = 50
_REQUESTS = (b"", b"GET /metric HTTP/1.1\r\nHost:", b"GET /metric HTTP/1.1\r\n\r\n")
_AGAIN_SECONDS = 1.0
_READ_LIMIT = 1 << 10  # bytes: what is not read stays with the server


async def _hold(port: int, count: int) -> None:
    opened = 0
    everyone = asyncio.Event()

    async def one(n: int) -> None:
        nonlocal opened
        source = (f"127.0.0.{n % _ADDRESSES + 2}", 0)
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port, local_addr=source, limit=_READ_LIMIT
                )
                opened += 1
                if opened == count:
                    everyone.set()
                try:
                    writer.write(_REQUESTS[n % len(_REQUESTS)])
                    if n % len(_REQUESTS) == 2:
                        await asyncio.sleep(_AGAIN_SECONDS)
                    await reader.read()
                finally:
                    writer.transport.abort()
            await asyncio.sleep(_AGAIN_SECONDS)

    tasks = [asyncio.create_task(one(n)) for n in range(count)]
    await everyone.wait()
    print("open", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print(opened, flush=True)


if __name__ == "__main__":
    asyncio.run(_hold(*map(int, sys.argv[1:3])))
