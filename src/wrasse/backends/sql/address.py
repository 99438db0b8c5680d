"""The database of a URL, and how it is shown without its secrets. Imports no client."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from wrasse.errors import ConfigError

POSTGRES, MYSQL = "postgresql", "mysql"
_DRIVERS = {
    "postgresql": (POSTGRES, "postgresql+psycopg"),
    "postgres": (POSTGRES, "postgresql+psycopg"),
    "postgresql+psycopg": (POSTGRES, "postgresql+psycopg"),
    "mysql": (MYSQL, "mysql+pymysql"),
    "mysql+pymysql": (MYSQL, "mysql+pymysql"),
    "mariadb": (MYSQL, "mariadb+pymysql"),
    "mariadb+pymysql": (MYSQL, "mariadb+pymysql"),
}
_PACKAGES = {POSTGRES: "postgres", MYSQL: "mysql"}


@dataclass(frozen=True, slots=True)
class SqlAddress:
    """One database: its kind, the URL that SQLAlchemy opens, and its name in messages."""

    kind: str
    url: str
    shown: str

    @classmethod
    def parse(cls, text: str) -> SqlAddress:
        """The database of a URL; errors do not show its secrets."""
        scheme, _, rest = text.partition(":")
        if scheme not in _DRIVERS or not rest.startswith("//"):
            raise ConfigError(
                f"this version reads no database by a URL that begins with {scheme.split('/')[0][:40]!r}",
                do="write postgresql://user@host/database, mysql://user@host/database or sqlite:app.db",
            )
        kind, driver = _DRIVERS[scheme]
        return cls(kind, f"{driver}:{rest}", _shown(kind, rest))

    @property
    def extra(self) -> str:
        """The package to install for it."""
        return f"pip install 'wrasse[{_PACKAGES[self.kind]}]'"


def _shown(kind: str, rest: str) -> str:
    try:
        parts = urlsplit(f"{kind}:{rest}")
        host = f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
    except ValueError:
        raise ConfigError(
            f"the URL of a {kind} database has an impossible port", do=f"write {kind}://user@host:5432/database"
        ) from None
    return f"{kind}://{host}{parts.path}"
