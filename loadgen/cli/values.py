"""Values of flags; argparse turns a ValueError or ArgumentTypeError into a usage error."""

from __future__ import annotations

import argparse


def whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def real(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def positive_int(text: str) -> int:
    value = whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def count(text: str) -> int:
    value = whole(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return value


def number_from_0(text: str) -> float:
    value = real(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0")
    return value


def positive_float(text: str) -> float:
    value = real(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def share(text: str) -> float:
    value = real(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share above 0 and up to 1")
    return value
