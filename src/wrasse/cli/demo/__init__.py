"""wrasse demo: the command, the tour, and the processes of the tour."""
