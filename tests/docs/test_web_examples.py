"""The examples for web frameworks, on the real frameworks and with real workers beside them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
LIMIT = 60

FASTAPI = """
import json
from fastapi.testclient import TestClient
from pictures import web

with TestClient(web) as client:
    def put(name, width):
        answer = client.post("/pictures", json={"name": name, "width": width})
        return answer.status_code, answer.json()["new"]
    print(json.dumps({
        "put": put("a.png", 100),
        "again": put("a.png", 100),
        "bad": client.post("/pictures", json={"name": "x"}).status_code,
        "unknown": client.get("/pictures/b.png").status_code,
        "result": client.get("/pictures/a.png?wait=30").json(),
    }))
"""

DJANGO = """
import json, os
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
import django
django.setup()
from django.test import Client
from shop.jobs import site
from shop.models import Order

client = Client(raise_request_exception=False)
said = {
    "put": client.post("/orders/", {"item": "shoes"}).json(),
    "rolled back": client.post("/orders/", {"item": "hats", "fail": "1"}).status_code,
    "orders": Order.objects.count(),
    "jobs": [site.jobs.get(f"receipt-{n}") is not None for n in (1, 2)],
    "receipt": client.get("/orders/1/?wait=30").json(),
    "unknown": client.get("/orders/7/").status_code,
}
said["sent"] = Order.objects.get().receipt_sent
print(json.dumps(said))
"""


def run(place: Path, folder: str, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, *args], cwd=place, env=environment(folder), capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def environment(folder: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(EXAMPLES / folder), "WRASSE_HTTP_LISTEN": ""}


@contextlib.contextmanager
def running(place: Path, folder: str, *args: str) -> Iterator[None]:
    """A worker that is up for as long as this is open, and leaves in order."""
    with (place / "worker.log").open("w") as log:
        worker = subprocess.Popen([sys.executable, *args], cwd=place, env=environment(folder), stdout=log, stderr=log)
        try:
            yield
        finally:
            worker.send_signal(signal.SIGTERM)
            code = worker.wait(LIMIT)
    assert code == 0, (place / "worker.log").read_text()


def test_a_fastapi_route_puts_a_job_and_another_awaits_its_result(place: Path) -> None:
    with running(place, "fastapi_app", "-m", "wrasse", "run", "--handler=pictures:app"):
        said = json.loads(run(place, "fastapi_app", "-c", FASTAPI))
    assert said == {
        "put": [202, True],
        "again": [202, False],
        "bad": 422,
        "unknown": 404,
        "result": {"name": "a.png", "resized_to": 100},
    }


def test_a_django_view_puts_a_job_with_its_transaction_and_a_management_command_does_it(place: Path) -> None:
    manage = str(EXAMPLES / "django_site" / "manage.py")
    run(place, "django_site", manage, "migrate", "--run-syncdb", "-v0")
    with running(place, "django_site", manage, "work"):
        said = json.loads(run(place, "django_site", "-c", DJANGO))
    assert said == {
        "put": {"order": 1},
        "rolled back": 500,
        "orders": 1,
        "jobs": [True, False],
        "receipt": {"order": 1, "receipt": {"order": 1, "sent": "shoes"}},
        "unknown": 404,
        "sent": True,
    }
