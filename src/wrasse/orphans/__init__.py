"""Orphans: objects that nothing refers to any more. What is one, since when, and how it is taken away without loss.

A round lists a root completely, then reads all references in one snapshot, then merges both with the sightings of
earlier rounds, in constant memory. What was an orphan at every look for its whole grace is due; before it is touched
its references are asked for once more. `sweeps/orphan_objects.py` puts the stages together.
"""
