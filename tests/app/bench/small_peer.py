"""The small server as a program of its own: python small_peer.py PORT [ends|dies|child]."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.app.bench.small_server import SmallServer


class Dying(SmallServer):
    """Ends in the middle of an answer after its ninth."""

    def _send(self, writer: asyncio.StreamWriter, chunk: dict) -> None:
        if len(self.bodies) > 9:
            print("out of memory", flush=True)
            os._exit(3)
        super()._send(writer, chunk)


async def main(port: int, how: str) -> None:
    if how == "ends":
        sys.exit("no such model")
    if how == "child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(f"child {child.pid}", flush=True)
    small = Dying() if how == "dies" else SmallServer()
    small.n_pieces = None
    async with await asyncio.start_server(small.answer, "127.0.0.1", port) as listener:
        await listener.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""))
