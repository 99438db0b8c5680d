"""Orphans: objects without a reference. Finding them, measuring for how long, and removing them without data loss.

A scan lists a root completely, then reads all references in one snapshot, then merges both with the sightings of
earlier scans, in constant memory. A unit that was an orphan in every scan for its whole grace period is due; before it
is removed, its references are queried once more. `sweeps/orphan_objects.py` combines these steps.
"""
