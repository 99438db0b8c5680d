"""wrasse beside the program that the design document came from, on one Redis."""
