"""SQL databases of users, through SQLAlchemy: references, and on PostgreSQL sightings and leadership."""
