"""Command-line arguments that several examples take: numbers within bounds."""

import argparse
from collections.abc import Callable


def number(kind: type, least: int = 0, most: int | None = None) -> Callable:
    """Returns the ``type=`` of an argument that is a number from ``least`` to ``most``; argparse refuses any other."""

    def convert(text: str):
        value = kind(text)
        if not value >= least:
            raise argparse.ArgumentTypeError(f"must be {least} or more, not {text}")
        if most is not None and value > most:
            raise argparse.ArgumentTypeError(f"must be {most} or less, not {text}")
        return value

    convert.__name__ = kind.__name__
    return convert
