"""What is wanted: settings, where they are read from, whether they are right, and what they mean."""
