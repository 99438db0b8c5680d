"""Archives: streams copied into objects, each message once, and read back."""
