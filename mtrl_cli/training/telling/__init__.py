"""What a person is told of a run: while it goes on, and afterwards from its files."""
