"""Two addresses: put an order, look at one."""

from django.urls import path
from shop import views

urlpatterns = [
    path("orders/", views.put),
    path("orders/<int:order>/", views.look),
]
