"""What a streamed request of 64 tokens costs a load generator: Octavo's, `vllm bench serve` and GuideLLM.

    python -m benchmarks.loadgen --rates 100,300 --vllm PYTHON --guidellm PYTHON

PYTHON is an interpreter that has the package; vLLM's client needs none of its compiled parts. A bare reader,
which does nothing but send, wait, read and keep, runs beside them. All clients send to the same mock server,
one after the other in each round, and a row is the median of the rounds. CPU time is that of all of a
client's processes while the middle four fifths of its requests arrive, so starting up does not count.
`offered` is the rate at which requests reached the server. Client and server want a core each.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median

from benchmarks.loadgen.clients import TOKENS, Client, absent, known_clients
from benchmarks.loadgen.cost import Cost, measure


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rates", default="100,300", help="requests per second (default: %(default)s)")
    parser.add_argument("--duration", type=float, default=6.0, help="seconds of each (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--vllm", metavar="PYTHON", help="(default: this interpreter)")
    parser.add_argument("--guidellm", metavar="PYTHON", help="(default: this interpreter)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        clients = known_clients(Path(directory), arguments.vllm, arguments.guidellm)
        for client in clients:
            if reason := absent(client):
                print(f"{client.name} is left out: {reason}")
        present = [client for client in clients if not absent(client)]
        for rate in map(float, arguments.rates.split(",")):
            _compare(present, rate, round(rate * arguments.duration), arguments.rounds)


def _compare(clients: list[Client], rate: float, requests: int, rounds: int) -> None:
    costs: dict[str, list[Cost]] = defaultdict(list)
    for _ in range(rounds):
        for client in clients:
            costs[client.name].append(measure(client.command(rate, requests)))
    print(f"\n{rate:g} req/s asked for, {requests} requests of {TOKENS} tokens, {rounds} round(s)")
    print(f"{'client':>18}  offered  us CPU/request  us/chunk  of all rounds  complete")
    for name, found in costs.items():
        all_us = [cost.cpu_us for cost in found]
        spread = f"{min(all_us):.0f}-{max(all_us):.0f}"
        cpu_us = median(all_us)
        print(
            f"{name:>18}  {median(cost.offered_rps for cost in found):7.1f}  {cpu_us:14.0f}"
            f"  {cpu_us / TOKENS:8.1f}  {spread:>13}  {min(cost.complete for cost in found)}/{requests}",
            flush=True,
        )


if __name__ == "__main__":
    main()
