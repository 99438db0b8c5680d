"""Archives: streams copied into objects, every message once, and read back."""
