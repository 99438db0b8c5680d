"""The suite of the same name, unchanged, where the answer to every put, take and settle is lost at first."""

from conformance.test_comforts import *  # noqa: F403

# These open stores of their own.
del test_no_span_of_time_has_more_than_the_limit  # noqa: F821
del test_a_result_outlives_the_bound_of_done_jobs_for_as_long_as_it_is_kept  # noqa: F821
