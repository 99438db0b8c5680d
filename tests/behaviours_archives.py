"""Which test holds each behaviour that trimming and the archiver were asked for: numbers 123 to 150.

`test_behaviours_archives.py` checks that every number is here and that every test named here exists.
"""

from __future__ import annotations

AGED, STREAMS = "conformance/test_aged_entries.py", "conformance/test_streams.py"
REDIS_STREAMS = "backends/redis/test_streams.py"
RETENTION = "unit/streams/test_retention.py"
ARCHIVER, FAULTS, BATCH = (f"unit/archives/test_{name}.py" for name in ("archiver", "archiver_faults", "batch"))
LINES, NAMING, LAG = (f"unit/archives/test_{name}.py" for name in ("codec", "naming", "announce"))
APP, KILLS, REDIS = (f"archives/test_archiver{name}.py" for name in ("", "_kills", "_redis"))

BEHAVIOURS: dict[str, tuple[str, ...]] = {
    # trimming
    "123": (f"{AGED}::test_without_its_archiver_group_nothing_is_trimmed_and_one_alert_is_raised",),
    "124": (f"{AGED}::test_nothing_that_was_not_delivered_is_trimmed_although_nothing_is_pending",
            f"{KILLS}::test_a_planted_bug_does_not_survive_an_archiver_that_stood_still"),
    "125": (f"{AGED}::test_only_what_is_below_the_oldest_pending_entry_is_trimmed",),
    "126": (f"{AGED}::test_what_is_older_than_its_retention_is_trimmed_and_nothing_else",),
    "127": (f"{AGED}::test_an_approximate_rule_waits_for_a_hundredth_more_and_never_trims_more",),
    "128": (f"{STREAMS}::test_a_trim_and_a_reader_race_and_nothing_unacked_is_lost",
            f"{REDIS_STREAMS}::test_no_trim_takes_what_a_racing_archiver_was_given_and_has_not_acked"),
    "129": (f"{REDIS_STREAMS}::test_a_wrong_lag_does_not_change_a_trim",
            f"{RETENTION}::test_nothing_is_due_that_a_group_still_needs",
            f"{STREAMS}::test_what_a_protecting_group_has_not_read_is_kept"),
    "130": (f"{AGED}::test_a_queue_is_protected_by_its_workers_also_before_their_group_exists",
            f"{RETENTION}::test_groups_that_a_rule_names_protect_as_well"),
    "131": (f"{AGED}::test_allowed_loss_counts_and_tells_what_was_pending_or_never_read",),
    "132": (f"{STREAMS}::test_a_trim_removes_what_is_older_than_its_age",
            "backends/redis/test_upkeep.py::test_a_trim_goes_by_the_servers_clock_however_wrong_ours_is"),
    "133": (f"{RETENTION}::test_the_rule_that_names_a_stream_most_closely_is_about_it",
            f"{AGED}::test_a_stream_without_a_rule_is_never_trimmed"),
    "134": (f"{STREAMS}::test_what_a_protecting_group_has_not_acked_is_kept",
            "backends/nats/test_group_cursors_ages.py::test_no_stream_that_is_protected_gets_an_age",
            "archives/test_archiver_nats.py::test_what_a_limit_of_the_server_took_unarchived_is_counted_and_told"),
    # the archiver
    "135": (f"{BATCH}::test_a_batch_is_complete_at_its_size",
            f"{BATCH}::test_a_batch_is_complete_before_it_has_more_bytes_than_it_may",
            f"{BATCH}::test_a_batch_is_due_after_its_timeout_from_its_first_entry",
            f"{ARCHIVER}::test_a_quiet_stream_is_archived_when_its_first_message_is_old_enough"),
    "136": (f"{LINES}::test_a_line_is_json_and_gives_the_entry_back_byte_for_byte",
            f"{LINES}::test_many_lines_at_once_are_the_lines_one_by_one",
            f"{BATCH}::test_an_archive_is_the_lines_in_order_and_says_what_it_holds"),
    "137": (f"{ARCHIVER}::test_while_the_store_is_down_nothing_is_acked_and_it_goes_on_by_itself",),
    "138": (f"{FAULTS}::test_a_fault_at_any_call_loses_nothing_and_doubles_nothing",
            f"{KILLS}::test_a_hundred_kills_lose_nothing_and_double_nothing",
            f"{KILLS}::test_a_planted_bug_does_not_survive_an_archiver_that_stood_still"),
    "139": (f"{KILLS}::test_a_hundred_kills_lose_nothing_and_double_nothing",),
    "140": (f"{APP}::test_a_daemon_that_is_stopped_leaves_what_the_next_goes_on_from",
            f"{FAULTS}::test_a_random_name_or_an_overwriting_put_is_noticed"),
    "141": (f"{ARCHIVER}::test_a_batch_over_midnight_is_two_archives_under_their_days",),
    "142": (f"{ARCHIVER}::test_a_stop_writes_what_was_read_and_reads_nothing_more",
            f"{ARCHIVER}::test_a_stop_ends_in_time_although_the_store_is_down"),
    "143": (f"{NAMING}::test_a_key_looks_as_documented",
            f"{NAMING}::test_the_domain_is_the_third_token_of_events_and_else_the_second"),
    "144": (f"{ARCHIVER}::test_an_archive_is_announced_once_with_what_it_holds",
            f"{FAULTS}::test_a_fault_at_any_call_loses_nothing_and_doubles_nothing"),
    "145": (f"{ARCHIVER}::test_a_full_batch_is_archived_within_a_cycle_and_a_new_stream_from_its_first_entry",),
    "146": (f"{ARCHIVER}::test_while_the_store_is_down_nothing_is_acked_and_it_goes_on_by_itself",
            f"{REDIS}::test_cuts_delays_and_lost_replies_lose_nothing_and_double_nothing"),
    "147": (f"{ARCHIVER}::test_entries_that_were_trimmed_unarchived_are_counted_and_stay_provable",),
    "148": (f"{LAG}::test_the_lag_is_that_of_the_backlog",
            f"{LAG}::test_too_much_lag_is_told_once_and_again_after_the_interval_and_anew_when_it_comes_back",
            f"{LAG}::test_one_old_message_is_too_much_lag"),
    "149": (f"{FAULTS}::test_several_archivers_behind_bad_networks_write_every_message_once",
            f"{ARCHIVER}::test_one_of_two_archivers_does_the_work"),
    "150": (f"{ARCHIVER}::test_odd_entries_are_archived_whole_and_hold_nothing_up",
            f"{REDIS}::test_entries_of_other_programs_are_archived_whole_and_marked"),
}  # fmt: skip
