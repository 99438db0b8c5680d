"""wrasse in Django: a view enqueues a job when its transaction commits, a management command works.

    pip install wrasse django
    python manage.py migrate --run-syncdb
    python manage.py runserver                    # the site
    python manage.py work                         # the workers, as many as you like

    curl -X POST localhost:8000/orders/ -d item=shoes
    curl 'localhost:8000/orders/1/?wait=5'

shop/jobs.py has the two faces of wrasse that a site needs, shop/views.py puts, shop/management/commands/work.py works.
"""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
    execute_from_command_line(sys.argv)
