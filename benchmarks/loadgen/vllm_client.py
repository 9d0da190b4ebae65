"""`vllm bench serve` by itself: vLLM's own command line imports the engine, which takes its compiled parts.

Runs in an interpreter of its own and imports nothing of Octavo.
"""

import asyncio
import sys

from vllm.benchmarks.serve import add_cli_args, main_async
from vllm.utils.argparse_utils import FlexibleArgumentParser

if __name__ == "__main__":
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    asyncio.run(main_async(parser.parse_args(sys.argv[1:])))
