"""The two faces of wrasse in a site: `site` blocks, for views; `app` has the handlers, for workers.

Both are on the same store. Nothing is opened before it is used, so importing this is cheap, and a server that forks
its workers may import it before.
"""

from django.conf import settings
from django.db import close_old_connections

import wrasse
from shop.models import Order

site = wrasse.sync.connect(settings.WRASSE)
app = wrasse.connect(settings.WRASSE)


@app.handler("receipt")
def send_receipt(job: wrasse.RunningJob) -> dict[str, object]:
    """Runs in a thread of a worker. Running twice does no harm: the update says the same both times."""
    close_old_connections()  # as a request does: a connection that the database has dropped is opened anew
    try:
        order = Order.objects.get(pk=job.data["order"])
        Order.objects.filter(pk=order.pk).update(receipt_sent=True)
        return {"order": order.pk, "sent": order.item}
    finally:
        close_old_connections()
