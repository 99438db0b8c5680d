"""What keeps the project in order: the style guide as code, and the writer of the reference pages."""
