"""Training loops as people write them, each run plainly and within a budget; ``habits.all`` has the list."""
