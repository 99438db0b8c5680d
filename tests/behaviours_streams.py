"""Which test holds each behaviour that streams (71 to 94) and the sweep of tasks (109 to 122) were asked for.

Suites in tests/conformance about streams run on memory, SQLite, Redis and NATS; those about jobs run on tasks in
memory, SQLite and Redis, and in the long form on NATS. Of 121 one half is otherwise on purpose: a dry run changes
nothing at all, so that its report is shown to whoever asked and published nowhere.
"""

from __future__ import annotations

STREAMS, GROUPS, MESSAGES, UNACKED = (
    f"conformance/test_{name}.py" for name in ("streams", "groups", "messages", "messages_unacked")
)
ENVELOPE, PUBLISHER = "unit/streams/test_envelope.py", "unit/streams/test_publisher.py"
SUBJECTS = "unit/ports/rules/test_subjects.py"
REDIS, REDIS_TASKS = "backends/redis/test_streams.py", "backends/redis/test_tasks.py"
NATS = "backends/nats/test_streams.py"
IDS, FIELDS = "unit/test_ids.py", "unit/jobs/stream_tasks/test_fields.py"
TASKS = "unit/jobs/stream_tasks/test_queue.py"
SWEEP, JOBS = "unit/sweeps/test_stuck_jobs_tasks.py", "unit/sweeps/test_stuck_jobs.py"
FAULTS, MOVES, VIEWS, QUEUE, EMIT = (
    f"conformance/test_{name}.py" for name in ("jobs_faults", "jobs_moves", "jobs_views", "jobs", "records_emit")
)
RUN, TURN, REPORT = (f"unit/engine/test_{name}.py" for name in ("run", "turn", "report"))
LOCKS, SETTINGS, STORM = (
    "conformance/test_named_locks.py",
    "unit/runtime/test_stream_tasks.py",
    "simulation/test_tasks.py",
)
AGED, KILLS = "conformance/test_aged_entries.py", "jobs/stream_tasks/test_kills.py"

