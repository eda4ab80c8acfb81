"""``python -m ostinato.cli`` is the same as ``ostinato``."""

from ostinato.cli.main import main

main()
