"""What each of the other commands does, behind its arguments."""
