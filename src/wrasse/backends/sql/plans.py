"""What the doctor is told about the queries of a catalog: whether each answers, and whether by an index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wrasse.backends.sql.link import Link
from wrasse.errors import WrasseError
from wrasse.ports.finding import FAIL, OK, WARN, Finding
from wrasse.ports.reference_rows import Source

CHECK = "references"
SMALL = 10_000  # rows; a table of this size is read faster than an index
_LIMIT = 30.0
_DO = (
    "make an index on what the query calls key, sorted by bytes; on PostgreSQL: "
    'CREATE INDEX CONCURRENTLY ON documents (path COLLATE "C")'
)


def examined(link: Link, sources: Sequence[Source]) -> Sequence[Finding]:
    """One finding for each query."""
    try:
        return link.guarded(lambda: [*_all(link, sources)])
    except WrasseError as why:
        return (Finding(CHECK, FAIL, why.message, why.do),)


def _all(link: Link, sources: Sequence[Source]) -> Iterator[Finding]:
    dialect = link.dialect
    dialect.begin(link, _LIMIT)
    for source in sources:
        plain = dialect.plain(source, link.names(source.sql))
        sql, values = dialect.counted(plain)
        rows = link.rows(sql, values)[0][0]
        assert isinstance(rows, int), "a count is a number"
        statements = [*dialect.named(plain, ["a/b/"]), *dialect.below(plain, ["a/b/"], True)]
        slow = rows > SMALL and any(dialect.scans(link, each) for each in statements)
        what = f"{source.rule} of {source.where}: {rows} references"
        if slow:
            yield Finding(CHECK, WARN, f"{what}; no index finds them, so each batch reads the whole table", _DO)
        else:
            yield Finding(CHECK, OK, what)
    link.end()
