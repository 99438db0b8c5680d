"""python manage.py work: a worker with the site's handlers, until SIGTERM or Ctrl-C."""

import asyncio
from argparse import ArgumentParser

from django.core.management.base import BaseCommand

from shop.jobs import app


class Command(BaseCommand):
    """Runs handlers. Beside it run the sweeps that give a dead worker's jobs to the next."""

    help = "Runs the jobs of the site."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """How many jobs run at once."""
        parser.add_argument("--concurrency", type=int, default=4)

    def handle(self, *args: object, concurrency: int, **options: object) -> None:
        """Works until it is told to stop; running jobs then have `worker.grace` to finish."""
        asyncio.run(app.worker(concurrency).run())
