"""The style guide as code: each rule reads files and names what is wrong and what to do about it.

A rule is a function from one file, or from the whole project, to problems. It never runs the code it reads, so a
broken import cannot hide a broken rule. `tests/test_tidy.py` runs every rule over the project and feeds each one a
snippet that it must refuse.
"""
