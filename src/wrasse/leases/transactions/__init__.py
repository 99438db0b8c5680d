"""Keys that change together or not at all: states, log, enlistment, manager."""
