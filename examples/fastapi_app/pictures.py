"""wrasse in FastAPI: a route enqueues a job, another waits for its result.

    pip install wrasse fastapi uvicorn
    uvicorn pictures:web                          # the web server
    wrasse run --handler=pictures:app             # the workers, as many as you like

    curl -X POST localhost:8000/pictures -H 'content-type: application/json' -d '{"name": "a.png", "width": 100}'
    curl localhost:8000/pictures/a.png?wait=5

The web server opens the store once, when it starts, and closes it when it stops. Workers are processes of their own: a
slow picture never holds up a request, and either side may be restarted without the other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from fastapi import FastAPI, HTTPException, Query
from pydantic import BaseModel

import wrasse

app = wrasse.connect()


class Picture(BaseModel):
    """What is to be done."""

    name: str
    width: int


@app.handler("resize")
def resize(job: wrasse.RunningJob) -> dict[str, object]:
    """Runs in a worker. The payload is checked again: it may have been enqueued by another version of this program."""
    picture = Picture.model_validate(job.data)
    if picture.width <= 0:
        raise ValueError("a picture has a width")
    return {"name": picture.name, "resized_to": picture.width}


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[None]:
    """Opens the store for as long as the server runs."""
    async with app:
        yield


web = FastAPI(lifespan=lifespan)


@web.post("/pictures", status_code=202)
async def put(picture: Picture) -> dict[str, object]:
    """Puts the job, and answers once it is stored. The id makes a repeated request put nothing twice."""
    handle = await app.jobs.enqueue("resize", picture.model_dump(), id=f"resize/{picture.name}", keep="1h")
    return {"name": picture.name, "new": handle.new}


@web.get("/pictures/{name}")
async def get(name: str, wait: float = Query(default=0, ge=0, le=30)) -> object:
    """Gives the result, waiting for it for up to `wait` seconds."""
    id = f"resize/{name}"
    if await app.jobs.get(id) is None:
        raise HTTPException(404, "no such picture")
    try:
        return await app.jobs.wait(id, timeout=timedelta(seconds=wait))
    except TimeoutError:
        raise HTTPException(425, "not ready yet") from None
    except wrasse.JobFailed as why:
        raise HTTPException(422, why.message) from None
