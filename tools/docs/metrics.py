"""docs/reference/metrics.md: every metric, from the list that the exporter itself uses."""

from __future__ import annotations

from tools.docs.markdown import code, page, table
from wrasse.jobs.tally import BOUNDS, QUEUES_MAX
from wrasse.observability.metrics import METRICS, MetricDescription
from wrasse.ports.jobs import Reason

INTRO = """\
`/metrics` on `http.listen` (and on `http.metrics_listen` and `observability.metrics_port`, where set) serves these in
the Prometheus text format, beside the usual `process_…` metrics. Counters count what this process did since it
started; gauges about queues, places and workers describe the backend, whoever asks."""


def families() -> list[MetricDescription]:
    """The metrics, in the order of the exporter."""
    return list(METRICS.values())


def sample_names(metric: MetricDescription) -> list[str]:
    """The names under which Prometheus knows the samples of a metric."""
    if metric.kind == "histogram":
        return [metric.name, *(f"{metric.name}_{part}" for part in ("bucket", "sum", "count"))]
    return [metric.name]


def render() -> str:
    """The page."""
    rows = [[code(m.name), m.kind, ", ".join(map(code, m.labels)), m.doc] for m in families()]
    labels = [
        [code("queue"), f"at most {QUEUES_MAX} queues, the configured ones first; all others are `other`"],
        [code("state"), "of jobs `ready`, `scheduled`, `running`, `done`, `dead`; of workers `alive`, `dead`"],
        [code("reason"), ", ".join(code(reason.value) for reason in Reason)],
        [code("sweep"), "the sweeps of the [catalogue](sweeps.md)"],
        [code("group"), f"groups that handle messages in this process, at most {QUEUES_MAX}; all others are `other`"],
        [code("guard"), "the guards in [watching wrasse](../operating/watch.md#guards)"],
    ]
    bounds = ", ".join(f"{bound:g}" for bound in BOUNDS)
    return page(
        "Metrics",
        INTRO,
        [
            table(["metric", "kind", "labels", "meaning"], rows),
            f"Upper bounds of the histogram's buckets, in seconds: {bounds}.",
            "## Labels",
            table(["label", "values"], labels),
        ],
    )
