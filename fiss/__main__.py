"""`python -m fiss` is `fiss`."""

from fiss.cli.main import main

main()
