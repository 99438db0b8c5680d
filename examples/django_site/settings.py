"""The least a site needs. WRASSE names a settings file or a store; None is wrasse.yaml, or wrasse.db without one."""

SECRET_KEY = "for an example only"
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "testserver"]
ROOT_URLCONF = "urls"
INSTALLED_APPS = ["shop"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": "site.db",
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},  # workers and site write to one file
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
WRASSE = None
