"""The pages as tests: they say what the code says, their links lead somewhere, and what they tell to type works."""
