"""The command line."""

from fiss.cli.main import app, main

__all__ = ["app", "main"]
