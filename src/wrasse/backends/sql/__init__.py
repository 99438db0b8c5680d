"""Databases of others, through SQLAlchemy: what is referenced, and on PostgreSQL sightings and leadership."""
