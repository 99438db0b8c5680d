"""Which test holds each behaviour that task records (95 to 100) and dead consumers (101 to 108) were asked for. Suites
in tests/conformance run on memory, SQLite, Redis and NATS.

Number 96, records that expire after 200 ms, has no place: nothing of ours expires, a sweep takes it away, as
docs/design/seeds.md says; that a record of another program may expire is part of 99. Number 98, scans that
compare numbers, is the due index here.
"""

from __future__ import annotations

FLAT, RECORDS = "backends/redis/test_records_flat.py", "conformance/test_records.py"
DEAD, SILENT = "conformance/test_dead_consumers.py", "unit/sweeps/test_dead_consumers.py"
REDIS = "backends/redis/test_upkeep.py"

UPKEEP: dict[str, tuple[str, ...]] = {
    "95": (f"{FLAT}::test_a_put_replaces_the_whole_record_its_old_fields_and_its_expiry",
           f"{FLAT}::test_what_no_hash_could_hold_is_refused"),
    "97": (f"{FLAT}::test_what_another_program_changed_is_never_written_over",
           f"{FLAT}::test_of_fifty_writers_of_another_programs_record_one_wins",
           f"{RECORDS}::test_of_fifty_writers_at_one_version_one_wins"),
    "98": (f"{FLAT}::test_records_of_other_programs_are_found_once_and_ours_are_not",
           "unit/jobs/stream_tasks/test_queue.py::test_a_malformed_record_is_told_of_once_and_left_as_it_is"),
    "99": (f"{FLAT}::test_a_round_of_looks_goes_on_where_the_last_one_stopped_whoever_made_it",
           f"{FLAT}::test_glob_signs_in_the_collection_find_nothing_else",
           f"{FLAT}::test_a_record_that_another_program_deleted_is_not_made_again_by_a_put"),
    "100": (f"{RECORDS}::test_a_missing_record_is_none",
            f"{FLAT}::test_a_task_is_a_hash_with_one_field_for_each_key",
            "unit/jobs/stream_tasks/test_fields.py::test_both_spellings_of_a_record_name_its_task"),
    "101": (f"{DEAD}::test_a_dead_consumer_is_removed_and_its_entries_are_delivered_with_their_count",
            f"{REDIS}::test_a_consumer_of_another_program_that_holds_something_is_never_removed"),
    "102": (f"{DEAD}::test_a_live_consumer_on_a_quiet_stream_is_left_alone",
            f"{REDIS}::test_an_idle_consumer_of_another_program_is_removed_at_the_second_look"),
    "103": (f"{DEAD}::test_a_consumer_that_died_a_short_while_ago_is_waited_for",
            f"{DEAD}::test_a_consumer_that_comes_back_between_check_and_removal_stays",
            f"{SILENT}::test_one_of_another_program_needs_two_looks_and_empty_hands"),
    "104": (f"{DEAD}::test_a_dead_consumer_is_removed_and_its_entries_are_delivered_with_their_count",),
    "105": (f"{DEAD}::test_a_group_without_readers_raises_one_alert_until_it_changes",),
    "106": (f"{DEAD}::test_groups_to_be_ignored_and_that_of_the_origin_are_left_alone",
            f"{DEAD}::test_a_group_whose_entries_are_all_acked_is_in_order_without_consumers"),
    "107": (f"{DEAD}::test_after_many_restarts_one_run_leaves_only_the_living",),
    "108": (f"{REDIS}::test_an_entry_that_was_trimmed_while_pending_is_dropped_counted_and_told_once",
            f"{REDIS}::test_what_a_retired_consumer_held_and_somebody_trimmed_is_counted_as_lost"),
}  # fmt: skip