STREAMED: dict[str, tuple[str, ...]] = {
    # transport
    "71": (f"{MESSAGES}::test_the_id_that_publish_gives_is_the_one_that_a_consumer_sees",
           f"{IDS}::test_ids_grow_however_the_wall_clock_steps",
           f"{PUBLISHER}::test_ids_grow_while_the_clock_stands_still"),
    "72": (f"{MESSAGES}::test_a_payload_at_the_limit_passes_and_one_byte_more_writes_nothing",
           f"{ENVELOPE}::test_a_payload_beyond_the_limit_is_refused_with_size_and_limit"),
    "73": (f"{MESSAGES}::test_payload_bytes_arrive_unchanged",
           f"{MESSAGES}::test_an_envelope_has_its_five_fields_and_no_trace_id_when_there_is_none"),
    "74": (f"{STREAMS}::test_two_connections_append_to_one_stream",
           f"{NATS}::test_a_stream_that_was_made_by_hand_is_used_as_it_is"),
    "75": (f"{MESSAGES}::test_messages_arrive_in_order",
           f"{MESSAGES}::test_two_groups_each_get_every_message",
           f"{GROUPS}::test_consumers_that_ask_at_once_share_without_overlap"),
    "76": (f"{GROUPS}::test_a_group_that_begins_after_the_last_entry_gets_what_comes_later",
           f"{GROUPS}::test_a_group_that_begins_at_the_first_entry_gets_all",
           f"{GROUPS}::test_a_group_that_begins_at_a_moment_gets_what_was_appended_then_or_later",
           f"{GROUPS}::test_a_group_that_begins_after_an_id_gets_what_follows_it"),
    "77": (f"{GROUPS}::test_an_acked_entry_is_never_delivered_again",),
    "78": (f"{GROUPS}::test_a_nak_brings_an_entry_back_at_once",
           f"{GROUPS}::test_a_nak_with_a_delay_brings_it_back_after_the_delay_and_not_before",
           f"{UNACKED}::test_a_nak_with_a_delay_comes_back_after_it_and_not_before"),
    "79": (f"{UNACKED}::test_a_handler_that_raises_gets_its_message_again_after_the_ack_timeout",
           f"{UNACKED}::test_a_handler_that_returns_without_an_ack_gets_its_message_again"),
    "80": (f"{UNACKED}::test_a_message_of_a_dead_consumer_goes_to_another",),
    "81": (f"{UNACKED}::test_a_full_window_of_dead_consumers_does_not_stop_the_group",
           f"{GROUPS}::test_entries_of_dead_consumers_come_back_however_many_they_are"),
    "82": (f"{UNACKED}::test_no_consumer_has_more_than_its_limit_unanswered",),
    "83": (f"{UNACKED}::test_after_its_last_delivery_a_message_is_set_aside_once_and_acked",
           f"{GROUPS}::test_a_dead_letter_is_written_once"),
    "84": (f"{UNACKED}::test_a_dead_letter_keeps_the_original_and_says_where_it_came_from",
           f"{UNACKED}::test_a_dead_letter_is_not_set_aside_twice"),
    "85": (f"{UNACKED}::test_what_is_no_envelope_is_set_aside_as_it_is_and_blocks_nothing",
           f"{UNACKED}::test_fields_of_a_foreign_entry_are_kept_in_its_dead_letter"),
    "86": (f"{UNACKED}::test_an_ack_that_failed_raises_and_may_be_given_again",
           f"{UNACKED}::test_an_ack_after_another_answer_does_nothing"),
    "87": (f"{MESSAGES}::test_an_idempotency_key_makes_one_message_and_gives_its_id_both_times",
           f"{STREAMS}::test_a_key_is_forgotten_after_its_window",
           f"{PUBLISHER}::test_a_key_is_refused_where_the_backend_keeps_none"),
    "88": (f"{MESSAGES}::test_closing_waits_for_running_handlers",
           f"{MESSAGES}::test_closing_cuts_off_handlers_that_do_not_end_and_gives_their_messages_back",
           f"{MESSAGES}::test_a_closed_publisher_publishes_nothing",
           f"{MESSAGES}::test_an_answer_after_the_end_is_refused"),
    "89": (f"{MESSAGES}::test_an_idle_consumer_ends_soon_and_leaves_its_group",
           f"{MESSAGES}::test_a_consumer_with_something_pending_stays_known_to_its_group"),
    "90": (f"{MESSAGES}::test_a_consumer_that_waits_delays_no_publish",
           f"{GROUPS}::test_a_wait_delays_neither_an_append_nor_an_ack"),
    "91": (f"{STREAMS}::test_what_is_no_subject_is_refused",
           f"{SUBJECTS}::test_a_subject_may_have_exactly_as_many_bytes_as_the_limit",
           f"{SUBJECTS}::test_a_subject_comes_back_from_its_key_in_redis",
           "backends/nats/test_streams.py::test_a_name_is_read_back_from_its_token"),
    "92": (f"{SUBJECTS}::test_a_pattern_matches_as_its_tokens_say",
           f"{STREAMS}::test_a_pattern_finds_its_subjects_in_byte_order",
           f"{MESSAGES}::test_a_pattern_gets_streams_that_come_later_from_their_first_message"),
    "93": (f"{ENVELOPE}::test_what_the_origin_wrote_is_read_and_written_byte_for_byte",
           f"{REDIS}::test_an_entry_is_the_origins_key_with_one_field_and_its_envelope_byte_for_byte",
           f"{REDIS}::test_an_entry_of_the_origin_is_read_and_delivered"),
    "94": (f"{STREAMS}::test_trimming_a_missing_stream_removes_nothing",),
    # the sweep of tasks
    "109": (f"{TASKS}::test_a_stuck_task_waits_again_with_one_retry_more_and_one_event",
            f"{REDIS_TASKS}::test_a_task_that_another_program_claimed_and_left_is_rescued"),
    "110": (f"{TASKS}::test_a_task_that_finished_while_it_was_judged_stays_finished",
            f"{FAULTS}::test_of_a_rescue_and_a_finish_that_race_one_wins",
            f"{EMIT}::test_a_write_that_conflicts_emits_nothing"),
    "111": (f"{FAULTS}::test_of_two_rescuers_that_race_one_wins",
            f"{MOVES}::test_two_rescuers_rescue_a_job_once",
            f"{JOBS}::test_two_runs_in_lockstep_rescue_each_job_once"),
    "112": (f"{TASKS}::test_a_task_whose_budget_is_spent_fails_with_one_terminal_and_one_error_event",
            f"{TASKS}::test_the_records_own_budget_counts_before_the_types",
            f"{SWEEP}::test_a_task_fails_once_its_retries_are_spent_whatever_they_were_spent_on"),
    "113": (f"{TASKS}::test_a_backlog_of_ten_timeouts_is_neither_told_again_nor_failed",
            f"{TASKS}::test_blocked_tasks_are_never_touched",
            f"{TASKS}::test_a_waiting_task_whose_entry_is_gone_is_told_of_again_at_no_cost",
            f"{TASKS}::test_a_waiting_task_whose_entry_was_delivered_and_not_answered_is_not_told_of_again"),
    "114": (f"{VIEWS}::test_one_stuck_job_is_found_at_once_among_many_others",
            f"{JOBS}::test_one_stuck_job_behind_ten_thousand_finished_ones_is_found_in_the_first_run"),
    "115": (f"{SETTINGS}::test_a_type_says_its_budget_and_its_threshold",
            f"{SETTINGS}::test_a_type_that_says_nothing_follows_the_sweeps_threshold",
            f"{SWEEP}::test_a_task_is_stuck_when_its_deadline_has_passed_and_never_before"),
    "116": (f"{TASKS}::test_where_streams_are_apart_a_crash_before_the_event_costs_no_retry",
            f"{EMIT}::test_a_retry_after_a_lost_reply_emits_nothing_twice",
            f"{KILLS}::test_tasks_on_redis_of_a_killed_worker_are_finished_by_another_each_once"),
    "117": (f"{QUEUE}::test_the_late_finish_of_a_rescued_job_is_refused",
            f"{STORM}::test_a_state_reset_without_a_condition_is_noticed"),
    "118": (f"{TASKS}::test_events_of_tasks_that_are_rescued_together_have_ids_of_their_own",
            f"{IDS}::test_ids_of_one_millisecond_differ_and_grow"),
    "119": (f"{SWEEP}::test_a_task_whose_record_cannot_be_written_does_not_stop_the_others",
            f"{RUN}::test_a_batch_that_raises_is_taken_apart_and_only_the_culprit_fails",
            f"{RUN}::test_a_broken_sweep_does_not_end_the_others_of_its_group"),
    "120": (f"{LOCKS}::test_a_lock_has_one_owner_until_it_is_released",
            f"{SWEEP}::test_a_run_is_held_while_another_program_has_the_lock",
            f"{SWEEP}::test_a_run_that_loses_the_lock_on_the_way_stops",
            f"{TURN}::test_a_run_whose_lease_is_over_stops_within_one_batch"),
    "121": (f"{SWEEP}::test_a_report_is_told_when_something_changed_and_every_ten_minutes",
            f"{AGED}::test_a_report_says_how_many_streams_and_entries_were_trimmed",
            f"{REPORT}::test_quiet_reports_are_told_every_ten_minutes",
            f"{SWEEP}::test_a_look_at_what_is_stuck_changes_nothing"),
    "122": (f"{TASKS}::test_a_malformed_record_is_told_of_once_and_left_as_it_is",
            f"{FIELDS}::test_a_malformed_record_is_told_as_such"),
}  # fmt: skip
