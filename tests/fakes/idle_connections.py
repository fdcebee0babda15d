"""``python -m tests.fakes.idle_connections PORT COUNT``: COUNT TLS connections to PORT of loopback, left idle.

Each asks one question first, so that it is one that the server keeps alive. Prints ``open`` once all of them
were made, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import ssl
import sys

_AT_ONCE = 32
_REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def _hold(port: int, count: int) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    kept: list[asyncio.StreamWriter] = []
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one() -> None:
        async with gate:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            kept.append(writer)
            writer.write(_REQUEST)
            with contextlib.suppress(OSError):  # closed already to make room
                await reader.readline()

    await asyncio.gather(*(one() for _ in range(count)))
    sys.stdout.write("open\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def main() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.sslproto.SSLProtocol.max_size = 16 << 10
    asyncio.run(_hold(*map(int, sys.argv[1:3])))


if __name__ == "__main__":
    main()
