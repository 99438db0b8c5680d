"""`python -m tools.tidy`: names every breach of the style guide; exit code 1 if there is one."""

from __future__ import annotations

import sys

from tools.tidy.rules import RULES, apply_rule
from tools.tidy.source import read_project

if __name__ == "__main__":
    project = read_project()
    problems = [problem for rule in RULES for problem in apply_rule(rule, project)]
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)
