"""Every rule, in the order in which their problems are best fixed."""

from __future__ import annotations

from collections.abc import Iterator

from tools.tidy import completeness, conduct, imports, naming, prose, shape, testing
from tools.tidy.source import FileRule, Problem, Project, ProjectRule

FILE_RULES: tuple[FileRule, ...] = (
    imports.imports_point_downwards,
    shape.files_are_short,
    shape.functions_are_short,
    shape.files_say_what_they_are_for,
    shape.files_are_named_for_a_thing,
    shape.public_names_have_docstrings,
    naming.files_are_named_by_nouns,
    shape.values_are_frozen,
    shape.borders_are_typed,
    conduct.only_the_clock_asks_for_the_time,
    conduct.nothing_is_printed,
    conduct.errors_are_not_swallowed,
    conduct.tasks_have_an_owner,
    conduct.no_notes_are_left,
    conduct.assertions_stay_on,
    prose.text_means_the_same_everywhere,
    prose.pages_have_one_title,
    testing.tests_are_named_as_sentences,
    testing.tests_can_fail,
    testing.tests_are_not_skipped,
    testing.our_own_code_is_not_mocked,
)
PROJECT_RULES: tuple[ProjectRule, ...] = (
    imports.imports_have_no_cycles,
    naming.class_names_are_unique,
    naming.packages_are_small,
    naming.families_are_packages,
    completeness.sweeps_are_complete,
    completeness.ports_are_complete,
    completeness.unit_tests_are_named_after_modules,
    completeness.ports_are_small,
)
RULES: tuple[FileRule | ProjectRule, ...] = (*FILE_RULES, *PROJECT_RULES)


def apply_rule(rule: FileRule | ProjectRule, project: Project) -> Iterator[Problem]:
    """Everything that one rule finds wrong with the project."""
    for file_rule in FILE_RULES:
        if rule is file_rule:
            for source in project.sources:
                yield from file_rule(source)
    for project_rule in PROJECT_RULES:
        if rule is project_rule:
            yield from project_rule(project)
