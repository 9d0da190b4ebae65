"""A streaming server that knows the truth, to test load generators with. `python -m loadgen.mock` serves."""

from loadgen.mock.script import BEHAVIOURS, Script, Truth
from loadgen.mock.server import MockServer

__all__ = ["BEHAVIOURS", "MockServer", "Script", "Truth"]
