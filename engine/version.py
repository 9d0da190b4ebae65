"""The version, in one place that needs no installed package: Octavo also runs from a source tree."""

__version__ = "0.1.0"
