"""An order, in the site's own database."""

from django.db import models


class Order(models.Model):
    """What was ordered, and whether its receipt went out."""

    item = models.CharField(max_length=100)
    receipt_sent = models.BooleanField(default=False)
