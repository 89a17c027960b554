"""``python -m penstock`` is the ``penstock`` command."""

from penstock.start import main

main()
