"""Makes jobs of the files of a directory: rules, walk, watcher."""
