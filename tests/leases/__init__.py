"""Leases and state held to their promises: defects of the origin, races, requests, random histories, kills."""
