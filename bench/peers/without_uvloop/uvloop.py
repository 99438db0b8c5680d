"""Stands first on the path of modes that must run on plain asyncio: some libraries use uvloop wherever they see it."""

raise ImportError("uvloop is left out of this mode")
