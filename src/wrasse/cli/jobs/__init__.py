"""wrasse jobs: enqueue, inspect and change jobs."""
