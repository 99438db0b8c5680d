"""The reference: every port in memory, clear before fast. A change has no await inside, which makes it atomic."""
