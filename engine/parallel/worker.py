"""A rank beside rank 0: `python -m engine.parallel.worker FD`, FD being its end of the link to rank 0.

It makes its runner as rank 0 does and runs the same steps. It ends when rank 0's process closes the link or
ends itself, and not before: signals to a whole process group leave the orderly shutdown to rank 0.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import pickle
import select
import signal
import socket
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING

from engine.config import ConfigError
from engine.parallel.link import Link, LinkClosedError
from model.config import ModelError

if TYPE_CHECKING:
    from engine.parallel.build import RankSetup
    from engine.runner.model_runner import ModelRunner
    from engine.runner.step_launch import StepLaunch

logger = logging.getLogger("engine.parallel.worker")  # also as a program

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """The exit code. Torch is imported only once it is sure that the process ends with its parent."""
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.SIG_IGN)
    if "--die-with-parent" in arguments:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    link = Link(socket.socket(fileno=int(arguments[0])))
    threading.Thread(target=_end_with, args=(link,), name="octavo-parent", daemon=True).start()
    try:
        run_rank(link)
    except LinkClosedError:
        return 0
    except Exception as error:
        if not isinstance(error, ConfigError | ModelError):  # rank 0 meets those too, and tells the user
            logger.exception("this rank has failed")
        link.send(0, f"{type(error).__name__}: {error}".encode())
    return 1


class _PhaseLog:
    """One line for each phase of the start, so that a log tells where a rank got stuck."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._phase = ""

    def __call__(self, phase: str, done: int, total: int) -> None:
        if phase != self._phase:
            logger.info("rank %d: %s", self._rank, phase)
            self._phase = phase


def run_rank(link: Link) -> None:
    """From the set-up message to the closing of the link."""
    setup: RankSetup = pickle.loads(link.receive().payload)
    logging.getLogger().setLevel(setup.log_level)
    from engine.parallel.ranks import Stage
    from engine.parallel.world import join
    from engine.runner.build import build_runner

    link.send(Stage.IMPORTED)
    tp = join(setup.rendezvous, setup.rank, setup.device)
    link.send(Stage.JOINED)
    tell = _PhaseLog(setup.rank)
    runner, _ = build_runner(setup.runner, setup.device, tell, tp, lambda: link.send(Stage.LOADED))
    tell("ready", 0, 0)
    gc.collect()
    gc.freeze()  # these objects live as long as the process
    link.send(Stage.READY)
    run_steps(link, runner)


def run_steps(link: Link, runner: ModelRunner) -> None:
    """Run what rank 0 sends; a step is answered when it is launched, and nobody reads its tokens here."""
    from engine.parallel.shared_masks import ReceivedMasks
    from engine.parallel.step_message import StepDecoder

    runner.wrap_masks(lambda own: ReceivedMasks(link))
    decoder = StepDecoder()
    in_flight: deque[StepLaunch] = deque()
    while True:
        number, payload = link.receive()
        launch = runner.launch(decoder.decode(payload))
        link.send(number)
        if launch.awaits_tokens:
            launch.resume()
        in_flight.append(launch)
        while in_flight and in_flight[0].has_ended:
            in_flight.popleft().discard()


def _end_with(link: Link) -> None:
    """End at once when the other side does, also amid a computation that waits for it forever."""
    poll = select.poll()
    poll.register(link, select.POLLRDHUP)
    poll.poll()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
