"""The suite of the same name, unchanged, where the answer to every put, take and settle is lost at first."""

from conformance.test_jobs_faults import *  # noqa: F403
