"""Views: the job of an order is enqueued when the order is committed, and never without it."""

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_GET, require_POST

from shop.jobs import site
from shop.models import Order


@require_POST
def put(request: HttpRequest) -> JsonResponse:
    """Stores an order, and puts its job once that is committed.

    Inside the transaction a worker could claim the job before the order is there; and after a rollback it would be a
    job about nothing. If the process dies between the commit and the enqueue, the job is missing: the id makes it safe
    to enqueued again for every order without a receipt, from a periodic job.
    """
    with transaction.atomic():
        order = Order.objects.create(item=request.POST["item"])
        transaction.on_commit(lambda: put_receipt(order))
        if request.POST.get("fail"):
            raise ValueError("out of stock")
    return JsonResponse({"order": order.pk}, status=202)


def put_receipt(order: Order) -> None:
    """Puts the job of an order; once, however often it is called."""
    site.jobs.enqueue("receipt", {"order": order.pk}, id=f"receipt-{order.pk}", keep="1h")


@require_GET
def look(request: HttpRequest, order: int) -> JsonResponse:
    """Gives the receipt, waiting for it for up to `wait` seconds."""
    if site.jobs.get(f"receipt-{order}") is None:
        return JsonResponse({"order": order, "receipt": None}, status=404)
    try:
        receipt = site.jobs.wait(f"receipt-{order}", timeout=f"{int(request.GET.get('wait', 0))}s")
    except TimeoutError:
        return JsonResponse({"order": order, "receipt": None}, status=202)
    return JsonResponse({"order": order, "receipt": receipt})
