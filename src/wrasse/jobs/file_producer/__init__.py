"""Files of a directory become jobs: which files, the walk, the watcher."""
