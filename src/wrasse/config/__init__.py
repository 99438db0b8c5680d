"""Configuration: settings, their sources, their validation, and what they resolve to."""
