"""`python -m loadgen.mock`: serve a script until interrupted."""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import fields
from typing import Any

from loadgen.mock import MockServer, Script


def main() -> None:
    """Serve with the script that the flags describe; they are the fields of `Script`."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--port", type=int, default=8001)
    for name in ("ttft_s", "itl_s", "tokens_per_chunk", "head_event_s", "capacity"):
        default = next(item.default for item in fields(Script) if item.name == name)
        kind = float if name.endswith("_s") else int
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default)
    arguments = vars(parser.parse_args())
    server = MockServer(port=arguments.pop("port"), script=Script(**arguments))

    async def serve() -> None:
        await server.listen()
        print(f"mock server at {server.base_url}", flush=True)
        await asyncio.Event().wait()

    try:
        import uvloop
    except ImportError:
        run: Any = asyncio.run
    else:
        run = uvloop.run
    run(serve())


if __name__ == "__main__":
    main()
