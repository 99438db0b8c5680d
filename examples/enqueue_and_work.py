"""Put jobs and work on them, in one file.

    python examples/enqueue_and_work.py

The jobs live in wrasse.db beside you. Kill this program while it works and start it again: what was not finished runs,
and what was finished does not run twice. In production the two halves are two programs: one puts, and
`wrasse run --handler=enqueue_and_work:app` works.
"""

import asyncio

import wrasse

app = wrasse.connect()


@app.handler("greet")
async def greet(job: wrasse.RunningJob) -> str:
    """An async handler runs in the event loop. What it returns is kept with the job."""
    return f"hello {job.data['name']}"


@app.handler("count")
def count(job: wrasse.RunningJob) -> int:
    """A plain function runs in a thread."""
    return sum(range(job.data["to"]))


async def main() -> None:
    async with app:
        hello = await app.jobs.enqueue("greet", {"name": "wrasse"}, priority="high")
        total = await app.jobs.enqueue("count", {"to": 1000})
        # An id of your own makes the put repeatable: the second one changes nothing.
        once = await app.jobs.enqueue("greet", {"name": "again"}, id="greet-once", delay="50ms")
        print("new" if once.new else "known already:", once.id)

        worker = app.worker(concurrency=4)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(worker.run())
            print(await app.jobs.wait(hello.id), "/", await app.jobs.wait(total.id))
            worker.stop(grace="5s")


if __name__ == "__main__":
    asyncio.run(main())
