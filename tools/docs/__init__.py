"""The writer of the reference pages: what the code says about itself, as Markdown.

Every page under docs/reference and the table of sweeps in the README come from here; `python -m tools.docs --check`
says which of them differ from the code. Nothing on those pages is written by hand.
"""
