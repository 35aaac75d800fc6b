"""`python -m fiss` is `fiss`."""

from fiss.cli import main

main()
