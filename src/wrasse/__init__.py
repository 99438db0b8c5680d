"""wrasse keeps job queues, event streams, leases and object storage clean: nothing stays stuck, lost or leaked.

These names are the public ones; everything else may change. They are loaded on first use, so that importing wrasse
costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wrasse.api import sync
    from wrasse.api.app import App, connect, lease
    from wrasse.errors import BadPayload, JobFailed, LeaseLost, Refused, StoreUnavailable, UsageError, WrasseError
    from wrasse.jobs.new_job import NewJob
    from wrasse.jobs.retry import GiveUp, Retry, RetryLater
    from wrasse.jobs.worker.running_job import RunningJob
    from wrasse.ports.jobs import Job, JobRecord, JobState, Reason

__version__ = "0.1.0"

_HOMES = {
    "App": "wrasse.api.app",
    "BadPayload": "wrasse.errors",
    "GiveUp": "wrasse.jobs.retry",
    "Job": "wrasse.ports.jobs",
    "JobFailed": "wrasse.errors",
    "JobRecord": "wrasse.ports.jobs",
    "LeaseLost": "wrasse.errors",
    "NewJob": "wrasse.jobs.new_job",
    "JobState": "wrasse.ports.jobs",
    "Reason": "wrasse.ports.jobs",
    "Refused": "wrasse.errors",
    "Retry": "wrasse.jobs.retry",
    "RetryLater": "wrasse.jobs.retry",
    "RunningJob": "wrasse.jobs.worker.running_job",
    "StoreUnavailable": "wrasse.errors",
    "UsageError": "wrasse.errors",
    "WrasseError": "wrasse.errors",
    "connect": "wrasse.api.app",
    "lease": "wrasse.api.app",
    "sync": "wrasse.api.sync",
}

__all__ = [
    "App",
    "BadPayload",
    "GiveUp",
    "Job",
    "JobFailed",
    "JobRecord",
    "JobState",
    "LeaseLost",
    "NewJob",
    "Reason",
    "Refused",
    "Retry",
    "RetryLater",
    "RunningJob",
    "StoreUnavailable",
    "UsageError",
    "WrasseError",
    "__version__",
    "connect",
    "lease",
    "sync",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'wrasse' has no attribute {name!r}")
    import importlib

    module = importlib.import_module(home)
    value: object = module if name == "sync" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
